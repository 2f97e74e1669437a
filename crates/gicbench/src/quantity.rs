//! Typed quantities, with their units and the way they are read and printed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A text that isn't the quantity asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a size.
    #[error("not a size: write bytes, or a whole number with K, M or G (powers of two)")]
    Size,
    /// Not a time.
    #[error("not a time: write a number with us, ms, s or m, such as 500ms or 2s")]
    Time,
    /// More than the type holds.
    #[error("too large")]
    TooLarge,
}

/// A size in bytes. K, M and G are powers of two, as in nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let text = text.strip_suffix(['B', 'b']).unwrap_or(text);
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Size);
        }
        let number: u64 = digits.parse().map_err(|_| QuantityError::TooLarge)?;
        number.checked_mul(1 << shift).map(Bytes).ok_or(QuantityError::TooLarge)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scaled = [(30, 'G'), (20, 'M'), (10, 'K')]
            .into_iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        match scaled {
            Some((shift, unit)) => f.pad(&format!("{}{unit}", self.0 >> shift)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// Reads a time: a number and one of `us`, `ms`, `s`, `m`; a bare number is seconds.
///
/// # Errors
/// Not a number, not positive, or not finite.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(QuantityError::Time),
    };
    let number: f64 = number.trim().parse().map_err(|_| QuantityError::Time)?;
    let seconds = number * scale;
    if !seconds.is_finite() || seconds <= 0.0 {
        return Err(QuantityError::Time);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| QuantityError::TooLarge)
}

/// The unit of a metric. Samples of a metric are plain numbers in this unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Million messages a second.
    MMsgs,
    /// 10^9 bytes a second.
    GBs,
}

impl Unit {
    /// As printed in heads and records.
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::Micros => "us",
            Unit::MMsgs => "Mmsg/s",
            Unit::GBs => "GB/s",
        }
    }

    /// Whether a smaller number is the better one.
    pub fn less_is_better(self) -> bool {
        matches!(self, Unit::Micros)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.symbol())
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.symbol())
    }
}

/// A sample in the unit of its metric; the constructors do the conversions, once.
pub trait Sample {
    /// The unit that [`Sample::number`] is in.
    const UNIT: Unit;
    /// The bare number.
    fn number(self) -> f64;
}

/// A time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Micros(pub f64);

impl Micros {
    /// From nanoseconds.
    pub fn from_nanos(nanos: f64) -> Self {
        Micros(nanos / 1e3)
    }

    /// From clock ticks at a frequency in Hz.
    pub fn from_ticks(ticks: u64, hertz: f64) -> Self {
        Micros(ticks as f64 * 1e6 / hertz)
    }
}

impl From<Duration> for Micros {
    fn from(duration: Duration) -> Self {
        Micros(duration.as_secs_f64() * 1e6)
    }
}

/// A message rate in 10^6 messages a second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct MMsgs(pub f64);

impl MMsgs {
    /// Messages in a time. Zero time gives infinity, which no summary accepts.
    pub fn over(messages: u64, time: Duration) -> Self {
        MMsgs(messages as f64 / time.as_secs_f64() / 1e6)
    }
}

/// A bandwidth in 10^9 bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct GBs(pub f64);

impl GBs {
    /// Bytes in a time. Zero time gives infinity, which no summary accepts.
    pub fn over(bytes: u64, time: Duration) -> Self {
        GBs(bytes as f64 / time.as_secs_f64() / 1e9)
    }
}

impl Sample for Micros {
    const UNIT: Unit = Unit::Micros;
    fn number(self) -> f64 {
        self.0
    }
}

impl Sample for MMsgs {
    const UNIT: Unit = Unit::MMsgs;
    fn number(self) -> f64 {
        self.0
    }
}

impl Sample for GBs {
    const UNIT: Unit = Unit::GBs;
    fn number(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_and_print_as_they_are_read() {
        for (text, bytes, printed) in [
            ("8", 8, "8"),
            ("1K", 1 << 10, "1K"),
            ("1k", 1 << 10, "1K"),
            ("4KB", 4096, "4K"),
            ("1M", 1 << 20, "1M"),
            ("3G", 3 << 30, "3G"),
            ("1500", 1500, "1500"),
            ("1536K", 1536 << 10, "1536K"),
            ("0", 0, "0"),
        ] {
            let parsed: Bytes = text.parse().unwrap();
            assert_eq!(parsed, Bytes(bytes), "{text}");
            assert_eq!(parsed.to_string(), printed);
            assert_eq!(printed.parse::<Bytes>().unwrap(), parsed);
        }
        for text in ["", "K", "-1", "+8", "1.5K", "8X", "8 K"] {
            assert_eq!(text.parse::<Bytes>(), Err(QuantityError::Size), "{text}");
        }
        for text in ["18446744073709551616", "17179869184G"] {
            assert_eq!(text.parse::<Bytes>(), Err(QuantityError::TooLarge), "{text}");
        }
    }

    #[test]
    fn times_need_a_positive_number_and_a_known_unit() {
        for (text, micros) in [
            ("500ms", 500_000),
            ("2s", 2_000_000),
            ("2", 2_000_000),
            ("1m", 60_000_000),
            ("7us", 7),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "s", "0s", "-1s", "inf", "nan", "1h30", "1 fortnight"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        let digits = "9".repeat(30);
        assert_eq!(parse_duration(&digits), Err(QuantityError::TooLarge));
    }

    #[test]
    fn rates_and_times_convert_once() {
        assert_eq!(Micros::from_nanos(1500.0), Micros(1.5));
        assert_eq!(Micros::from_ticks(1980, 1.98e9), Micros(1.0));
        assert_eq!(MMsgs::over(5_000_000, Duration::from_millis(500)), MMsgs(10.0));
        assert_eq!(GBs::over(1 << 30, Duration::from_secs(1)), GBs(1.073741824));
        assert!(MMsgs::over(1, Duration::ZERO).0.is_infinite());
    }
}
