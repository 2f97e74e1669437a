//! Chains and completions through the library.

use std::sync::Arc;

use wire::cqe::Syndrome;

use super::Known;
use crate::ibv::ffi::{self, opcode, send_flags};
use crate::ibv::{QueuePairHandle, status_words};
use crate::post::{
    BadWr, Completion, Ended, INLINE_MAX, PostError, ReceiveQueue, Received, SendOp, SendQueue,
    SendWr, check,
};

/// Requests of one call: longer chains are several.
const CHAIN: usize = 64;
/// Completions of one call.
const POLL: usize = 32;

/// How a completion with this status ended: the syndromes are those that mlx5's CQEs have for the same.
fn ended(wc: &ffi::Wc) -> Ended {
    // By `enum ibv_wc_status`.
    let syndrome = match wc.status {
        0 => return Ended::Done,
        1 => Syndrome::LocalLength as u8,
        2 => Syndrome::LocalQpOp as u8,
        4 => Syndrome::LocalProtection as u8,
        5 => Syndrome::Flushed as u8,
        6 => Syndrome::MemoryWindowBind as u8,
        7 => Syndrome::BadResponse as u8,
        8 => Syndrome::LocalAccess as u8,
        9 => Syndrome::RemoteInvalidRequest as u8,
        10 => Syndrome::RemoteAccess as u8,
        11 => Syndrome::RemoteOperation as u8,
        12 => Syndrome::TransportRetryExceeded as u8,
        13 => Syndrome::RnrRetryExceeded as u8,
        16 => Syndrome::RemoteAborted as u8,
        // None of mlx5's: the words are in the cause.
        _ => 0xff,
    };
    Ended::Failed { syndrome, vendor: wc.vendor_err as u8 }
}

fn tell(known: &Known, wc: &ffi::Wc) {
    known.failed(wc.qp_num, || {
        format!("{} (vendor error {:#x})", status_words(wc.status), wc.vendor_err)
    });
}

/// The send side.
pub(super) struct Sends {
    qp: Arc<QueuePairHandle>,
    known: Arc<Known>,
    /// Next request, first not known to be completed: wide.
    head: u64,
    completed: u64,
    wr_ids: Box<[u64]>,
    // What a call points to: filled in for each.
    requests: Box<[ffi::SendWr; CHAIN]>,
    sges: Box<[ffi::Sge; CHAIN]>,
    inline: Box<[[u8; INLINE_MAX]; CHAIN]>,
}

// SAFETY: what isn't Send by itself are the pointers in `requests`, which lead into this value's own boxes and are written
// anew before each call that follows them.
unsafe impl Send for Sends {}

impl Sends {
    pub(super) fn new(qp: Arc<QueuePairHandle>, depth: usize, known: Arc<Known>) -> Self {
        Self {
            qp,
            known,
            head: 0,
            completed: 0,
            wr_ids: vec![0; depth].into(),
            requests: Box::new([ffi::SendWr::NONE; CHAIN]),
            sges: Box::new([ffi::Sge::default(); CHAIN]),
            inline: Box::new([[0; INLINE_MAX]; CHAIN]),
        }
    }

