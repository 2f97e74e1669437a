//! The engine's own time: how long WQEs take, by the profile.

use crate::config::Nanos;
use crate::profile::Profile;

/// How far the engine may run ahead of its clock. Times are exact in what it stamps; this bounds how much is
/// stamped at once.
const AHEAD_PS: u64 = 1_000_000;

pub(crate) struct Pace {
    pub profile: Profile,
    /// When the engine is free again, in picoseconds.
    pub free_ps: u64,
    /// QPs whose connection context is on chip, direct-mapped by number.
    contexts: Box<[u32]>,
}

impl Pace {
    pub(crate) fn new(profile: Profile) -> Self {
        let contexts = vec![0; profile.context_cache as usize].into();
        Self { profile, free_ps: 0, contexts }
    }

    /// Whether nothing can be begun now.
    pub(crate) fn is_busy(&self, now: Nanos) -> bool {
        self.free_ps > now.saturating_mul(1000).saturating_add(AHEAD_PS)
    }

    /// When something can be begun.
    pub(crate) fn free_at(&self) -> Nanos {
        self.free_ps.saturating_sub(AHEAD_PS).div_ceil(1000)
    }

    /// One WQE of `qpn` is begun.
    pub(crate) fn take(&mut self, now: Nanos, qpn: u32, delay: Nanos) {
        let mut cost = self.profile.message_ps.saturating_add(delay.saturating_mul(1000));
        let len = self.contexts.len();
        if let Some(slot) = (qpn as usize & 0xffff).checked_rem(len)
            && let Some(cached) = self.contexts.get_mut(slot)
            && *cached != qpn
        {
            *cached = qpn;
            cost = cost.saturating_add(self.profile.context_miss_ns.saturating_mul(1000));
        }
        self.free_ps = self.free_ps.max(now.saturating_mul(1000)).saturating_add(cost);
    }
}
