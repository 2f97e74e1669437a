//! How long things take: modelled, never measured here.

use crate::config::Nanos;

/// A timing profile. The default, [`Profile::NONE`], takes no time and costs nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name, for records and tables.
    pub name: &'static str,
    /// The engine's time a WQE, in picoseconds.
    pub message_ps: u64,
    /// Time a byte on the link, in picoseconds.
    pub byte_ps: u64,
    /// One way over the link and through the NIC at its end.
    pub latency_ns: Nanos,
    /// Connection contexts that the NIC holds on chip; 0 for no limit.
    pub context_cache: u32,
    /// Added to a WQE whose connection isn't among them.
    pub context_miss_ns: Nanos,
    /// How long after its acknowledgement a write's data may stay invisible.
    pub placement_delay_ns: Nanos,
}

impl Profile {
    /// No time passes.
    pub const NONE: Self = Self {
        name: "none",
        message_ps: 0,
        byte_ps: 0,
        latency_ns: 0,
        context_cache: 0,
        context_miss_ns: 0,
        placement_delay_ns: 0,
    };

    /// A ConnectX-7 on NDR200, modelled: 25 GB/s nominal (published: 24.8 GB/s on this link), 260 M messages/s,
    /// about 3.3 us from doorbell to CQE for 8 bytes, 1024 connection contexts on chip. Latency is split evenly
    /// between the ways; the context figures are assumptions that published all-to-all curves suggest, not data.
    pub const CX7_NDR200: Self = Self {
        name: "cx7-ndr200",
        message_ps: 3_846,
        byte_ps: 40,
        latency_ns: 1_645,
        context_cache: 1024,
        context_miss_ns: 350,
        placement_delay_ns: 0,
    };

    /// Every named profile.
    pub const ALL: &[Self] = &[Self::NONE, Self::CX7_NDR200];

    /// The profile of a name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|profile| profile.name == name)
    }

    /// Whether nothing takes time.
    #[must_use]
    pub const fn is_instant(&self) -> bool {
        self.message_ps == 0
            && self.byte_ps == 0
            && self.latency_ns == 0
            && self.context_miss_ns == 0
            && self.placement_delay_ns == 0
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::NONE
    }
}
