//! Faults as text: `NAME[=VALUE][,KEY=VALUE]…`, one fault a text.
//!
//! | text | what |
//! |---|---|
//! | `fail=SYNDROME[,nth=N][,qp=NUMBER][,vendor=BYTE]` | the N-th WQE fails (the first), of a QP or of any |
//! | `drop-every=N` | every N-th packet is lost |
//! | `drop-random=N[,seed=NUMBER]` | one in N packets is lost, at random |
//! | `delay=TIME` | each WQE takes so much longer |
//! | `pause=FROM..UNTIL` | the engine stands still |
//! | `port-down[=FROM..UNTIL]` | nothing is sent and nothing received |
//! | `out-of-order[=SEED]` | writes are placed in random order |
//!
//! A syndrome is its name in words with dashes (`remote-access`), or its number. Of a time span one end may be left out.

use std::ops::RangeInclusive;
use std::str::FromStr;

use wire::NUMBER_MASK;
use wire::cqe::Syndrome;

use crate::config::{Nanos, Qpn};
use crate::fault::{FailWqe, Faults};

/// A text that is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// No such fault.
    #[error("there is no fault `{0}`; known are {list}", list = names())]
    Unknown(String),
    /// The fault has no such part.
    #[error("`{fault}` has no `{key}`; {}", known_keys(.fault))]
    Key {
        /// Which fault.
        fault: &'static str,
        /// What it hasn't got.
        key: String,
    },
    /// A part is missing.
    #[error("`{key}` needs a value: {wanted}")]
    Missing {
        /// Which part.
        key: &'static str,
        /// What it takes.
        wanted: String,
    },
    /// A part has a value that it can't have.
    #[error("`{key}={value}`: it takes {wanted}")]
    Value {
        /// Which part.
        key: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        wanted: String,
    },
    /// Something is given a second time.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
}

/// Each fault, and its parts.
const KNOWN: [(&str, &[&str]); 7] = [
    ("fail", &["nth", "qp", "vendor"]),
    ("drop-every", &[]),
    ("drop-random", &["seed"]),
    ("delay", &[]),
    ("pause", &[]),
    ("port-down", &[]),
    ("out-of-order", &[]),
];

fn names() -> String {
    KNOWN.map(|(name, _)| name).join(", ")
}

fn known_keys(fault: &str) -> String {
    match KNOWN.iter().find(|(name, _)| *name == fault) {
        Some((_, keys)) if !keys.is_empty() => format!("known are {}", keys.join(", ")),
        _ => "it has no parts".to_owned(),
    }
}

/// The name of a syndrome in these texts.
fn word_of(syndrome: Syndrome) -> String {
    syndrome.name().trim_end_matches(" error").to_lowercase().replace(' ', "-")
}

/// A part of a fault, and its value if it has one.
struct Part<'a> {
    key: &'static str,
    value: Option<&'a str>,
}

impl<'a> Part<'a> {
    fn value(&self, wanted: &str) -> Result<&'a str, FaultError> {
        let missing = || FaultError::Missing { key: self.key, wanted: wanted.to_owned() };
        self.value.ok_or_else(missing)
    }

    fn parse<T>(
        &self,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FaultError> {
        let value = self.value(wanted)?;
        let wrong = || FaultError::Value {
            key: self.key,
            value: value.to_owned(),
            wanted: wanted.to_owned(),
        };
        read(value).ok_or_else(wrong)
    }

    fn number(&self, range: RangeInclusive<u64>) -> Result<u64, FaultError> {
        let wanted = match *range.end() {
            u64::MAX => format!("a whole number from {} on", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        self.parse(&wanted, |text| number(text).filter(|number| range.contains(number)))
    }

    fn syndrome(&self) -> Result<Syndrome, FaultError> {
        let all: Vec<_> = Syndrome::ALL.iter().map(|&known| word_of(known)).collect();
        self.parse(&format!("a syndrome: {}", all.join(", ")), |text| {
            let named = Syndrome::ALL.iter().copied().find(|&known| word_of(known) == text);
            named.or_else(|| Syndrome::from_byte(u8::try_from(number(text)?).ok()?))
        })
    }

    fn span(&self) -> Result<(Nanos, Nanos), FaultError> {
        self.parse("two times, FROM..UNTIL, or one of them: 10ms..2s, 5s.., ..1s", |text| {
            let (from, until) = text.split_once("..")?;
            let end = |text: &str, otherwise| {
                if text.is_empty() { Some(otherwise) } else { time(text) }
            };
            let span = (end(from, 0)?, end(until, Nanos::MAX)?);
            (text != ".." && span.0 < span.1).then_some(span)
        })
    }
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, radix).ok().filter(|_| is_plain)
}

fn time(text: &str) -> Option<Nanos> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let scale = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "" if digits.bytes().all(|digit| digit == b'0') => 1,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// Sets what isn't set yet.
fn once<T>(slot: &mut Option<T>, value: T, name: &'static str) -> Result<(), FaultError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(FaultError::Twice(name)),
    }
}

