//! What the host hands to mini-proxy's device code: the mirror of `gic/proxy_types.hpp` and of the kernels'
//! arguments, and their launch on host threads.

use std::fmt;
use std::str::FromStr;

use crate::choice::{UnknownValue, axis};
use crate::host::{LaunchError, Relax, on_threads, with_relax};
use crate::view::Failure;

axis! {
    /// How a GPU thread tells the CPU that there is something to post.
    Handoff, "Handoff" {
        /// A 16-byte descriptor whose halves each carry the lap's parity; never cleared.
        LapParity = 0, "lap-parity", "lap_parity";
        /// A 16-byte descriptor whose halves are never zero; cleared when taken.
        NonzeroWord = 1, "nonzero-word", "nonzero_word";
        /// Descriptor, system fence, flag: the baseline.
        ValidByte = 2, "valid-byte", "valid_byte";
        /// The GPU builds the WQE and publishes a producer index; the CPU rings.
        ProducerCounter = 3, "producer-counter", "producer_counter";
        /// The CPU knows the request already; the GPU raises a counter in host memory.
        MappedCounter = 4, "mapped-counter", "mapped_counter";
    }
}

axis! {
    /// Who pushes to a ring.
    Producers, "Producers" {
        /// One thread alone, without atomics.
        One = 0, "one", "one";
        /// Many, each reserving with a fetch-and-add.
        Many = 1, "many", "many";
    }
}

axis! {
    /// How a producer learns of room.
    Progress, "Progress" {
        /// The host's word is read only where the last reading says that the ring is full.
        Cached = 0, "cached", "cached";
        /// The host's word is read for every push.
        Read = 1, "read", "read";
    }
}

axis! {
    /// What a descriptor's store orders.
    Publish, "Publish" {
        /// Everything that the thread wrote before, the payload with it.
        Release = 0, "release", "release";
        /// Nothing: for payloads that the NIC could see before.
        Posted = 1, "posted", "posted";
    }
}

/// A point in the space of a proxy's choices: what `gic::ProxyChoice` is instantiated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(C)]
pub struct ProxyChoice {
    /// Hand-off.
    pub handoff: Handoff,
    /// Who pushes.
    pub producers: Producers,
    /// How room is learnt of.
    pub progress: Progress,
    /// What the descriptor's store orders; [`Publish::Posted`] with [`Handoff::LapParity`] only.
    pub publish: Publish,
}

impl Default for ProxyChoice {
    /// The tuned hand-off: one producer, one 16-byte store.
    fn default() -> Self {
        Self {
            handoff: Handoff::LapParity,
            producers: Producers::One,
            progress: Progress::Cached,
            publish: Publish::Release,
        }
    }
}

impl ProxyChoice {
    /// The hand-off that the tuned ones are measured against: device atomic, host progress read for every
    /// push, system fence, flag.
    pub const BASELINE: Self = Self {
        handoff: Handoff::ValidByte,
        producers: Producers::Many,
        progress: Progress::Read,
        publish: Publish::Release,
    };

    /// The C++ type.
    #[must_use]
    pub fn cpp(&self) -> String {
        format!(
            "gic::ProxyChoice<{}, {}, {}, {}>",
            self.handoff.cpp(),
            self.producers.cpp(),
            self.progress.cpp(),
            self.publish.cpp()
        )
    }
}

/// What a descriptor asks for (`gic::ProxyOp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ProxyOp {
    /// RDMA write.
    #[default]
    Put = 0,
    /// RDMA write and, behind it, 1 added to the channel's signal word.
    PutSignal = 1,
    /// RDMA write with an immediate: ring number in the upper 8 bits, position in the lower 24.
    PutImm = 2,
    /// RDMA read.
    Get = 3,
    /// Adds `size` to 8 remote bytes and leaves what was there at `source`.
    FetchAdd = 4,
    /// Nothing; completes when all before it has.
    Flush = 5,
}

impl ProxyOp {
    /// Every operation.
    pub const ALL: &[Self] =
        &[Self::Put, Self::PutSignal, Self::PutImm, Self::Get, Self::FetchAdd, Self::Flush];

