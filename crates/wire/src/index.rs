//! Wide indices from the 16-bit ones on the wire.

/// The next free index after what a collapsed CQ's counter says, or `consumer` where it says nothing new.
///
/// `consumer` and `doorbelled` are wide: the first WQEBB not known to be completed, and the first one not yet
/// handed to the NIC. `counter` is the CQE's 16-bit index of the last completed WQE's *first* WQEBB. The index
/// is rebuilt only forward from `consumer` and accepted only in `(consumer, doorbelled]`: a stale counter, from
/// before `consumer` or from the queue's first lap, must not move anything.
///
/// `doorbelled` may have been read before `consumer`, and then lies behind it: nothing is accepted.
///
/// The result is exact for one-block WQEs and short by the other blocks of a longer one.
///
/// ```
/// assert_eq!(wire::index::rebuild(131_070, 131_077, 1), 131_074);
/// assert_eq!(wire::index::rebuild(65_534, 65_540, 65_533), 65_534);
/// assert_eq!(wire::index::rebuild(131_074, 131_070, 5), 131_074);
/// ```
#[must_use]
pub const fn rebuild(consumer: u64, doorbelled: u64, counter: u16) -> u64 {
    let ahead = counter.wrapping_add(1).wrapping_sub(consumer as u16) as u64;
    let room = doorbelled.wrapping_sub(consumer) as i64;
    if room > 0 && ahead <= room as u64 { consumer.wrapping_add(ahead) } else { consumer }
}

/// Extends a 16-bit producer index to a wide one, forward from `seen`.
#[must_use]
pub const fn extend(seen: u64, low: u16) -> u64 {
    seen.wrapping_add(low.wrapping_sub(seen as u16) as u64)
}
