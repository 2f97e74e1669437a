//! How far a queue pair is, read from its queues: what device code has no need to keep up to date.

use rdma::QueuePair;
use wire::cqe::{Cqe, CqeOpcode};
use wire::wqe::WQEBB;

/// Blocks before which all is completed, of a queue of which `posted` blocks were and nobody posts to now.
///
/// `consumed` is what is known anyway. A completion names its WQE's first block; the WQE, which is still there, says how
/// many it took. Of all entries the one nearest to what was posted is the newest.
pub(crate) fn completed(qp: &QueuePair, posted: u64, consumed: u64) -> u64 {
    let mut behind = posted.saturating_sub(consumed);
    let mask = (1u64 << qp.attr.log_blocks) - 1;
    for at in (0..qp.areas.cq.len()).step_by(size_of::<Cqe>()) {
        let mut bytes = [0; size_of::<Cqe>()];
        if qp.areas.cq.read(at, &mut bytes).is_err() {
            break;
        }
        let entry = Cqe::from_bytes(bytes);
        if entry.opcode() != Some(CqeOpcode::Requester) {
            continue;
        }
        let first = u64::from(entry.wqe_counter.get());
        // The control segment's last byte but eight: how many segments there are.
        let mut segments = [0];
        let slot = (first & mask) as usize * WQEBB;
        if qp.areas.sq.read(slot + 7, &mut segments).is_err() {
            break;
        }
        let blocks = u64::from(segments[0]).div_ceil(4).max(1);
        let since = (posted as u16).wrapping_sub((first + blocks) as u16);
        behind = behind.min(u64::from(since));
    }
    posted - behind
}