    /// Its name on the command line and in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutSignal => "put-signal",
            Self::PutImm => "put-imm",
            Self::Get => "get",
            Self::FetchAdd => "fetch-add",
            Self::Flush => "flush",
        }
    }

    pub(crate) const fn cpp(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutSignal => "put_signal",
            Self::PutImm => "put_imm",
            Self::Get => "get",
            Self::FetchAdd => "fetch_add",
            Self::Flush => "flush",
        }
    }
}

const OFFSET_BITS: u32 = 38;
const SIZE_BITS: u32 = 25;
const CHANNEL_SHIFT: u32 = 43;
const OP_SHIFT: u32 = 59;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// One request (`gic::Descriptor`). Offsets are into the channel's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// What to do.
    pub op: ProxyOp,
    /// Queue pair and regions.
    pub channel: u32,
    /// Bytes, 1 to [`Self::MAX_SIZE`]; of a fetch-and-add what is added.
    pub size: u64,
    /// Local offset.
    pub source: u64,
    /// Remote offset.
    pub destination: u64,
}

impl Descriptor {
    /// The most bytes that one descriptor moves.
    pub const MAX_SIZE: u64 = 1 << SIZE_BITS;
    /// The largest offset.
    pub const MAX_OFFSET: u64 = OFFSET_MASK;
    /// The bit of each half that belongs to the hand-off.
    pub const MARK: u64 = 1 << 63;

    /// From the two halves of a slot; marks are ignored. None: of no known kind.
    #[must_use]
    #[inline]
    pub fn unpack(low: u64, high: u64) -> Option<Self> {
        let op = match low >> OP_SHIFT & 0xf {
            0 => ProxyOp::Put,
            1 => ProxyOp::PutSignal,
            2 => ProxyOp::PutImm,
            3 => ProxyOp::Get,
            4 => ProxyOp::FetchAdd,
            5 => ProxyOp::Flush,
            _ => return None,
        };
        Some(Self {
            op,
            channel: (low >> CHANNEL_SHIFT) as u32 & 0xffff,
            size: ((high & !Self::MARK) >> OFFSET_BITS) + 1,
            source: low & OFFSET_MASK,
            destination: high & OFFSET_MASK,
        })
    }

    /// The two halves as the header packs them, without marks. Sizes and offsets out of range are cut.
    #[must_use]
    pub fn pack(&self) -> [u64; 2] {
        let mut words = [0; 2];
        // SAFETY: reads the descriptor, writes two words.
        unsafe { gic_host_pack(self, words.as_mut_ptr()) };
        words
    }
}

/// What the CPU tells producers (`gic::RingProgress`): offsets of its words in bytes.
pub mod progress {
    /// Slots of positions before it may be written again.
    pub const POSTED: usize = 0;
    /// All operations before it are done.
    pub const COMPLETED: usize = 64;
    /// Packed failure.
    pub const FAILURE: usize = 72;
    /// Bytes in all.
    pub const BYTES: usize = 128;
}

/// What producers keep among themselves (`gic::RingState`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct RingState {
    /// First position that nobody has reserved.
    pub head: u64,
    pad0: [u64; 7],
    /// Counters only: positions before it are published.
    pub ready: u64,
    pad1: [u64; 7],
    /// The host's word when it was last read.
    pub tail: u64,
    pad2: [u64; 7],
    /// A producer's own failure, packed.
    pub failure: u64,
    pad3: [u64; 7],
}

impl RingState {
    /// A ring whose first push has position `start`.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Self { head: start, ready: start, tail: start, ..Self::default() }
    }
}

/// Memory that a channel moves (`gic::ProxyChannel`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProxyChannel {
    /// Address of the local region's first byte.
    pub local: u64,
    /// Address of the remote region's first byte.
    pub remote: u64,
    /// Address of the signal word.
    pub signal: u64,
    /// Address of 8 local bytes: what a signal's atomic leaves.
    pub result: u64,
    /// Of the local region.
    pub lkey: u32,
    /// Of the remote region.
    pub rkey: u32,
    /// Of the signal word.
    pub signal_rkey: u32,
    /// Of the 8 local bytes.
    pub result_lkey: u32,
}

