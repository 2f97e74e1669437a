//! The axes: every choice that a run can vary, its flag, and the words or numbers it may be.
//!
//! This table is the one place where a flag is spelled. The command line, the suite files, the run plan,
//! the records, the CSV columns and `gicbench list` are all made from it. To add an axis, add a variant
//! and its row.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::quantity::Bytes;
use crate::usage::{UsageError, nearest};

/// One axis. The order of the variants is the order of columns in every table and file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AxisId {
    /// Way of posting of a library's path.
    Variant,
    /// Library whose put mini-gda or mini-proxy is to make.
    Like,
    /// Step of that put that is left out.
    Without,
    /// Operation.
    Op,
    /// Payload of one operation, in bytes; set by `-b`, `-e` and `-f`.
    Payload,
    /// Transport service of the QPs.
    Conn,
    /// Ordering of WQE, doorbell record and doorbell.
    Order,
    /// How the submitter loads CQEs.
    CqLoad,
    /// Kind of completion queue.
    Cq,
    /// Payload carried in the WQE.
    Inline,
    /// Memory of the send queue, doorbell record and CQ.
    Queues,
    /// Memory of the send queue.
    Sq,
    /// Memory of the doorbell record.
    Record,
    /// Memory of the CQ.
    CqMemory,
    /// Memory of the doorbell page.
    DoorbellMemory,
    /// Memory of the payload.
    PayloadMemory,
    /// Queue pairs.
    Qps,
    /// How threads share a queue pair.
    Sharing,
    /// When the doorbell is rung.
    Doorbell,
    /// WQEs a doorbell.
    Batch,
    /// What a quiet waits for.
    Scope,
    /// How a payload is moved without a NIC.
    Move,
    /// Way a descriptor passes from the GPU to the proxy.
    Handoff,
    /// Producing threads.
    Producers,
    /// How a producer reserves slots of a proxy ring.
    Reserve,
    /// How a producer learns of room in a proxy ring.
    Progress,
    /// What the store of a descriptor orders.
    Publish,
    /// Proxy rings (R).
    Rings,
    /// Proxy worker threads (T).
    Workers,
    /// Longest chain of work requests a post (B).
    Chain,
    /// One signalled work request in so many.
    SignalEvery,
    /// CTAs that put beside a latency probe.
    Ctas,
    /// Queue of a latency probe.
    ProbeQueue,
    /// Payload of one background operation, in bytes.
    BackgroundPayload,
    /// Operations of a background CTA that are outstanding, at most.
    Window,
    /// Operations a second of each background CTA.
    Pace,
    /// Timing profile of the software NIC.
    Profile,
}

