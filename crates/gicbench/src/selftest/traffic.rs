//! Requests from one side of a NIC to the other, whatever builds their WQEs, each with its data checked.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rdma::post::{Completion, Ended, ReceiveQueue, RemoteAddr, SendOp, SendQueue, SendWr, Sge};
use rdma::{
    Access, ConnectAttr, CqKind, Destination, Memory, Nic, QueuePair, QueuePairAttr, Region,
};

use super::{Steps, said};

/// Longest that one step waits for the NIC.
const PATIENCE: Duration = Duration::from_secs(10);
const BYTES: usize = 1 << 16;
/// Send queue of the steps, in requests.
const LOG: u32 = 6;

/// A connected pair with memory at both ends.
pub(super) struct Pair<'a> {
    near: &'a dyn Nic,
    qp: Arc<QueuePair>,
    _peer: Arc<QueuePair>,
    sends: Box<dyn SendQueue>,
    receives: Box<dyn ReceiveQueue>,
    local: Region,
    remote: Region,
}

/// The steps of [`Pair::steps`], for who can't try them.
pub(super) const STEPS: [&str; 7] = [
    "loopback put",
    "inline put",
    "put with immediate",
    "get",
    "atomics",
    "a full chain",
    "an error on purpose",
];

/// How a queue pair of the steps is made.
pub(super) fn attr() -> QueuePairAttr {
    QueuePairAttr {
        log_blocks: LOG,
        cq_kind: CqKind::Ring,
        log_cq: LOG,
        log_receives: Some(2),
        ..QueuePairAttr::default()
    }
}

/// Gives up within seconds, so that an error is one soon.
fn hasty() -> ConnectAttr {
    ConnectAttr { timeout: 14, retry_cnt: 3, ..ConnectAttr::default() }
}

pub(super) fn connect<'a>(
    near: &'a dyn Nic,
    far: &dyn Nic,
    qp: QueuePair,
    peer: QueuePair,
) -> Result<(Pair<'a>, String), String> {
    let made = || -> Result<(Pair<'a>, String), rdma::Error> {
        let (qp, peer) = (Arc::new(qp), Arc::new(peer));
        let back = Destination { nic: near.address(), qpn: qp.qpn };
        far.connect(&peer, back, &hasty())?;
        let to = Destination { nic: far.address(), qpn: peer.qpn };
        near.connect(&qp, to, &hasty())?;
        let local = near.register(&Memory::try_zeroed(BYTES)?, Access::empty())?;
        let remote = far.register(&Memory::try_zeroed(BYTES)?, Access::all())?;
        let sends = near.send_queue(&qp)?;
        let mut receives = far.receive_queue(&peer)?;
        receives.refill();
        let seen = format!(
            "{:#x} to {:#x} at {}, packets of {} bytes",
            qp.qpn,
            peer.qpn,
            far.address(),
            near.address().path_mtu(&far.address()).unwrap_or(0)
        );
        Ok((Pair { near, qp, _peer: peer, sends, receives, local, remote }, seen))
    };
    made().map_err(|error| said(&error))
}

