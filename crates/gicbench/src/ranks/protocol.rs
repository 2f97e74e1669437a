//! What ranks say to each other.

use std::path::PathBuf;

use device::choice::Choice;
use device::loaded::Choices;
use device::proxy::ProxyChoice;
use rdma::remote::{Ask, Introduction, Tell};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A region by its numbers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RegionWords {
    pub address: u64,
    pub length: u64,
    pub lkey: u32,
    pub rkey: u32,
}

impl From<&rdma::Region> for RegionWords {
    fn from(region: &rdma::Region) -> Self {
        let rdma::Region { address, length, lkey, rkey, .. } = *region;
        Self { address, length, lkey, rkey }
    }
}

/// A point for its remote side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Told with every question about it: what is asked of an earlier one is refused.
    pub session: u64,
    /// The point as a record has it, in JSON.
    pub point: String,
    /// The settings of the run, in JSON.
    pub settings: String,
    /// Seconds until the point has to be over.
    pub left_s: f64,
    pub qps: u32,
    /// Worker threads that the remote side may need.
    pub workers: u32,
    /// CPUs that it may use.
    pub cpus: Vec<usize>,
    /// The memory that links software NICs.
    pub link: Option<PathBuf>,
    /// Rank 0's NIC.
    pub near: Introduction,
}

/// What the remote side answers with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// mini-gda's round trip.
    Gda { choice: Choice },
    /// A round trip of plain stores, in one process.
    Direct,
    /// mini-proxy's: from the first 8 bytes of the remote side's `outbox` into rank 0's `inbox`.
    Proxy { choice: ProxyChoice, outbox: RegionWords, inbox: RegionWords },
}

/// One launch of the answering half.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Launch {
    /// mini-gda's round trip: `inbox` is the remote side's, and `to` rank 0's.
    Gda { inbox: u64, to: (u64, u32), warmup: u64, samples: u64 },
    /// A round trip of plain stores: `inbox` is the remote side's, and `to` the near one's.
    Direct { inbox: u64, to: u64, warmup: u64, samples: u64 },
    /// mini-proxy's: the addresses are the remote side's.
    Proxy { outbox: u64, inbox: u64, warmup: u64, samples: u64 },
    /// Beside background traffic, on either path.
    Loaded(LoadWords),
}

/// What the answering half of `loaded` must know of its `Load`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct LoadWords {
    pub choices: Choices,
    pub background: u32,
    pub queues: u32,
    pub probe_queue: u32,
    pub bytes: u32,
    pub slots: u64,
    pub stride: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    /// Address of the slots at the remote side.
    pub target: u64,
    /// Where replies leave, at the remote side: address and key.
    pub outbox: (u64, u32),
    /// Where they arrive, at rank 0: address and key.
    pub inbox: (u64, u32),
}

/// A call from one rank to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Call {
    /// What it has.
    Describe,
    /// Begins a point.
    Open(Box<Open>),
    /// A question to the side's NIC.
    Nic { session: u64, ask: Ask },
    /// Makes the answering half.
    Prepare(Reply),
    /// Starts it, and doesn't wait for its end.
    Launch(Launch),
    /// Waits for the end of what was started.
    Finish { patience_s: f64 },
    /// Ends the point.
    Close,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Answer {
    Described {
        cpus: Vec<usize>,
        gpu: Option<String>,
    },
    /// The remote side's NIC.
    Opened(Introduction),
    Nic(Tell),
    Done,
    /// It broke.
    Failed(String),
    /// It can't be done there.
    NotRun(String),
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Only maps of unknown length can't be encoded, and there are none. Nothing decodes to a broken call.
    postcard::to_allocvec(value).unwrap_or_default()
}

pub(crate) enum Decoded<T> {
    Of(T),
    Broken(String),
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Decoded<T> {
    match postcard::from_bytes(bytes) {
        Ok(value) => Decoded::Of(value),
        Err(error) => Decoded::Broken(format!("a message that can't be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_are_read_as_they_were_written() {
        let launch = Launch::Gda { inbox: 1, to: (2, 3), warmup: 4, samples: 5 };
        for call in
            [Call::Describe, Call::Launch(launch), Call::Finish { patience_s: 0.5 }, Call::Close]
        {
            let Decoded::Of(read) = decode::<Call>(&encode(&call)) else { panic!("{call:?}") };
            assert_eq!(format!("{read:?}"), format!("{call:?}"));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Call>(&bytes);
            let _ = decode::<Answer>(&bytes);
        }
    }
}