/// A ring as device code sees it (`gic::Ring`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RingView {
    /// 2^`log_depth` slots of 16 bytes; with [`Handoff::ProducerCounter`] the send queue.
    pub slots: *mut u8,
    /// One a slot, with [`Handoff::ValidByte`].
    pub flags: *mut u32,
    /// What the producer raises, with the counters.
    pub counter: *mut u64,
    /// `gic::RingProgress`, in host memory.
    pub progress: *mut u8,
    /// Producers' words.
    pub state: *mut RingState,
    /// One a channel.
    pub channels: *const ProxyChannel,
    /// Of every wait, in clock ticks.
    pub deadline: u64,
    /// See `slots`.
    pub log_depth: u32,
    /// See `channels`.
    pub channel_count: u32,
    /// Of the ring.
    pub number: u32,
    /// Of the send queue that the producer fills; otherwise 0.
    pub qpn: u32,
}

/// Arguments of the enqueue kernel (`gic::kernels::EnqueueArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EnqueueArgs {
    pub ring: *const RingView,
    pub rings: u32,
    pub threads: u32,
    pub channel: u32,
    pub bytes: u32,
    pub slots: u64,
    pub stride: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    pub local: u64,
    pub enqueue: *mut u64,
    pub total: *mut u64,
    pub failure: *mut u64,
    pub until: Until,
}

/// What is waited for after an operation, in time (`gic::kernels::Until`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Until {
    /// Its completion.
    #[default]
    Completed = 0,
    /// That the worker has posted it.
    Posted = 1,
}

/// Arguments of the rate kernel (`gic::kernels::ProxyRateArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ProxyRateArgs {
    pub ring: *const RingView,
    pub rings: u32,
    pub threads: u32,
    pub channels: u32,
    pub bytes: u32,
    pub ops: u64,
    pub warmup: u64,
    pub window: u64,
    pub first: u64,
    pub slots: u64,
    pub stride: u64,
    pub local: u64,
    pub start: *mut u64,
    pub end: *mut u64,
    pub failure: *mut u64,
}

/// Arguments of the round-trip kernel (`gic::kernels::ProxyRoundTripArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ProxyRoundTripArgs {
    pub ring: *const RingView,
    pub outbox: [*mut u64; 2],
    pub inbox: [*mut u64; 2],
    pub warmup: u64,
    pub samples: u64,
    pub deadline: u64,
    pub ticks: *mut u64,
    pub failure: *mut u64,
    pub first_side: u32,
    pub sides: u32,
}

const _: () = {
    assert!(size_of::<Descriptor>() == 32);
    assert!(size_of::<RingState>() == 256);
    assert!(size_of::<ProxyChannel>() == 48);
    assert!(size_of::<RingView>() == 72);
    assert!(size_of::<EnqueueArgs>() == 104);
    assert!(size_of::<ProxyRateArgs>() == 104);
    assert!(size_of::<ProxyRoundTripArgs>() == 88);
};

unsafe extern "C" {
    fn gic_host_enqueue(
        choice: *const ProxyChoice,
        op: u32,
        args: *const EnqueueArgs,
        thread: u32,
    ) -> bool;
    fn gic_host_proxy_rate(
        choice: *const ProxyChoice,
        args: *const ProxyRateArgs,
        thread: u32,
    ) -> bool;
    fn gic_host_proxy_round_trip(
        choice: *const ProxyChoice,
        args: *const ProxyRoundTripArgs,
        side: u32,
    ) -> bool;
    fn gic_host_push(
        choice: *const ProxyChoice,
        ring: *const RingView,
        descriptors: *const Descriptor,
        count: u64,
        ticket: *mut u64,
        failure: *mut u64,
    ) -> bool;
    fn gic_host_proxy_wait(
        choice: *const ProxyChoice,
        ring: *const RingView,
        ticket: u64,
        failure: *mut u64,
    ) -> bool;
    fn gic_host_producer_built(choice: *const ProxyChoice) -> bool;
    fn gic_host_pack(descriptor: *const Descriptor, words: *mut u64);
}

