//! The CPU side of a library's path: takes what GPU threads have handed over, posts it to the NIC, and reports what is
//! completed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use peers::{Consumer, Request, RequestKind};
use rdma::post::{
    Completion, Ended, INLINE_MAX, RemoteAddr, SendOp, SendPoster, SendQueue, SendWr, Sge,
};
use rdma::{Nic, Region};

use crate::cpus::pin_current_thread;
use crate::point::PointError;

/// Requests that are posted at once, at most.
const CHAIN: usize = 32;

/// A running CPU side. Dropping it ends it.
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

/// What a CPU side posts with; nothing where it only rings.
pub(super) struct Posting {
    pub poster: SendPoster,
    pub nic: Arc<dyn Nic>,
    pub source: Region,
    pub target: Region,
    /// Where atomics leave what was there.
    pub result: Region,
}

impl Worker {
    pub fn start(
        consumer: Consumer,
        posting: Option<Posting>,
        cpu: Option<usize>,
    ) -> Result<Self, PointError> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("peer's CPU side".to_owned())
            .spawn(move || {
                if let Some(cpu) = cpu {
                    // Without it the times are noisier, and no less true.
                    let _ = pin_current_thread(cpu);
                }
                match posting {
                    Some(posting) => post(consumer, posting, &asked),
                    None => {
                        ring(consumer, &asked);
                        Ok(())
                    }
                }
            })
            .map_err(|error| PointError::failed(format!("no thread for the CPU side: {error}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Whether it ended by itself.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it.
    ///
    /// # Errors
    /// What it met.
    pub fn stop(mut self) -> Result<(), PointError> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(why))) => Err(PointError::failed(format!("the CPU side: {why}"))),
            Some(Err(_)) => Err(PointError::failed("the CPU side panicked")),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A CPU that rings doorbells for GPU threads: all of it is in the adapter.
fn ring(mut consumer: Consumer, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let _ = consumer.take();
        std::hint::spin_loop();
    }
}

/// A CPU that posts.
fn post(mut consumer: Consumer, mut to: Posting, stop: &AtomicBool) -> Result<(), String> {
    // What was taken and isn't reported: in order.
    let mut taken: VecDeque<Taken> = VecDeque::new();
    let mut chain: Vec<SendWr> = Vec::with_capacity(CHAIN);
    let mut completions = [Completion::NONE; CHAIN];
    let mut spins = 0u32;
    loop {
        while chain.len() < CHAIN.min(to.poster.room()) {
            let Some(request) = consumer.take() else { break };
            let op = operation(&request, &to)?;
            taken.push_back(Taken { ticket: request.ticket, posted: op.is_some() });
            chain.extend(op.map(|op| SendWr {
                wr_id: request.ticket,
                op,
                signaled: true,
                fence: false,
            }));
        }
        let mut idle = chain.is_empty();
        if !chain.is_empty() {
            let posted = to.poster.post(&chain).map_err(|error| error.to_string())?;
            debug_assert_eq!(posted, chain.len());
            chain.clear();
        }
        let found = to.poster.poll(&mut completions);
        for completion in &completions[..found] {
            if completion.ended != Ended::Done {
                let cause = to.nic.cause(completion.qpn).unwrap_or_default();
                return Err(format!("WQE {}: {:?}; {cause}", completion.index, completion.ended));
            }
            let first = taken.iter_mut().find(|one| one.posted);
            if let Some(first) = first {
                first.posted = false;
            }
        }
        idle &= found == 0;
        let mut done = None;
        while let Some(first) = taken.front()
            && !first.posted
        {
            done = Some(first.ticket);
            taken.pop_front();
        }
        if let Some(ticket) = done {
            consumer.done(ticket);
        }
        if idle {
            if stop.load(Ordering::Acquire) {
                return Ok(());
            }
            if let Some(gone) = to.nic.gone() {
                return Err(gone);
            }
            to.nic.relax(spins);
            spins = spins.wrapping_add(1);
        }
    }
}

struct Taken {
    ticket: u64,
    /// It is with the NIC.
    posted: bool,
}

/// What a request is to the NIC; nothing for a flush.
fn operation(request: &Request, to: &Posting) -> Result<Option<SendOp>, String> {
    let within = |region: &Region, at: u64, bytes: u64| {
        let offset = at.checked_sub(region.address);
        let fits = offset.is_some_and(|offset| region.at(offset, bytes).is_ok());
        fits.then_some(()).ok_or_else(|| {
            format!("a request of {bytes} bytes at {at:#x}, which is not payload memory")
        })
    };
    let kind = request.kind().map_err(|kind| format!("a request of unknown kind {kind}"))?;
    let bytes = match kind {
        RequestKind::FetchAdd => 8,
        _ => u64::from(request.bytes),
    };
    if kind == RequestKind::Flush {
        return Ok(None);
    }
    within(&to.target, request.remote, bytes)?;
    let remote = RemoteAddr { address: request.remote, rkey: to.target.rkey };
    Ok(Some(match kind {
        RequestKind::Write => {
            within(&to.source, request.local, bytes)?;
            SendOp::Write(
                Sge { address: request.local, bytes: request.bytes, lkey: to.source.lkey },
                remote,
            )
        }
        RequestKind::WriteValue => {
            let mut value = [0; INLINE_MAX];
            value[..8].copy_from_slice(&request.value.to_le_bytes());
            let length = u8::try_from(request.bytes).ok().filter(|bytes| *bytes <= 8);
            let length = length.ok_or_else(|| format!("a value of {} bytes", request.bytes))?;
            SendOp::WriteInline(value, length, remote)
        }
        _ => SendOp::FetchAdd(
            request.value,
            remote,
            Sge { address: to.result.address, bytes: 8, lkey: to.result.lkey },
        ),
    }))
}
