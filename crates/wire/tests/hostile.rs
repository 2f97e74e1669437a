//! The fuzzer's corpus, and what is near it, on the stable toolchain.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "common/hostile.rs"]
mod hostile;

use std::path::Path;

/// A small generator with a fixed seed: a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wqe_walk");
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus in {}", dir.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn the_corpus_and_its_mutations_keep_every_invariant() {
    let corpus = corpus();
    corpus.iter().for_each(|data| hostile::check(data));
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..20_000 {
        let mut data = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            match random.below(4) {
                0 => data.truncate(random.below(data.len() + 1)),
                1 => data.extend(corpus[random.below(corpus.len())].iter().take(64)),
                _ if data.is_empty() => data.push(random.below(256) as u8),
                2 => {
                    let at = random.below(data.len());
                    data[at] ^= 1 << random.below(8);
                }
                _ => {
                    // The control segment decides most.
                    let at = random.below(data.len().min(16));
                    data[at] = random.below(256) as u8;
                }
            }
        }
        hostile::check(&data);
    }
}