impl Pair<'_> {
    fn sge(&self, at: u64, bytes: u32) -> Sge {
        Sge { address: self.local.address + at, bytes, lkey: self.local.lkey }
    }

    fn at(&self, at: u64) -> RemoteAddr {
        RemoteAddr { address: self.remote.address + at, rkey: self.remote.rkey }
    }

    /// Posts these and waits until all have completed.
    fn run(&mut self, ops: &[SendOp]) -> Result<Vec<Ended>, String> {
        let chain: Vec<SendWr> = (0u64..)
            .zip(ops)
            .map(|(wr_id, op)| SendWr { wr_id, op: *op, signaled: true, fence: false })
            .collect();
        let posted = self.sends.post(&chain).map_err(|error| error.to_string())?;
        if posted != chain.len() {
            return Err(format!("only {posted} of {} requests found room", chain.len()));
        }
        let end = Instant::now() + PATIENCE;
        let mut ended = Vec::new();
        let mut out = [Completion::NONE; 16];
        let mut spins = 0;
        while ended.len() < chain.len() {
            let taken = self.sends.poll(&mut out);
            ended.extend(out[..taken].iter().map(|one| one.ended));
            if Instant::now() > end {
                return Err(format!(
                    "{} of {} completions came within {} s{}",
                    ended.len(),
                    chain.len(),
                    PATIENCE.as_secs(),
                    self.cause()
                ));
            }
            self.near.relax(spins);
            spins += 1;
        }
        Ok(ended)
    }

    fn cause(&self) -> String {
        self.near
            .cause(self.qp.qpn)
            .map_or(String::new(), |cause| format!("; the NIC says: {cause}"))
    }

    /// The same where all have to succeed.
    fn done(&mut self, ops: &[SendOp]) -> Result<(), String> {
        match self.run(ops)?.into_iter().find(|ended| *ended != Ended::Done) {
            None => Ok(()),
            Some(ended) => Err(format!("completed as {ended:?}{}", self.cause())),
        }
    }

    fn same(&self, remote: usize, local: usize, bytes: usize) -> Result<(), String> {
        let (mut there, mut here) = (vec![0; bytes], vec![0; bytes]);
        let read = |region: &Region, at, out: &mut [u8]| {
            region.memory.read(at, out).map_err(|error| error.to_string())
        };
        read(&self.remote, remote, &mut there)?;
        read(&self.local, local, &mut here)?;
        match there.iter().zip(&here).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} of {bytes} is wrong, though the request completed")),
        }
    }

    /// Every kind of request; `advice` is for one that doesn't work.
    pub(super) fn steps(&mut self, steps: &mut Steps<'_>, advice: &str) {
        for at in 0..BYTES / 8 {
            self.local
                .memory
                .word(8 * at)
                .store((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), Relaxed);
        }
        let [put, inline, imm, get, atomics, chain, error] = STEPS;
        steps.step(put, advice, || {
            // More than a packet, at an odd place.
            let op = SendOp::Write(self.sge(3, 9001), self.at(8195));
            self.done(&[op])?;
            self.same(8195, 3, 9001).map(|()| ((), "9001 bytes".to_owned()))
        });
        steps.step(inline, advice, || {
            let bytes = *b"bytes that travel in the WQE";
            self.done(&[SendOp::WriteInline(bytes, 28, self.at(128))])?;
            let mut there = [0; 28];
            self.remote.memory.read(128, &mut there).map_err(|error| error.to_string())?;
            if there == bytes {
                Ok(((), "28 bytes".to_owned()))
            } else {
                Err("the bytes are wrong, though the request completed".to_owned())
            }
        });
        steps.step(imm, advice, || {
            self.done(&[SendOp::WriteImm(self.sge(0, 8), self.at(64), 0x1234_abcd)])?;
            let end = Instant::now() + PATIENCE;
            let mut spins = 0;
            let message = loop {
                if let Some(message) = self.receives.poll() {
                    break message;
                }
                if Instant::now() > end {
                    return Err(format!("no receive completed within {} s", PATIENCE.as_secs()));
                }
                self.near.relax(spins);
                spins += 1;
            };
            if (message.imm, message.bytes, message.ended) != (Some(0x1234_abcd), 8, Ended::Done) {
                return Err(format!("the receive completed as {message:?}"));
            }
            self.same(64, 0, 8).map(|()| ((), "8 bytes, and the immediate".to_owned()))
        });
        steps.step(get, advice, || {
            self.done(&[SendOp::Read(self.sge(32768, 9001), self.at(8195))])?;
            self.same(8195, 32768, 9001).map(|()| ((), "9001 bytes".to_owned()))
        });
        steps.step(atomics, advice, || {
            let (word, first, second) = (self.at(512), self.sge(1024, 8), self.sge(1032, 8));
            self.remote.memory.word(512).store(41, Relaxed);
            let ops = [SendOp::FetchAdd(1, word, first), SendOp::CompareSwap(42, 7, word, second)];
            self.done(&ops)?;
            let before = [1024, 1032].map(|at| self.local.memory.word(at).load(Acquire));
            let now = self.remote.memory.word(512).load(Acquire);
            if (before, now) == ([41, 42], 7) {
                Ok(((), "fetch-and-add, compare-and-swap".to_owned()))
            } else {
                Err(format!("41 + 1, then 42 to 7, gave back {before:?} and left {now}"))
            }
        });
        steps.step(chain, advice, || {
            let ops: Vec<SendOp> = (0..1u64 << LOG)
                .map(|i| SendOp::Write(self.sge(2048 + 8 * i, 8), self.at(40960 + 8 * i)))
                .collect();
            self.done(&ops)?;
            let bytes = 8 * ops.len();
            self.same(40960, 2048, bytes)
                .map(|()| ((), format!("{} puts, one doorbell", ops.len())))
        });
        steps.step(
            error,
            "an error must be told: without it a lost put looks like a slow one",
            || {
                let wrong = RemoteAddr { rkey: self.remote.rkey ^ 0xff00, ..self.at(0) };
                let ops = [
                    SendOp::Write(self.sge(0, 8), wrong),
                    SendOp::Write(self.sge(0, 8), self.at(0)),
                ];
                let ended = self.run(&ops)?;
                let access = wire::cqe::Syndrome::RemoteAccess as u8;
                match (&ended[0], ended[1].is_flushed()) {
                    (Ended::Failed { syndrome, .. }, true) if *syndrome == access => Ok((
                        (),
                        format!(
                            "a wrong key is refused and what follows is flushed{}",
                            self.cause()
                        ),
                    )),
                    _ => Err(format!("a wrong key and what follows ended as {ended:?}")),
                }
            },
        );
    }
}