    /// Fills in request `nth` of the next call.
    fn fill(&mut self, nth: usize, wr: &SendWr) {
        let rdma = |remote: crate::post::RemoteAddr| ffi::WrKind {
            rdma: ffi::WrRdma { remote_addr: remote.address, rkey: remote.rkey },
        };
        let atomic = |remote: crate::post::RemoteAddr, compare_add, swap| ffi::WrKind {
            atomic: ffi::WrAtomic {
                remote_addr: remote.address,
                compare_add,
                swap,
                rkey: remote.rkey,
            },
        };
        let list = |sge: crate::post::Sge| {
            Some(ffi::Sge { addr: sge.address, length: sge.bytes, lkey: sge.lkey })
        };
        let (mut flags, mut imm) = (0, 0);
        let (opcode, sge, kind) = match wr.op {
            // Verbs have no NOP. A write of no bytes names no memory (IBTA C9-88) and completes in its turn.
            SendOp::Nop => (opcode::RDMA_WRITE, None, ffi::SendWr::NONE.wr),
            SendOp::Write(sge, remote) => (opcode::RDMA_WRITE, list(sge), rdma(remote)),
            SendOp::WriteImm(sge, remote, value) => {
                imm = value;
                (opcode::RDMA_WRITE_WITH_IMM, list(sge), rdma(remote))
            }
            SendOp::WriteInline(bytes, length, remote) => {
                flags |= send_flags::INLINE;
                self.inline[nth] = bytes;
                let addr = self.inline[nth].as_ptr().expose_provenance() as u64;
                let sge = ffi::Sge { addr, length: length.into(), lkey: 0 };
                (opcode::RDMA_WRITE, Some(sge), rdma(remote))
            }
            SendOp::Read(sge, remote) => (opcode::RDMA_READ, list(sge), rdma(remote)),
            SendOp::FetchAdd(add, remote, sge) => {
                (opcode::ATOMIC_FETCH_AND_ADD, list(sge), atomic(remote, add, 0))
            }
            SendOp::CompareSwap(compare, swap, remote, sge) => {
                (opcode::ATOMIC_CMP_AND_SWP, list(sge), atomic(remote, compare, swap))
            }
            SendOp::Send(sge) => (opcode::SEND, list(sge), ffi::SendWr::NONE.wr),
            SendOp::SendImm(sge, value) => {
                imm = value;
                (opcode::SEND_WITH_IMM, list(sge), ffi::SendWr::NONE.wr)
            }
        };
        if wr.signaled {
            flags |= send_flags::SIGNALED;
        }
        if wr.fence {
            flags |= send_flags::FENCE;
        }
        self.sges[nth] = sge.unwrap_or_default();
        self.requests[nth] = ffi::SendWr {
            wr_id: self.head + nth as u64,
            num_sge: sge.is_some().into(),
            opcode,
            send_flags: flags,
            imm_data: imm.to_be(),
            wr: kind,
            ..ffi::SendWr::NONE
        };
    }

    /// Posts up to [`CHAIN`] requests by one call; how many were taken, and what is wrong with the next one.
    fn call(&mut self, chain: &[SendWr]) -> (usize, Option<BadWr>) {
        let mut wrong = None;
        let mut count = 0;
        for wr in chain {
            if let Err(why) = check(&wr.op) {
                wrong = Some(why);
                break;
            }
            self.fill(count, wr);
            count += 1;
        }
        if count == 0 {
            return (0, wrong);
        }
        let (requests, sges) = (self.requests.as_mut_ptr(), self.sges.as_mut_ptr());
        for nth in 0..count {
            // SAFETY: within both arrays, of which only these pointers are used until the call is over.
            unsafe {
                let request = requests.add(nth);
                (*request).sg_list = sges.add(nth);
                (*request).next =
                    if nth + 1 < count { requests.add(nth + 1) } else { std::ptr::null_mut() };
            }
        }
        // SAFETY: a chain of `count` requests that was just made; the regions that they name are the caller's to keep.
        let taken = match unsafe { self.qp.post_send(requests) } {
            Ok(()) => count,
            Err((errno, bad)) => {
                // SAFETY: a pointer into the chain, or null.
                let taken = if bad.is_null() { 0 } else { unsafe { bad.offset_from(requests) } };
                let taken = usize::try_from(taken).unwrap_or(0).min(count);
                // A driver whose queue is full for now says so by ENOMEM.
                if errno != libc::ENOMEM {
                    wrong = Some(BadWr::Refused { errno });
                } else {
                    wrong = None;
                }
                taken
            }
        };
        let mask = self.wr_ids.len() - 1;
        for (nth, wr) in chain[..taken].iter().enumerate() {
            self.wr_ids[(self.head as usize + nth) & mask] = wr.wr_id;
        }
        self.head += taken as u64;
        (taken, wrong)
    }
}

impl SendQueue for Sends {
    fn qpn(&self) -> u32 {
        self.qp.number()
    }

    fn depth(&self) -> usize {
        self.wr_ids.len()
    }

    fn room(&self) -> usize {
        self.wr_ids.len() - (self.head - self.completed) as usize
    }