impl Faults {
    /// Adds the fault that a text names.
    ///
    /// # Errors
    /// The text is no fault, or one that is there already; WQEs to fail may be many.
    pub fn add(&mut self, text: &str) -> Result<(), FaultError> {
        let mut parts = text.split(',').map(|part| match part.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (part, None),
        });
        let (name, value) = parts.next().unwrap_or_default();
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        let &(name, keys) = known.ok_or_else(|| FaultError::Unknown(name.to_owned()))?;
        let mut more: Vec<Part<'_>> = Vec::new();
        for (key, value) in parts {
            let known = keys.iter().find(|known| **known == key);
            let unknown = || FaultError::Key { fault: name, key: key.to_owned() };
            let &key = known.ok_or_else(unknown)?;
            if more.iter().any(|part| part.key == key) {
                return Err(FaultError::Twice(key));
            }
            more.push(Part { key, value });
        }
        let part = |key| more.iter().find(|part| part.key == key);
        let of = |key, range, otherwise| match part(key) {
            Some(part) => part.number(range),
            None => Ok(otherwise),
        };
        let first = Part { key: name, value };
        let count = 1..=u64::from(u32::MAX);
        match name {
            "fail" => {
                let qp = match part("qp") {
                    Some(part) => Some(part.number(1..=u64::from(NUMBER_MASK))?),
                    None => None,
                };
                self.fail.push(FailWqe {
                    syndrome: first.syndrome()?,
                    nth: of("nth", 1..=u64::MAX, 1)? - 1,
                    qpn: qp.map(|qp| Qpn(qp as u32)),
                    vendor: of("vendor", 0..=255, 0)? as u8,
                });
                Ok(())
            }
            "drop-every" => once(&mut self.drop_every, first.number(count)? as u32, name),
            "drop-random" => {
                let one_in = first.number(count)? as u32;
                once(&mut self.drop_random, (one_in, of("seed", 0..=u64::MAX, 1)?), name)
            }
            "delay" => {
                let delay = first.parse("a time above 0: 500ns, 20us, 3ms, 1s", |text| {
                    time(text).filter(|&time| time > 0)
                })?;
                let mut slot = Some(self.delay_ns).filter(|&delay| delay > 0);
                once(&mut slot, delay, name)?;
                self.delay_ns = delay;
                Ok(())
            }
            "pause" => once(&mut self.pause, first.span()?, name),
            "port-down" => {
                if self.port_down {
                    return Err(FaultError::Twice(name));
                }
                match value {
                    Some(_) => once(&mut self.down, first.span()?, name),
                    None if self.down.is_some() => Err(FaultError::Twice(name)),
                    None => {
                        self.port_down = true;
                        Ok(())
                    }
                }
            }
            _ => {
                let seed = if value.is_some() { first.number(0..=u64::MAX)? } else { 1 };
                once(&mut self.out_of_order_placement, seed, name)
            }
        }
    }
}

impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut faults = Self::default();
        faults.add(text)?;
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_faults() {
        let none = Faults::default;
        let fail = |syndrome, nth, qpn, vendor| Faults {
            fail: vec![FailWqe { qpn, nth, syndrome, vendor }],
            ..none()
        };
        for (text, faults) in [
            ("fail=remote-access", fail(Syndrome::RemoteAccess, 0, None, 0)),
            (
                "fail=0x15,vendor=0x81,nth=5,qp=0x1001",
                fail(Syndrome::TransportRetryExceeded, 4, Some(Qpn(0x1001)), 0x81),
            ),
            ("fail=rnr-retry-counter-exceeded", fail(Syndrome::RnrRetryExceeded, 0, None, 0)),
            ("drop-every=7", Faults { drop_every: Some(7), ..none() }),
            ("drop-random=10", Faults { drop_random: Some((10, 1)), ..none() }),
            ("drop-random=10,seed=3", Faults { drop_random: Some((10, 3)), ..none() }),
            ("delay=20us", Faults { delay_ns: 20_000, ..none() }),
            ("pause=0..1s", Faults { pause: Some((0, 1_000_000_000)), ..none() }),
            ("pause=500ns..2ms", Faults { pause: Some((500, 2_000_000)), ..none() }),
            ("pause=3s..", Faults { pause: Some((3_000_000_000, u64::MAX)), ..none() }),
            ("port-down", Faults { port_down: true, ..none() }),
            ("port-down=..1ms", Faults { down: Some((0, 1_000_000)), ..none() }),
            ("out-of-order", Faults { out_of_order_placement: Some(1), ..none() }),
            ("out-of-order=9", Faults { out_of_order_placement: Some(9), ..none() }),
        ] {
            assert_eq!(text.parse::<Faults>(), Ok(faults), "{text}");
        }
        for &syndrome in Syndrome::ALL {
            let text = format!("fail={}", word_of(syndrome));
            assert_eq!(text.parse(), Ok(fail(syndrome, 0, None, 0)), "{text}");
        }
    }

    #[test]
    fn what_is_no_fault_is_refused_by_the_part_that_is_wrong() {
        for (text, words) in [
            ("", &["``", "drop-every"] as &[&str]),
            ("drop-evry=7", &["`drop-evry`", "known are fail, drop-every"]),
            ("drop-every", &["`drop-every` needs a value", "from 1 to 4294967295"]),
            ("drop-every=0", &["`drop-every=0`", "from 1"]),
            ("drop-every=4294967296", &["`drop-every=4294967296`"]),
            ("drop-every=-1", &["`drop-every=-1`"]),
            ("drop-every=+1", &["`drop-every=+1`"]),
            ("drop-every=7,seed=1", &["`drop-every` has no `seed`", "no parts"]),
            ("drop-random=7,nth=1", &["`drop-random` has no `nth`", "known are seed"]),
            ("drop-random=7,seed", &["`seed` needs a value"]),
            ("drop-random=7,seed=1,seed=2", &["`seed` is given twice"]),
            ("fail", &["`fail` needs a value", "remote-access"]),
            ("fail=nonsense", &["`fail=nonsense`", "local-protection"]),
            ("fail=0x99", &["`fail=0x99`"]),
            ("fail=remote-access,nth=0", &["`nth=0`"]),
            ("fail=remote-access,qp=0x1000000", &["`qp=0x1000000`", "16777215"]),
            ("fail=remote-access,vendor=256", &["`vendor=256`", "255"]),
            ("fail=remote-access,,nth=1", &["`fail` has no ``", "nth, qp, vendor"]),
            ("delay=0s", &["`delay=0s`", "above 0"]),
            ("delay=5", &["`delay=5`", "20us"]),
            ("delay=99999999999s", &["`delay=99999999999s`"]),
            ("pause", &["`pause` needs a value", "FROM..UNTIL"]),
            ("pause=1s", &["`pause=1s`"]),
            ("pause=..", &["`pause=..`"]),
            ("pause=2s..1s", &["`pause=2s..1s`"]),
            ("port-down=yes", &["`port-down=yes`", "5s.."]),
            ("out-of-order=x", &["`out-of-order=x`"]),
        ] {
            let error = text
                .parse::<Faults>()
                .map_or_else(|error| error.to_string(), |faults| format!("{faults:?}"));
            for word in words {
                assert!(error.contains(word), "{text}: {error}");
            }
        }
    }

    #[test]
    fn a_nic_has_each_fault_once_and_any_number_of_wqes_to_fail() {
        let mut faults = Faults::default();
        for text in ["fail=remote-access", "fail=remote-access", "drop-every=3", "delay=1us"] {
            faults.add(text).unwrap();
        }
        assert_eq!(faults.fail.len(), 2);
        for (first, second) in [
            ("drop-every=3", "drop-every=4"),
            ("drop-random=3", "drop-random=3"),
            ("delay=1us", "delay=2us"),
            ("pause=1s..", "pause=..1s"),
            ("port-down", "port-down"),
            ("port-down", "port-down=1s.."),
            ("port-down=1s..", "port-down"),
            ("out-of-order", "out-of-order=2"),
        ] {
            let mut faults: Faults = first.parse().unwrap();
            assert!(matches!(faults.add(second), Err(FaultError::Twice(_))), "{first}, {second}");
        }
    }

    #[test]
    fn times_count_from_where_they_are_told_to() {
        let faults: Faults = "pause=1us..".parse().unwrap();
        assert_eq!(faults.counted_from(500).pause, Some((1_500, u64::MAX)));
        let faults = "port-down=1us..2us".parse::<Faults>().unwrap().counted_from(500);
        let down = [0, 1_499, 1_500, 2_499, 2_500].map(|now| faults.is_down(now));
        assert_eq!(down, [false, false, true, true, false]);
        let changes = [0, 1_500, 2_500].map(|now| faults.next_change(now));
        assert_eq!(changes, [Some(1_500), Some(2_500), None]);
    }
}