/// What may stand on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// One of these words.
    Words(&'static [&'static str]),
    /// A name of one of the libraries' ways of posting, or of a group of them.
    Variants,
    /// A whole number within the bounds, both included.
    Count {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// A size in bytes within the bounds, both included; K, M and G are powers of two.
    Bytes {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
}

/// One value on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A number of things.
    Count(u64),
    /// A size.
    Bytes(u64),
    /// A word of the axis' vocabulary.
    Word(&'static str),
}

/// A row of the axis table.
#[derive(Debug)]
pub struct Axis {
    /// The axis.
    pub id: AxisId,
    /// Its name in records and, but for the payload, its flag without the dashes.
    pub name: &'static str,
    /// Its values.
    pub domain: Domain,
    /// One line of help.
    pub help: &'static str,
}

const fn count(min: u64, max: u64) -> Domain {
    Domain::Count { min, max }
}

/// Every axis, in the order of [`AxisId`].
pub const AXES: &[Axis] = &[
    Axis {
        id: AxisId::Variant,
        name: "variant",
        domain: Domain::Variants,
        help: "way of posting of a library: own (each of the library's own), steps (those that leave a step out, to \
               tell what it costs), default, all, or names",
    },
    Axis {
        id: AxisId::Like,
        name: "like",
        domain: Domain::Words(&[
            "none",
            "nvshmem",
            "nvshmem-internal",
            "gdaki-exclusive",
            "gdaki-cta",
            "gdaki",
            "deepep",
            "nvshmem-proxy",
            "gin-proxy",
            "mscclpp",
            "uccl-ep",
            "fabric-lib",
        ]),
        help: "mini-gda or mini-proxy makes the put of that library: its choices in the smallest code",
    },
    Axis {
        id: AxisId::Without,
        name: "without",
        domain: Domain::Words(&[
            "none",
            "call",
            "queue",
            "keys",
            "reserve",
            "space",
            "ready-fence",
            "ready",
            "lock",
            "producer",
            "early-doorbell",
            "record-fence",
            "doorbell-fence",
            "payload-order",
            "handler",
            "parts",
            "group",
            "target",
            "stack",
        ]),
        help: "a step of the put that --like names is left out, to tell what it costs",
    },
    Axis {
        id: AxisId::Op,
        name: "op",
        domain: Domain::Words(&["put", "get", "atomic", "put-signal"]),
        help: "operation",
    },
    Axis {
        id: AxisId::Payload,
        name: "payload",
        domain: Domain::Bytes { min: 1, max: 1 << 30 },
        help: "payload of one operation, set by -b, -e and -f",
    },
    Axis {
        id: AxisId::Conn,
        name: "conn",
        domain: Domain::Words(&["rc", "dc"]),
        help: "transport service of the queue pairs",
    },
    Axis {
        id: AxisId::Order,
        name: "order",
        domain: Domain::Words(&[
            "none",
            "gpu-release",
            "gpu-fence",
            "release-fence-mmio",
            "system-fence",
            "async-mmio",
        ]),
        help: "ordering of WQE, doorbell record and doorbell",
    },
    Axis {
        id: AxisId::CqLoad,
        name: "cq-load",
        domain: Domain::Words(&["plain", "acquire"]),
        help: "how the submitter loads a CQE",
    },
    Axis {
        id: AxisId::Cq,
        name: "cq",
        domain: Domain::Words(&["ring", "collapsed"]),
        help: "kind of completion queue",
    },
    Axis {
        id: AxisId::Inline,
        name: "inline",
        domain: Domain::Words(&["off", "on"]),
        help: "payload carried in the WQE",
    },
    Axis {
        id: AxisId::Queues,
        name: "queues",
        domain: Domain::Words(&["auto", "host", "gpu"]),
        help: "memory of send queue, doorbell record and CQ; auto: what suits the NIC",
    },
    Axis {
        id: AxisId::Sq,
        name: "sq",
        domain: Domain::Words(&["auto", "host", "gpu"]),
        help: "memory of the send queue",
    },
    Axis {
        id: AxisId::Record,
        name: "record",
        domain: Domain::Words(&["auto", "host", "gpu"]),
        help: "memory of the doorbell record",
    },
    Axis {
        id: AxisId::CqMemory,
        name: "cq-memory",
        domain: Domain::Words(&["auto", "host", "gpu"]),
        help: "memory of the CQ",
    },
    Axis {
        id: AxisId::DoorbellMemory,
        name: "doorbell-memory",
        domain: Domain::Words(&["auto", "host", "gpu"]),
        help: "memory of the doorbell page",
    },
    Axis {
        id: AxisId::PayloadMemory,
        name: "payload-memory",
        domain: Domain::Words(&["auto", "host", "gpu"]),
        help: "memory of the payload",
    },
    Axis { id: AxisId::Qps, name: "qps", domain: count(1, 4096), help: "queue pairs" },
    Axis {
        id: AxisId::Sharing,
        name: "sharing",
        domain: Domain::Words(&["exclusive", "thread", "warp"]),
        help: "how threads share a queue pair: not at all, each reserves and publishes in order, a warp \
               together",
    },
    Axis {
        id: AxisId::Doorbell,
        name: "doorbell",
        domain: Domain::Words(&["fixed", "threshold", "caller", "every-nth"]),
        help: "when the doorbell is rung: every batch, NVSHMEM's threshold, when the caller says, every \
               n-th WQE of a queue with a forced last",
    },
    Axis { id: AxisId::Batch, name: "batch", domain: count(1, 4096), help: "WQEs a doorbell" },
    Axis {
        id: AxisId::Scope,
        name: "scope",
        domain: Domain::Words(&["one", "used", "all"]),
        help: "queue pairs that a quiet waits for",
    },
    Axis {
        id: AxisId::Move,
        name: "move",
        domain: Domain::Words(&["store", "bulk"]),
        help: "how a payload is moved without a NIC: stores, or bulk copies (TMA)",
    },
    Axis {
        id: AxisId::Handoff,
        name: "handoff",
        domain: Domain::Words(&[
            "valid-byte",
            "nonzero-word",
            "lap-parity",
            "producer-counter",
            "mapped-counter",
            "gpu-flag",
        ]),
        help: "way a descriptor passes from the GPU to the proxy",
    },
    Axis {
        id: AxisId::Producers,
        name: "producers",
        domain: count(1, 1024),
        help: "producing threads",
    },
    Axis {
        id: AxisId::Reserve,
        name: "reserve",
        domain: Domain::Words(&["owned", "atomic"]),
        help: "how a producer reserves slots: a ring of its own without atomics, or a fetch-and-add",
    },
    Axis {
        id: AxisId::Progress,
        name: "progress",
        domain: Domain::Words(&["cached", "read"]),
        help: "how a producer learns of room: the proxy's word is read when the ring seems full, or for \
               every push",
    },
    Axis {
        id: AxisId::Publish,
        name: "publish",
        domain: Domain::Words(&["release", "posted"]),
        help: "what a descriptor's store orders: the thread's earlier writes, or nothing",
    },
    Axis { id: AxisId::Rings, name: "rings", domain: count(1, 1024), help: "proxy rings" },
    Axis {
        id: AxisId::Workers,
        name: "workers",
        domain: count(1, 64),
        help: "proxy worker threads",
    },
    Axis {
        id: AxisId::Chain,
        name: "chain",
        domain: count(1, 256),
        help: "longest chain of work requests a post",
    },
    Axis {
        id: AxisId::SignalEvery,
        name: "signal-every",
        domain: count(1, 4096),
        help: "one signalled work request in so many",
    },
    Axis {
        id: AxisId::Ctas,
        name: "ctas",
        domain: count(0, 1024),
        help: "CTAs (host: threads) that put beside a latency probe",
    },
    Axis {
        id: AxisId::ProbeQueue,
        name: "probe-queue",
        domain: Domain::Words(&["shared", "private", "private-worker"]),
        help: "queue pair or ring of a latency probe: the background's, its own, its own with a proxy worker \
               of its own",
    },
    Axis {
        id: AxisId::BackgroundPayload,
        name: "background-payload",
        domain: Domain::Bytes { min: 1, max: 1 << 25 },
        help: "payload of one background operation",
    },
    Axis {
        id: AxisId::Window,
        name: "window",
        domain: count(1, 64),
        help: "operations of a background CTA that are outstanding, at most",
    },
    Axis {
        id: AxisId::Pace,
        name: "pace",
        domain: count(0, 1_000_000_000),
        help: "operations a second of each background CTA; 0: as many as it can",
    },
    Axis {
        id: AxisId::Profile,
        name: "profile",
        domain: Domain::Words(&["none", "cx7-ndr200"]),
        help: "timing profile of the software NIC",
    },
];

impl AxisId {
    /// This axis' row.
    pub fn spec(self) -> &'static Axis {
        // The table has a row a variant, in order; a test holds it to that.
        &AXES[self as usize]
    }

    /// Name in records and files.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The flag that sets it, as a user types it.
    pub fn flag(self) -> String {
        match self {
            AxisId::Payload => "-b/-e".to_owned(),
            _ => format!("--{}", self.name()),
        }
    }

    /// The axis of that name.
    pub fn by_name(name: &str) -> Option<AxisId> {
        AXES.iter().find(|axis| axis.name == name).map(|axis| axis.id)
    }

    /// Reads one value.
    ///
    /// # Errors
    /// The value is not in the axis' domain; names the nearest that are.
    pub fn parse(self, text: &str) -> Result<Value, UsageError> {
        let spec = self.spec();
        let unknown = |why: String, nearest: Vec<String>| UsageError::UnknownValue {
            flag: self.flag(),
            value: text.to_owned(),
            why,
            nearest,
        };
        let bounded = |number: u64, min: u64, max: u64, show: &dyn Fn(u64) -> String| {
            if number < min {
                Err(unknown(format!("the least is {}", show(min)), vec![show(min)]))
            } else if number > max {
                Err(unknown(format!("the greatest is {}", show(max)), vec![show(max)]))
            } else {
                Ok(number)
            }
        };
        match spec.domain {
            Domain::Words(_) | Domain::Variants => {
                let words = spec.domain.words();
                words.iter().find(|word| **word == text).map(|word| Value::Word(word)).ok_or_else(
                    || unknown("no such word".to_owned(), nearest(text, words.iter().copied())),
                )
            }
            Domain::Count { min, max } => {
                let number = text
                    .parse()
                    .map_err(|_| unknown("not a whole number".to_owned(), vec![min.to_string()]))?;
                bounded(number, min, max, &|n| n.to_string()).map(Value::Count)
            }
            Domain::Bytes { min, max } => {
                let bytes: Bytes = text
                    .parse()
                    .map_err(|error| unknown(format!("{error}"), vec!["8".into(), "4K".into()]))?;
                bounded(bytes.0, min, max, &|n| Bytes(n).to_string()).map(Value::Bytes)
            }
        }
    }

    /// Reads a comma list; a value given twice counts once.
    ///
    /// # Errors
    /// An empty list, or a value outside the domain.
    pub fn parse_list(self, text: &str) -> Result<Vec<Value>, UsageError> {
        let mut values = Vec::new();
        for item in text.split(',') {
            let value = self.parse(item.trim())?;
            if !values.contains(&value) {
                values.push(value);
            }
        }
        Ok(values)
    }
}

