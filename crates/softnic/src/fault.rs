//! Faults on request.

use wire::cqe::Syndrome;

use crate::config::{Nanos, Qpn};

/// Fails one WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailWqe {
    /// Of this QP only, or of any.
    pub qpn: Option<Qpn>,
    /// How many matching WQEs go before it.
    pub nth: u64,
    /// What its CQE says.
    pub syndrome: Syndrome,
    /// The vendor byte that its CQE says.
    pub vendor: u8,
}

/// What a NIC does wrong. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// WQEs to fail; each is used up when it strikes.
    pub fail: Vec<FailWqe>,
    /// The engine stands still in this time: from, until.
    pub pause: Option<(Nanos, Nanos)>,
    /// The engine stands still until this is taken back.
    pub paused: bool,
    /// Added to each WQE.
    pub delay_ns: Nanos,
    /// Nothing is sent and nothing received.
    pub port_down: bool,
    /// Nothing is sent and nothing received in this time: from, until.
    pub down: Option<(Nanos, Nanos)>,
    /// Every n-th packet sent is lost.
    pub drop_every: Option<u32>,
    /// Packets are lost with probability `1/n`, by a generator started with the seed.
    pub drop_random: Option<(u32, u64)>,
    /// Writes of one QP are placed in random order, by a generator started with the seed, unless an atomic, a
    /// send, a read or a fence stands between them.
    pub out_of_order_placement: Option<u64>,
}

impl Faults {
    /// Whether the port is down at this time.
    #[must_use]
    pub fn is_down(&self, now: Nanos) -> bool {
        self.port_down || self.down.is_some_and(|(from, until)| (from..until).contains(&now))
    }

    /// When the port next goes down, or comes up again.
    pub(crate) fn next_change(&self, now: Nanos) -> Option<Nanos> {
        let (from, until) = self.down?;
        [from, until].into_iter().find(|&at| at > now)
    }

    /// The same, with times that count from `start`.
    #[must_use]
    pub fn counted_from(mut self, start: Nanos) -> Self {
        for (from, until) in [&mut self.pause, &mut self.down].into_iter().flatten() {
            *from = from.saturating_add(start);
            *until = until.saturating_add(start);
        }
        self
    }
}
