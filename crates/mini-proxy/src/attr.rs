//! What a proxy is asked for, and what is wrong with it.

use std::time::Duration;

use device::clock::Clock;
use device::like::Like;
use device::proxy::{Descriptor, Handoff, ProxyChoice, ProxyOp};
use device::view::Failure;
use rdma::{ConnectAttr, Place, Region};

/// Who runs the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// Whoever waits: for few cores, and for tests that must not depend on the scheduler.
    #[default]
    Stepped,
    /// A thread a worker; worker `i` is pinned to `cpus[i % cpus.len()]`, if there are any.
    Threads {
        /// The CPUs.
        cpus: Vec<usize>,
    },
}

/// What descriptors with one channel number move.
#[derive(Clone, Debug)]
pub struct ChannelAttr {
    /// Registered at the near NIC.
    pub local: Region,
    /// Registered at the far NIC.
    pub remote: Region,
    /// Region and offset of the 8 bytes that a put with signal adds to, if there are any.
    pub signal: Option<(Region, u64)>,
}

/// A proxy to make.
#[derive(Clone, Debug)]
pub struct ProxyAttr {
    /// Choices that device code will be compiled for.
    pub choice: ProxyChoice,
    /// Rings, `R`; ring `i` belongs to worker `i % workers`.
    pub rings: u32,
    /// Slots of a ring, a power of two. With [`Handoff::ProducerCounter`] the send queue is the ring.
    pub depth: u32,
    /// Workers, `T`. Each has a queue pair of its own to each channel.
    pub workers: u32,
    /// Work requests in a chain at most, `B`.
    pub chain: u32,
    /// One completion for so many work requests; a chain that ends with nothing behind it asks for one too.
    pub signal_every: u32,
    /// log2 of each send queue's 64-byte blocks.
    pub log_blocks: u32,
    /// Channels, by number.
    pub channels: Vec<ChannelAttr>,
    /// [`Handoff::MappedCounter`]: the requests that raising the counter asks for, one after the other and
    /// from the beginning again.
    pub requests: Vec<Descriptor>,
    /// log2 of the receives that each peer's queue pair holds, for immediates; none without.
    pub log_receives: Option<u32>,
    /// Who runs the workers.
    pub drive: Drive,
    /// Of every wait in device code.
    pub deadline: Duration,
    /// First position of each ring; tests start near a wrap.
    pub start: u64,
    /// First block index of each send queue.
    pub sq_start: u64,
    /// Timers and retries.
    pub connect: ConnectAttr,
    /// Where rings and queues are made: memory that workers can follow, and producers too.
    pub rings_in: Place,
    /// Where the views, and the positions that producers keep, are made.
    pub state: Place,
    /// The clock that device code reads: deadlines are in its ticks.
    pub clock: Clock,
}

impl Default for ProxyAttr {
    fn default() -> Self {
        Self {
            choice: ProxyChoice::default(),
            rings: 1,
            depth: 512,
            workers: 1,
            chain: 16,
            signal_every: 1,
            log_blocks: 10,
            channels: Vec::new(),
            requests: Vec::new(),
            log_receives: None,
            drive: Drive::Stepped,
            deadline: Duration::from_secs(10),
            start: 0,
            sq_start: 0,
            connect: ConnectAttr::default(),
            rings_in: Place::Host,
            state: Place::Host,
            clock: Clock::host(),
        }
    }
}

