//! The arithmetic of atomics, plain and masked.

use wire::wqe::{OPMOD_EXTENDED_4, Opcode};

/// An atomic request's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    kind: Kind,
    /// Bytes: 4 or 8.
    pub size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CompareSwap { swap: u64, compare: u64, swap_mask: u64, compare_mask: u64 },
    FetchAdd { add: u64, boundary: u64 },
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?)))
}

impl Operation {
    /// From a control segment's first word and the atomic segments.
    pub(crate) fn decode(first: u32, segments: &[u8]) -> Option<Self> {
        let small = (first >> 24) as u8 == OPMOD_EXTENDED_4;
        let (kind, size) = match Opcode::from_byte(first as u8)? {
            Opcode::AtomicCs => (
                Kind::CompareSwap {
                    swap: u64_at(segments, 0)?,
                    compare: u64_at(segments, 8)?,
                    swap_mask: u64::MAX,
                    compare_mask: u64::MAX,
                },
                8,
            ),
            Opcode::AtomicFa => (Kind::FetchAdd { add: u64_at(segments, 0)?, boundary: 0 }, 8),
            Opcode::AtomicMaskedCs if small => (
                Kind::CompareSwap {
                    swap: u32_at(segments, 0)?,
                    compare: u32_at(segments, 4)?,
                    swap_mask: u32_at(segments, 8)?,
                    compare_mask: u32_at(segments, 12)?,
                },
                4,
            ),
            Opcode::AtomicMaskedCs => (
                Kind::CompareSwap {
                    swap: u64_at(segments, 0)?,
                    compare: u64_at(segments, 8)?,
                    swap_mask: u64_at(segments, 16)?,
                    compare_mask: u64_at(segments, 24)?,
                },
                8,
            ),
            Opcode::AtomicMaskedFa if small => {
                (Kind::FetchAdd { add: u32_at(segments, 0)?, boundary: u32_at(segments, 4)? }, 4)
            }
            Opcode::AtomicMaskedFa => {
                (Kind::FetchAdd { add: u64_at(segments, 0)?, boundary: u64_at(segments, 8)? }, 8)
            }
            _ => return None,
        };
        Some(Self { kind, size })
    }

    /// The new value, if it changes. Of 4-byte operations only the low half counts.
    pub(crate) fn apply(&self, old: u64) -> Option<u64> {
        match self.kind {
            Kind::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                ((old ^ compare) & compare_mask == 0).then_some(old & !swap_mask | swap & swap_mask)
            }
            // A set bit ends a field: its sum is kept, its carry is not.
            Kind::FetchAdd { add, boundary } => {
                let sum = (old & !boundary).wrapping_add(add & !boundary);
                Some(sum ^ (old ^ add) & boundary)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit_by_bit(a: u64, b: u64, boundary: u64, bits: u32) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for i in 0..bits {
            let (x, y) = (a >> i & 1, b >> i & 1);
            sum |= (x ^ y ^ carry) << i;
            carry = if boundary >> i & 1 == 1 { 0 } else { x & y | x & carry | y & carry };
        }
        sum
    }

    #[test]
    fn masked_add_stops_carries_at_each_boundary_bit() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        for _ in 0..1000 {
            let (old, add, boundary) = (next(), next(), next() & next());
            let op = Operation { kind: Kind::FetchAdd { add, boundary }, size: 8 };
            assert_eq!(op.apply(old), Some(bit_by_bit(old, add, boundary, 64)));
        }
        let op = Operation { kind: Kind::FetchAdd { add: 1, boundary: 0 }, size: 8 };
        assert_eq!(op.apply(u64::MAX), Some(0));
        let op =
            Operation { kind: Kind::FetchAdd { add: 0x0001_0001, boundary: 0x8000_8000 }, size: 4 };
        assert_eq!(op.apply(0x0001_ffff).map(|v| v as u32), Some(0x0002_0000));
    }

    #[test]
    fn masked_swap_compares_and_swaps_only_the_masks_bits() {
        let op = |compare_mask, swap_mask| Operation {
            kind: Kind::CompareSwap { swap: 0x1111, compare: 0x2222, swap_mask, compare_mask },
            size: 8,
        };
        assert_eq!(op(u64::MAX, u64::MAX).apply(0x2222), Some(0x1111));
        assert_eq!(op(u64::MAX, u64::MAX).apply(0x3222), None);
        assert_eq!(op(0x0fff, 0x00ff).apply(0x3222), Some(0x3211));
        assert_eq!(op(0, 0).apply(0x3222), Some(0x3222));
    }
}