    fn post(&mut self, chain: &[SendWr]) -> Result<usize, PostError> {
        let room = self.room().min(chain.len());
        let mut posted = 0;
        while posted < room {
            let some = &chain[posted..room.min(posted + CHAIN)];
            let asked = some.len();
            let (taken, wrong) = self.call(some);
            posted += taken;
            if let Some(why) = wrong {
                return Err(PostError { index: posted, wr_id: chain[posted].wr_id, why });
            }
            if taken < asked {
                break;
            }
        }
        Ok(posted)
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut entries = [ffi::Wc::default(); POLL];
        let most = out.len().min(POLL);
        let taken = match self.qp.send_cq().poll(&mut entries[..most]) {
            Ok(taken) => taken,
            Err(error) => {
                // Nothing will come of this queue any more: its requests fail once.
                self.known.failed(self.qp.number(), || error.to_string());
                if self.completed == self.head || out.is_empty() {
                    return 0;
                }
                entries[0] = ffi::Wc {
                    wr_id: self.completed,
                    status: 19,
                    qp_num: self.qp.number(),
                    ..ffi::Wc::default()
                };
                1
            }
        };
        let mask = self.wr_ids.len() as u64 - 1;
        for (wc, out) in entries[..taken].iter().zip(out) {
            self.completed = self.completed.max(wc.wr_id + 1).min(self.head);
            let ended = ended(wc);
            if ended != Ended::Done && !ended.is_flushed() {
                tell(&self.known, wc);
            }
            let wr_id = self.wr_ids[(wc.wr_id & mask) as usize];
            *out = Completion { wr_id, qpn: self.qp.number(), index: wc.wr_id as u16, ended };
        }
        taken
    }
}

/// The receive side: receives without a buffer.
pub(super) struct Receives {
    qp: Arc<QueuePairHandle>,
    known: Arc<Known>,
    depth: u64,
    posted: u64,
    consumed: u64,
}

impl Receives {
    pub(super) fn new(qp: Arc<QueuePairHandle>, depth: u64, known: Arc<Known>) -> Self {
        Self { qp, known, depth, posted: 0, consumed: 0 }
    }
}

impl ReceiveQueue for Receives {
    fn refill(&mut self) {
        while self.posted - self.consumed < self.depth {
            let null = std::ptr::null_mut();
            let mut request =
                ffi::RecvWr { wr_id: self.posted, next: null, sg_list: null.cast(), num_sge: 0 };
            // SAFETY: a chain of one, which names no memory.
            if let Err((errno, _)) = unsafe { self.qp.post_recv(&raw mut request) } {
                // Full for now; anything else keeps senders waiting, and is told as their cause.
                if errno != libc::ENOMEM {
                    let why = std::io::Error::from_raw_os_error(errno);
                    self.known.failed(self.qp.number(), || format!("ibv_post_recv failed: {why}"));
                }
                return;
            }
            self.posted += 1;
        }
    }

    fn poll(&mut self) -> Option<Received> {
        let mut entry = [ffi::Wc::default()];
        match self.qp.recv_cq().poll(&mut entry) {
            Ok(0) => None,
            Ok(_) => {
                let [wc] = entry;
                self.consumed += 1;
                let ended = ended(&wc);
                if ended != Ended::Done && !ended.is_flushed() {
                    tell(&self.known, &wc);
                }
                let has_imm = wc.wc_flags & ffi::WC_WITH_IMM != 0;
                let imm = has_imm.then(|| u32::from_be(wc.imm_data));
                Some(Received { imm, bytes: wc.byte_len, ended })
            }
            Err(error) => {
                self.known.failed(self.qp.number(), || error.to_string());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_syndrome_of_the_same_words() {
        let of = |status| ended(&ffi::Wc { status, vendor_err: 0x188, ..ffi::Wc::default() });
        assert_eq!(of(0), Ended::Done);
        assert!(of(5).is_flushed());
        for (status, syndrome) in [
            (1, Syndrome::LocalLength),
            (4, Syndrome::LocalProtection),
            (10, Syndrome::RemoteAccess),
            (12, Syndrome::TransportRetryExceeded),
            (13, Syndrome::RnrRetryExceeded),
        ] {
            assert_eq!(of(status), Ended::Failed { syndrome: syndrome as u8, vendor: 0x88 });
        }
        assert_eq!(of(21), Ended::Failed { syndrome: 0xff, vendor: 0x88 });
    }
}