/// A kernel of the proxied path with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum ProxyKernel<'a> {
    /// One operation (a put, or a put with signal) at a time.
    Enqueue(ProxyOp, &'a EnqueueArgs),
    /// Many puts.
    Rate(&'a ProxyRateArgs),
    /// A thread a side, of as many sides as the arguments say.
    RoundTrip(&'a ProxyRoundTripArgs),
}

/// Runs `kernel` on threads of its own and returns when all have ended; as [`launch`](crate::host::launch).
///
/// # Errors
/// A combination that isn't built, or threads that can't be started. What the kernel itself met is in the
/// failure words of its arguments.
///
/// # Safety
/// Every pointer in the arguments, and in the ring views that they point to, is valid for what the kernel does
/// with it until this returns.
pub unsafe fn launch(
    choice: &ProxyChoice,
    kernel: ProxyKernel<'_>,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
) -> Result<(), LaunchError> {
    struct Shared<'a>(ProxyKernel<'a>);
    // SAFETY: the kernels are made for several threads; the caller vouches for the pointers.
    unsafe impl Sync for Shared<'_> {}

    let (name, threads) = match kernel {
        ProxyKernel::Enqueue(_, args) => ("enqueue", args.threads),
        ProxyKernel::Rate(args) => ("proxy rate", args.threads),
        ProxyKernel::RoundTrip(args) => ("proxy round trip", args.sides),
    };
    let shared = Shared(kernel);
    let built = on_threads(threads, cpus, relax, |thread| {
        let shared = &shared;
        // SAFETY: the caller's contract.
        unsafe {
            match shared.0 {
                ProxyKernel::Enqueue(op, args) => gic_host_enqueue(choice, op as u32, args, thread),
                ProxyKernel::Rate(args) => gic_host_proxy_rate(choice, args, thread),
                ProxyKernel::RoundTrip(args) => {
                    gic_host_proxy_round_trip(choice, args, args.first_side + thread)
                }
            }
        }
    })?;
    if built { Ok(()) } else { Err(LaunchError::ProxyNotBuilt { kernel: name, choice: *choice }) }
}

/// A producer's calls from the host: device code, one call at a time, on the calling thread.
pub struct HostProducer<'a> {
    choice: ProxyChoice,
    ring: &'a RingView,
    relax: Option<&'a dyn Relax>,
}

impl<'a> HostProducer<'a> {
    /// A producer on `ring`.
    ///
    /// # Errors
    /// The host build doesn't hold the choice.
    ///
    /// # Safety
    /// The view's pointers are valid while this value lives, and with [`Producers::One`] nobody else pushes to
    /// the ring meanwhile.
    pub unsafe fn new(
        choice: ProxyChoice,
        ring: &'a RingView,
        relax: Option<&'a dyn Relax>,
    ) -> Result<Self, LaunchError> {
        // SAFETY: reads the choice.
        if unsafe { gic_host_producer_built(&raw const choice) } {
            Ok(Self { choice, ring, relax })
        } else {
            Err(LaunchError::ProxyNotBuilt { kernel: "producer", choice })
        }
    }

    /// Pushes all of `descriptors`; with [`Handoff::MappedCounter`] raises the counter as often. Returns the
    /// last one's ticket.
    ///
    /// # Errors
    /// The first one's failure; those before it are pushed.
    pub fn push(&mut self, descriptors: &[Descriptor]) -> Result<u64, Failure> {
        let (mut ticket, mut failure) = (0, 0);
        let built = with_relax(self.relax, || {
            // SAFETY: `new`'s contract; the descriptors are read only.
            unsafe {
                gic_host_push(
                    &raw const self.choice,
                    self.ring,
                    descriptors.as_ptr(),
                    descriptors.len() as u64,
                    &raw mut ticket,
                    &raw mut failure,
                )
            }
        });
        debug_assert!(built, "`new` refuses what isn't built");
        Failure::unpack(failure).map_or(Ok(ticket), Err)
    }

    /// Waits for a ticket.
    ///
    /// # Errors
    /// What the ring met, or the deadline.
    pub fn wait(&mut self, ticket: u64) -> Result<(), Failure> {
        let mut failure = 0;
        let built = with_relax(self.relax, || {
            // SAFETY: `new`'s contract.
            unsafe {
                gic_host_proxy_wait(&raw const self.choice, self.ring, ticket, &raw mut failure)
            }
        });
        debug_assert!(built, "`new` refuses what isn't built");
        Failure::unpack(failure).map_or(Ok(()), Err)
    }

    /// Waits for all that was pushed to this ring.
    ///
    /// # Errors
    /// What the ring met, or the deadline.
    pub fn quiet(&mut self) -> Result<(), Failure> {
        self.wait(0)
    }
}