impl Domain {
    /// Its words; none for numbers.
    pub fn words(&self) -> &'static [&'static str] {
        match self {
            Domain::Words(words) => words,
            Domain::Variants => crate::peer::variants(),
            Domain::Count { .. } | Domain::Bytes { .. } => &[],
        }
    }

    /// The domain in words, for help and messages.
    pub fn describe(&self) -> String {
        match self {
            Domain::Words(words) => words.join("|"),
            Domain::Variants => format!("{}|NAME", crate::peer::GROUPS.join("|")),
            Domain::Count { min, max } => format!("{min}..{max}"),
            Domain::Bytes { min, max } => format!("{}..{}", Bytes(*min), Bytes(*max)),
        }
    }
}

impl Value {
    /// The number, of a count or a size.
    pub fn number(self) -> Option<u64> {
        match self {
            Value::Count(n) | Value::Bytes(n) => Some(n),
            Value::Word(_) => None,
        }
    }

    /// The word.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }
}

impl fmt::Display for AxisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for AxisId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(n) => n.fmt(f),
            Value::Bytes(n) => Bytes(*n).fmt(f),
            Value::Word(word) => f.pad(word),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Count(n) | Value::Bytes(n) => serializer.serialize_u64(*n),
            Value::Word(word) => serializer.serialize_str(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_a_variant_in_order_and_no_name_twice() {
        for (index, axis) in AXES.iter().enumerate() {
            assert_eq!(axis.id as usize, index, "{}", axis.name);
            assert_eq!(AxisId::by_name(axis.name), Some(axis.id));
            assert_eq!(axis.id.spec().name, axis.name);
        }
    }

    #[test]
    fn words_are_those_of_the_rooms_that_take_them() {
        use device::choice;
        let words = |axis: AxisId| axis.spec().domain.words().to_vec();
        macro_rules! same {
            ($axis:ident, $of:ty) => {
                let names: Vec<&str> = <$of>::ALL.iter().map(|value| value.name()).collect();
                assert_eq!(words(AxisId::$axis), names);
            };
        }
        same!(Order, choice::Order);
        same!(CqLoad, choice::CqLoad);
        same!(Cq, choice::CqKind);
        same!(Sharing, choice::Sharing);
        same!(Conn, choice::Transport);
        same!(Progress, device::proxy::Progress);
        same!(Publish, device::proxy::Publish);
        let or_none = |names: Vec<&'static str>| [vec!["none"], names].concat();
        use device::like::{Peer, Step};
        let sorted = |mut words: Vec<&'static str>| {
            words.sort_unstable();
            words
        };
        let peers = Peer::ALL.iter().map(|peer| peer.name()).collect();
        assert_eq!(sorted(words(AxisId::Like)), sorted(or_none(peers)));
        let steps = Step::ALL.iter().map(|step| step.name()).collect();
        assert_eq!(words(AxisId::Without), or_none(steps));
        let profiles: Vec<&str> = softnic::Profile::ALL.iter().map(|p| p.name).collect();
        assert_eq!(words(AxisId::Profile), profiles);
    }

    #[test]
    fn values_of_the_domain_are_read_and_printed_alike() {
        for (axis, text, value) in [
            (AxisId::Order, "gpu-release", Value::Word("gpu-release")),
            (AxisId::Qps, "128", Value::Count(128)),
            (AxisId::Payload, "4K", Value::Bytes(4096)),
            (AxisId::Payload, "7", Value::Bytes(7)),
        ] {
            assert_eq!(axis.parse(text).unwrap(), value);
            assert_eq!(value.to_string(), text);
        }
    }

    #[test]
    fn values_outside_the_domain_name_the_nearest_inside() {
        for (axis, text, near) in [
            (AxisId::Order, "gpu-releas", "gpu-release"),
            (AxisId::Qps, "0", "1"),
            (AxisId::Qps, "5000", "4096"),
            (AxisId::Payload, "2G", "1G"),
            (AxisId::Payload, "0", "1"),
            (AxisId::Sharing, "warps", "warp"),
        ] {
            let error = axis.parse(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(near), "{error}");
            assert!(error.contains(&axis.flag()), "{error}");
        }
        for text in ["", "x", "-1", "1.5", "18446744073709551616"] {
            assert!(AxisId::Qps.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_keeps_its_order_and_counts_a_repeated_value_once() {
        let list = AxisId::Qps.parse_list("4, 1,4").unwrap();
        assert_eq!(list, [Value::Count(4), Value::Count(1)]);
        assert!(AxisId::Qps.parse_list("4,,1").is_err());
        assert!(AxisId::Qps.parse_list("").is_err());
    }
}
