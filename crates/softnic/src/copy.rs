//! Copies to and from memory that others change at any moment: word-wise, relaxed, in ascending order.
//!
//! An aligned word of the shared side is read, or written, by one access.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

const WORD: usize = 8;
/// Words copied a round, so that the loop's own work is little beside the copies.
const ROUND: usize = 8;

/// Bytes before the first word, as far as there are that many.
#[inline]
fn unaligned(at: *mut u8, len: usize) -> usize {
    (at.addr().wrapping_neg() & (WORD - 1)).min(len)
}

/// # Safety
/// `from .. from + out.len()` is readable and accessed by others only atomically.
#[inline]
pub(crate) unsafe fn load(from: *mut u8, out: &mut [u8]) {
    let (before, rest) = out.split_at_mut(unaligned(from, out.len()));
    // SAFETY: by this function's contract, for each of the three parts.
    unsafe {
        load_narrow(from, before);
        let from = from.add(before.len());
        let (words, after) = rest.as_chunks_mut::<WORD>();
        let behind = from.add(words.len() * WORD);
        let (rounds, single) = words.as_chunks_mut::<ROUND>();
        let mut from: *mut u64 = from.cast();
        for round in rounds {
            for (i, word) in round.iter_mut().enumerate() {
                *word = AtomicU64::from_ptr(from.add(i)).load(Relaxed).to_ne_bytes();
            }
            from = from.add(ROUND);
        }
        for word in single {
            *word = AtomicU64::from_ptr(from).load(Relaxed).to_ne_bytes();
            from = from.add(1);
        }
        load_narrow(behind, after);
    }
}

/// Less than a word: 4 bytes at once where they are aligned.
///
/// # Safety
/// As [`load`].
#[inline]
unsafe fn load_narrow(from: *mut u8, out: &mut [u8]) {
    let mut i = 0;
    while i < out.len() {
        // SAFETY: `i` is below the length; an aligned half has 4 bytes left.
        unsafe {
            let at = from.add(i);
            if at.addr().is_multiple_of(4)
                && let Some(half) = out[i..].first_chunk_mut::<4>()
            {
                *half = AtomicU32::from_ptr(at.cast()).load(Relaxed).to_ne_bytes();
                i += 4;
            } else {
                out[i] = AtomicU8::from_ptr(at).load(Relaxed);
                i += 1;
            }
        }
    }
}

/// # Safety
/// `to .. to + bytes.len()` is writable and accessed by others only atomically.
#[inline]
pub(crate) unsafe fn store(to: *mut u8, bytes: &[u8]) {
    if let Ok(word) = <[u8; WORD]>::try_from(bytes)
        && to.addr().is_multiple_of(WORD)
    {
        // SAFETY: aligned, and a word long.
        unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Relaxed);
        return;
    }
    // SAFETY: by this function's contract.
    unsafe { store_any(to, bytes) }
}

/// # Safety
/// As [`store`].
#[inline(never)]
unsafe fn store_any(to: *mut u8, bytes: &[u8]) {
    let (before, rest) = bytes.split_at(unaligned(to, bytes.len()));
    // SAFETY: by this function's contract, for each of the three parts.
    unsafe {
        store_narrow(to, before);
        let to = to.add(before.len());
        let (words, after) = rest.as_chunks::<WORD>();
        let behind = to.add(words.len() * WORD);
        let (rounds, single) = words.as_chunks::<ROUND>();
        let mut to: *mut u64 = to.cast();
        for round in rounds {
            for (i, word) in round.iter().enumerate() {
                AtomicU64::from_ptr(to.add(i)).store(u64::from_ne_bytes(*word), Relaxed);
            }
            to = to.add(ROUND);
        }
        for word in single {
            AtomicU64::from_ptr(to).store(u64::from_ne_bytes(*word), Relaxed);
            to = to.add(1);
        }
        store_narrow(behind, after);
    }
}

/// As [`load_narrow`].
///
/// # Safety
/// As [`store`].
#[inline]
unsafe fn store_narrow(to: *mut u8, bytes: &[u8]) {
    let mut i = 0;
    while i < bytes.len() {
        // SAFETY: `i` is below the length; an aligned half has 4 bytes left.
        unsafe {
            let at = to.add(i);
            if at.addr().is_multiple_of(4)
                && let Some(half) = bytes[i..].first_chunk::<4>()
            {
                AtomicU32::from_ptr(at.cast()).store(u32::from_ne_bytes(*half), Relaxed);
                i += 4;
            } else {
                AtomicU8::from_ptr(at).store(bytes[i], Relaxed);
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_copies_its_bytes_and_no_other() {
        let source: Vec<u8> = (0..300u32).map(|i| (i % 251) as u8 + 1).collect();
        for start in 0..16 {
            for len in (0..40).chain([63, 64, 65, 127, 128, 129, 200, 256]) {
                let mut shared = vec![0u64; 48];
                let base: *mut u8 = shared.as_mut_ptr().cast();
                let mut back = vec![0u8; len];
                // SAFETY: inside of `shared`, which nobody else touches.
                unsafe {
                    store(base.add(start), &source[..len]);
                    load(base.add(start), &mut back);
                }
                assert_eq!(back, source[..len], "{start} + {len}");
                let bytes: Vec<u8> = shared.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let outside = bytes[..start].iter().chain(&bytes[start + len..]);
                assert!(outside.into_iter().all(|&byte| byte == 0), "{start} + {len}");
            }
        }
    }
}