/// Why there is no proxy, or why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// No rings were asked for.
    #[error("a proxy needs at least one ring (`rings`)")]
    NoRings,
    /// No workers were asked for.
    #[error("a proxy needs at least one worker (`workers`)")]
    NoWorkers,
    /// No channels were asked for.
    #[error("a proxy needs 1 to 65536 channels (`channels`), and was given {channels}")]
    Channels {
        /// How many were.
        channels: usize,
    },
    /// More workers than rings: a ring belongs to one worker, so some would never have work.
    #[error(
        "{workers} workers on {rings} rings: some would have nothing to do; ask for at most one a ring"
    )]
    IdleWorkers {
        /// Workers.
        workers: u32,
        /// Rings.
        rings: u32,
    },
    /// More rings than immediates can name.
    #[error("{rings} rings: at most {max} are possible")]
    TooManyRings {
        /// Rings.
        rings: u32,
        /// The most.
        max: u32,
    },
    /// A depth that isn't a power of two.
    #[error(
        "a ring of {depth} slots: the depth must be a power of two from 2 to {max}; {nearest} is the nearest"
    )]
    RingDepth {
        /// What was asked for.
        depth: u32,
        /// The most.
        max: u32,
        /// The nearest that can be had.
        nearest: u32,
    },
    /// A chain that no send queue could take.
    #[error(
        "chains of {chain} work requests don't go with a send queue of {blocks}: a chain has at least one, and at \
         most half of what the queue holds"
    )]
    Chain {
        /// What was asked for.
        chain: u32,
        /// The send queue's blocks.
        blocks: u32,
    },
    /// Completions too rare for the send queue.
    #[error(
        "one completion in {every} doesn't go with a send queue of {blocks}: at least one in half a queue is needed, \
         or its space never comes back"
    )]
    SignalEvery {
        /// What was asked for.
        every: u32,
        /// The send queue's blocks.
        blocks: u32,
    },
    /// A combination of choices that means nothing.
    #[error("publish `posted` goes with hand-off `lap-parity` only, not with `{handoff}`")]
    Publish {
        /// The hand-off.
        handoff: Handoff,
    },
    /// No requests for raising a counter to ask for, or requests where descriptors are pushed.
    #[error(
        "hand-off `{handoff}` with {requests} known requests: `mapped-counter` needs some, the others none"
    )]
    Requests {
        /// The hand-off.
        handoff: Handoff,
        /// How many were given.
        requests: usize,
    },
    /// A known request that can't be served.
    #[error("known request {index}: {why}")]
    BadRequest {
        /// Which.
        index: usize,
        /// What is wrong with it.
        why: Failure,
    },
    /// A signal word that can't be added to.
    #[error(
        "channel {channel}: the signal word at offset {offset} isn't 8 aligned bytes of its region"
    )]
    Signal {
        /// Which channel.
        channel: usize,
        /// Its offset.
        offset: u64,
    },
    /// A put that GPU threads post themselves.
    #[error("puts like {like} are posted by GPU threads: mini-gda has them")]
    NotProxied {
        /// Whose put.
        like: Like,
    },
    /// No threads to put.
    #[error("a proxy needs at least one producer (`producers`)")]
    NoProducers,
    /// Regions whose offsets a library's slot can't hold.
    #[error("a region of {bytes} bytes: a slot of puts like {like} has {bits} bits for offsets")]
    LikeOffsets {
        /// Whose put.
        like: Like,
        /// Of the region.
        bytes: u64,
        /// For an offset.
        bits: u32,
    },
    /// The NIC refused.
    #[error("{what}: {source}")]
    Nic {
        /// What was being made.
        what: String,
        /// Its answer.
        source: rdma::Error,
    },
    /// A worker's thread could not be started.
    #[error("worker {worker}'s thread can't be started: {source}")]
    Thread {
        /// Which.
        worker: u32,
        /// What the system says.
        source: std::io::Error,
    },
    /// Device code gave up, or the worker did.
    #[error("{failure}{}", cause.as_deref().map(|c| format!("; the NIC says: {c}")).unwrap_or_default())]
    Device {
        /// What was met.
        failure: Failure,
        /// The queue pair's first cause, as the NIC knows it.
        cause: Option<String>,
    },
}

/// Immediates name the ring in 8 bits.
const MAX_RINGS: u32 = 256;
const MAX_DEPTH: u32 = 1 << 20;

impl ProxyAttr {
    pub(crate) fn check(&self) -> Result<(), ProxyError> {
        if self.rings == 0 {
            return Err(ProxyError::NoRings);
        }
        if self.workers == 0 {
            return Err(ProxyError::NoWorkers);
        }
        if self.rings > MAX_RINGS {
            return Err(ProxyError::TooManyRings { rings: self.rings, max: MAX_RINGS });
        }
        if self.workers > self.rings {
            return Err(ProxyError::IdleWorkers { workers: self.workers, rings: self.rings });
        }
        if self.channels.is_empty() || self.channels.len() > 1 << 16 {
            return Err(ProxyError::Channels { channels: self.channels.len() });
        }
        if !self.depth.is_power_of_two() || !(2..=MAX_DEPTH).contains(&self.depth) {
            let near = self.depth.clamp(2, MAX_DEPTH);
            let (up, down) = (near.next_power_of_two(), near.next_power_of_two() / 2);
            let nearest = if down >= 2 && near - down < up - near { down } else { up };
            return Err(ProxyError::RingDepth { depth: self.depth, max: MAX_DEPTH, nearest });
        }
        // The NIC says what is wrong with a size that it can't have.
        let blocks = 1u32 << self.log_blocks.min(31);
        if self.chain == 0 || self.chain > blocks / 2 {
            return Err(ProxyError::Chain { chain: self.chain, blocks });
        }
        if self.signal_every == 0 || self.signal_every > blocks / 2 {
            return Err(ProxyError::SignalEvery { every: self.signal_every, blocks });
        }
        let handoff = self.choice.handoff;
        if self.choice.publish != device::proxy::Publish::Release && handoff != Handoff::LapParity {
            return Err(ProxyError::Publish { handoff });
        }
        if (handoff == Handoff::MappedCounter) == self.requests.is_empty() {
            return Err(ProxyError::Requests { handoff, requests: self.requests.len() });
        }
        for (channel, attr) in self.channels.iter().enumerate() {
            if let Some((region, offset)) = &attr.signal
                && !region.at(*offset, 8).is_ok_and(|address| address.is_multiple_of(8))
            {
                return Err(ProxyError::Signal { channel, offset: *offset });
            }
        }
        for (index, request) in self.requests.iter().enumerate() {
            self.check_request(request).map_err(|why| ProxyError::BadRequest { index, why })?;
        }
        Ok(())
    }

    fn check_request(&self, request: &Descriptor) -> Result<(), Failure> {
        let refused = |why| Failure { why, qpn: 0, index: 0, syndrome: 0, vendor: 0 };
        let sized =
            request.op == ProxyOp::Flush || (1..=Descriptor::MAX_SIZE).contains(&request.size);
        if !sized {
            return Err(refused(device::view::Why::BadLength));
        }
        let Some(channel) = self.channels.get(request.channel as usize) else {
            return Err(refused(device::view::Why::BadChannel));
        };
        crate::worker::Channel::of(channel, 0, 0, 0).check(request).map_err(refused)
    }
}
