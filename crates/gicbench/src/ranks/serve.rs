//! Any rank but 0: does as it is called, until rank 0 is done.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ranks::World;
use rdma::remote::{Side, Tell};

use super::protocol::{Answer, Call, Decoded, Launch, Open, Reply, decode, encode};
use super::{Other, PROMPT};
use crate::context::Interrupt;
use crate::cpus::Cpus;
use crate::experiments::across;
use crate::plan::Registry;
use crate::platform::Platform;
use crate::point::PointError;

/// The GPU that this rank uses, in words.
pub(super) fn gpu() -> Option<String> {
    crate::gpu::open().ok().map(|gpu| crate::gpu::describe(gpu.info()))
}

/// What the thread of a point is told.
pub(crate) enum Order {
    Prepare(Reply),
    Launch(Launch),
}

/// What it tells.
pub(crate) enum Report {
    Opened(Arc<Side>),
    Prepared(Result<(), PointError>),
    /// Of a launch: nothing is left to be made for it.
    Ready,
    Ended(Result<(), PointError>),
}

/// Serves rank 0 until it is done, or gone.
///
/// # Errors
/// Rank 0 is lost.
pub fn serve(
    other: &Other,
    registry: &Registry,
    platform: &Platform,
    interrupt: &Interrupt,
    cpus: &Cpus,
) -> Result<(), ranks::JoinError> {
    // Whoever started the ranks may have told all of them to end: rank 0 has a record to write first.
    interrupt.heed(true);
    let mut serving = Serving {
        world: Arc::clone(&other.world),
        registry,
        platform,
        interrupt,
        cpus,
        session: None,
    };
    let ended = other.world.serve(|call| encode(&serving.answer(call)));
    interrupt.heed(false);
    ended
}

struct Serving<'a> {
    world: Arc<World>,
    registry: &'a Registry,
    platform: &'a Platform,
    interrupt: &'a Interrupt,
    cpus: &'a Cpus,
    session: Option<Session>,
}

/// A point, on a thread of its own.
struct Session {
    number: u64,
    side: Arc<Side>,
    orders: Sender<Order>,
    reports: Receiver<Report>,
    thread: JoinHandle<()>,
}

fn failed(error: PointError) -> Answer {
    match error {
        PointError::NotRun { reason } => Answer::NotRun(reason),
        other => Answer::Failed(other.to_string()),
    }
}

impl Serving<'_> {
    fn answer(&mut self, call: &[u8]) -> Answer {
        match decode(call) {
            Decoded::Broken(why) => Answer::Failed(why),
            Decoded::Of(Call::Describe) => {
                Answer::Described { cpus: self.cpus.allowed().to_vec(), gpu: gpu() }
            }
            Decoded::Of(Call::Open(open)) => self.open(*open).unwrap_or_else(failed),
            Decoded::Of(Call::Close) => {
                self.close();
                Answer::Done
            }
            Decoded::Of(Call::Nic { session, ask }) => match &self.session {
                Some(open) if open.number == session => Answer::Nic(open.side.answer(&ask)),
                _ => Answer::Nic(Tell::Failed("the point is over".to_owned())),
            },
            Decoded::Of(Call::Prepare(reply)) => {
                let ordered = self.order(Order::Prepare(reply));
                ordered.and_then(|()| self.report(PROMPT)).unwrap_or_else(failed)
            }
            Decoded::Of(Call::Launch(launch)) => match self.order(Order::Launch(launch)) {
                Ok(()) => Answer::Done,
                Err(error) => failed(error),
            },
            Decoded::Of(Call::Finish { patience_s }) => {
                let patience = Duration::try_from_secs_f64(patience_s).unwrap_or(PROMPT);
                self.report(patience).unwrap_or_else(failed)
            }
        }
    }

    fn open(&mut self, open: Open) -> Result<Answer, PointError> {
        self.close();
        if let Some(session) = &self.session {
            let number = session.number;
            let reason = format!("session {number} did not give its thread back");
            return Err(PointError::failed(reason));
        }
        let far = across::Far::new(
            &open,
            self.registry,
            self.platform,
            self.interrupt,
            Arc::clone(&self.world),
        )?;
        let (orders, ordered) = mpsc::channel();
        let (tell, reports) = mpsc::channel();
        let named = std::thread::Builder::new().name("point".to_owned());
        let thread = named.spawn(move || far.run(&ordered, &tell));
        let thread =
            thread.map_err(|e| PointError::failed(format!("no thread for the point: {e}")))?;
        let side = match reports.recv_timeout(PROMPT) {
            Ok(Report::Opened(side)) => side,
            Ok(Report::Prepared(Err(error)) | Report::Ended(Err(error))) => return Err(error),
            Ok(_) | Err(_) => return Err(PointError::failed("its NIC did not open in time")),
        };
        let introduction = side.introduction();
        self.session = Some(Session { number: open.session, side, orders, reports, thread });
        Ok(Answer::Opened(introduction))
    }

    fn order(&self, order: Order) -> Result<(), PointError> {
        let session =
            self.session.as_ref().ok_or_else(|| PointError::failed("no point is open"))?;
        session.orders.send(order).map_err(|_| PointError::failed("its point's thread has died"))
    }

    fn report(&self, patience: Duration) -> Result<Answer, PointError> {
        let session =
            self.session.as_ref().ok_or_else(|| PointError::failed("no point is open"))?;
        let mut report = session.reports.recv_timeout(patience);
        if let Ok(Report::Ready) = report {
            report = session.reports.recv_timeout(patience);
        }
        match report {
            Ok(Report::Prepared(result) | Report::Ended(result)) => result.map(|()| Answer::Done),
            Ok(Report::Opened(_) | Report::Ready) => Ok(Answer::Done),
            Err(RecvTimeoutError::Timeout) => {
                let waited_for = "the answering half, which did not notice its own deadline";
                Err(PointError::Deadline { waited_for: waited_for.to_owned() })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(PointError::failed("its point's thread has died"))
            }
        }
    }

    /// Ends the point; one whose thread is still busy stays.
    fn close(&mut self) {
        let Some(session) = self.session.take() else { return };
        let Session { number, side, orders, reports, thread } = session;
        // Its thread ends when nobody orders any more.
        drop(orders);
        let until = Instant::now() + Duration::from_secs(2);
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            let (orders, _) = mpsc::channel();
            self.session = Some(Session { number, side, orders, reports, thread });
        }
    }
}
