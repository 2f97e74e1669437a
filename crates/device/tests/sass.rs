//! What a GPU executes between the two clock readings of an operation, read from the machine code: no loads, no
//! memory of the thread's own, and hardly more than the bare sequence. No GPU is needed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::PathBuf;
use std::process::Command;

use device::choice::{Choice, Order, Ringing, Signalling};
use device::like::{Like, Peer};
use device::nvrtc::{Arch, compile};
use device::proxy::{ProxyChoice, ProxyOp, Publish};
use device::source::{
    KernelKind, ProxyKernelKind, like_translation_unit, proxy_translation_unit, translation_unit,
};
use device::view::Op;

/// Names NVIDIA's disassembler. Otherwise a CUDA toolkit's is taken, or one on the path.
const DISASSEMBLER_VAR: &str = "GICBENCH_NVDISASM";

fn disassembler() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(DISASSEMBLER_VAR).map(PathBuf::from) {
        assert!(named.is_file(), "{DISASSEMBLER_VAR} is {}, which isn't there", named.display());
        return Some(named);
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let roots = toolkits.map(PathBuf::from).chain([PathBuf::from("/usr/local/cuda")]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = roots.map(|root| root.join("bin")).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("nvdisasm")).find(|file| file.is_file())
}

/// The disassembler, where both it and the compiler are there.
fn tools() -> Option<PathBuf> {
    if !common::has_nvrtc() {
        return None;
    }
    let found = disassembler();
    if found.is_none() {
        assert!(
            !common::tools_are_required(),
            "nvdisasm is required beside NVRTC: scripts/test.sh installs both"
        );
        common::skip("machine code read: nvdisasm is not installed; scripts/test.sh installs it");
    }
    found
}

/// A kernel's instructions, without their encodings, and where its labels are.
struct Sass {
    code: Vec<String>,
    labels: HashMap<String, usize>,
}

impl Sass {
    fn of(unit: &str, nvdisasm: &PathBuf) -> Self {
        let cubin = compile(unit, Arch::SM_90).unwrap_or_else(|e| panic!("{e}"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), cubin).unwrap();
        let output = Command::new(nvdisasm).arg("-c").arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (mut code, mut labels) = (Vec::new(), HashMap::new());
        for line in String::from_utf8(output.stdout).unwrap().lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label.to_owned(), code.len());
            } else if let Some((_, instruction)) =
                line.strip_prefix("/*").and_then(|rest| rest.split_once("*/"))
                && let Some((instruction, _)) = instruction.split_once(';')
            {
                code.push(instruction.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        assert!(code.len() > 50, "{} instructions", code.len());
        Self { code, labels }
    }

    fn count(&self, what: &[&str]) -> usize {
        self.code.iter().filter(|i| what.contains(&name(i))).count()
    }

    /// Where an instruction may be followed: by the next one, by a branch's target, or by neither.
    fn next(&self, at: usize) -> Vec<usize> {
        let instruction = &self.code[at];
        let conditional = instruction.starts_with('@');
        let mut next = Vec::new();
        match name(instruction) {
            "BRA" => {
                let target = instruction.split_once("`(").unwrap().1.trim_end_matches(')');
                next.extend(self.labels.get(target));
                if conditional || instruction.matches(", ").count() > 0 {
                    next.push(at + 1);
                }
            }
            // The sequence makes no calls: a path through one is that of a failure or of a full queue.
            "CALL" | "EXIT" | "RET" | "BRX" => next.extend(conditional.then_some(at + 1)),
            _ => next.push(at + 1),
        }
        next
    }

    /// For each clock reading from which another is reached through `stores` stores to memory that others see, the
    /// fewest instructions between: what runs where nothing fails and nothing is waited for.
    fn timed(&self, stores: usize) -> Vec<Vec<&str>> {
        let clock = |at: usize| self.code[at].contains("SR_CLOCK");
        let paths = (0..self.code.len()).filter(|at| clock(*at)).filter_map(|start| {
            let mut before = HashMap::new();
            let mut queue = BinaryHeap::from([Reverse((0, start + 1, 0, (usize::MAX, 0)))]);
            while let Some(Reverse((length, at, seen, from))) = queue.pop() {
                if at >= self.code.len() || before.contains_key(&(at, seen)) {
                    continue;
                }
                before.insert((at, seen), from);
                if clock(at) {
                    if seen < stores {
                        continue;
                    }
                    let mut path = Vec::new();
                    let mut step = before[&(at, seen)];
                    while step.0 != usize::MAX {
                        path.push(self.code[step.0].as_str());
                        step = before[&step];
                    }
                    path.reverse();
                    return Some(path);
                }
                let strong =
                    name(&self.code[at]).starts_with("STG") && self.code[at].contains("STRONG");
                let now = stores.min(seen + usize::from(strong));
                queue.extend(
                    self.next(at)
                        .into_iter()
                        .map(|next| Reverse((length + 1, next, now, (at, seen)))),
                );
            }
            None
        });
        paths.collect()
    }
}

/// An instruction's name, without predicate and modifiers.
fn name(instruction: &str) -> &str {
    let words = match instruction.strip_prefix('@') {
        Some(predicated) => predicated.split_once(' ').unwrap().1,
        None => instruction,
    };
    words.split([' ', '.']).next().unwrap()
}

fn count(path: &[&str], what: &[&str]) -> usize {
    path.iter().filter(|i| what.contains(&name(i))).count()
}

const LOADS: &[&str] = &["LD", "LDG", "LDL", "ATOM", "ATOMG", "RED"];
const LOCAL: &[&str] = &["LDL", "STL"];

#[test]
fn a_put_stores_its_wqe_record_and_doorbell_and_does_little_else() {
    let Some(nvdisasm) = tools() else { return };
    for (order, fences) in [(Order::None, 0), (Order::GpuRelease, 2), (Order::SystemFence, 2)] {
        let choice = Choice { order, ..Choice::default() };
        let bare = Sass::of(&translation_unit(KernelKind::Bare(Op::Put), &choice), &nvdisasm);
        let put = Sass::of(&translation_unit(KernelKind::Latency(Op::Put), &choice), &nvdisasm);
        assert_eq!(put.count(LOCAL), 0, "{order}: registers don't suffice");
        let (bare, put) = (bare.timed(5), put.timed(5));
        assert!(bare.len() == 1 && !put.is_empty(), "{order}: {} {}", bare.len(), put.len());
        for path in bare.iter().chain(&put) {
            assert_eq!(count(path, LOADS), 0, "{order}: {path:#?}");
            assert_eq!(count(path, &["STG"]), 5, "{order}: {path:#?}");
            assert_eq!(path.iter().filter(|i| i.starts_with("STG.E.128")).count(), 3, "{order}");
            assert_eq!(count(path, &["MEMBAR"]), fences, "{order}: {path:#?}");
        }
        for path in &put {
            // One branch for a bad length and a full queue, one around it, one to the clock.
            assert!(count(path, &["BRA"]) <= 3, "{order}: {path:#?}");
            let (own, least) = (path.len(), bare[0].len());
            assert!(own <= least + 16, "{order}: {own}, bare {least}: {path:#?}");
        }
    }
}

#[test]
fn a_warp_posts_a_batch_from_registers() {
    let Some(nvdisasm) = tools() else { return };
    let choice = Choice {
        ringing: Ringing::EveryNth,
        signalling: Signalling::OnRequest,
        ..Choice::default()
    };
    let rate = Sass::of(&translation_unit(KernelKind::Rate, &choice), &nvdisasm);
    // What there is of local memory belongs to calls that are off the path.
    assert!(rate.count(LOCAL) <= 16, "{}", rate.count(LOCAL));
}

#[test]
fn a_posted_push_is_one_store() {
    let Some(nvdisasm) = tools() else { return };
    for (publish, fences) in [(Publish::Posted, 0), (Publish::Release, 1)] {
        let choice = ProxyChoice { publish, ..ProxyChoice::default() };
        let unit = proxy_translation_unit(ProxyKernelKind::Enqueue(ProxyOp::Put), &choice);
        let push = Sass::of(&unit, &nvdisasm);
        assert_eq!(push.count(LOCAL), 0);
        // The shortest: the others lead over the end of an operation to the next one's begin.
        let paths = push.timed(1);
        let path = paths.iter().min_by_key(|path| path.len()).unwrap();
        assert_eq!(count(path, LOADS), 0, "{path:#?}");
        assert_eq!(count(path, &["STG"]), 1, "{path:#?}");
        assert_eq!(count(path, &["MEMBAR"]), fences, "{path:#?}");
        assert!(path.len() <= 40, "{}: {path:#?}", path.len());
    }
}

/// Atomics, fences, loads and stores between the clock readings of a push that finds room.
#[test]
fn a_push_like_a_librarys_makes_the_librarys_accesses() {
    let Some(nvdisasm) = tools() else { return };
    for (peer, atomics, fences, loads, stores, store) in [
        // The descriptor's 64 bytes; two words of its memories, four of its queue, the CPU's index.
        (Peer::GinProxy, 1, 1, 7, 4, "STG.E.128.STRONG.SYS"),
        // The cached tail.
        (Peer::Mscclpp, 1, 1, 1, 1, "STG.E.128.STRONG.SYS"),
        // And five words of its queue.
        (Peer::UcclEp, 1, 1, 6, 1, "STG.E.128.STRONG.SYS"),
    ] {
        let sass = Sass::of(&like_translation_unit(Like::whole(peer)), &nvdisasm);
        assert_eq!(sass.count(LOCAL), 0, "{peer}");
        let paths = sass.timed(1);
        // That with the reservation: others lead over the end of an operation to the next one's begin.
        let reserves = |path: &&Vec<&str>| count(path, &["ATOMG"]) > 0;
        let path = paths.iter().filter(reserves).min_by_key(|path| path.len()).unwrap();
        let seen = [&["ATOMG"][..], &["MEMBAR"], &["LD", "LDG"]].map(|what| count(path, what));
        assert_eq!(seen, [atomics, fences, loads], "{peer}: {path:#?}");
        let stored = path.iter().filter(|i| i.contains(store)).count();
        assert_eq!(stored, stores, "{peer}: {path:#?}");
        assert!(path.len() <= 80, "{peer}: {}: {path:#?}", path.len());
    }
    // What paths don't show: a function of its own, and a flag that the shortest one passes by.
    for (peer, counts) in [
        // Two of the stores are the payload's.
        (
            Peer::NvshmemProxy,
            [("STG.E.64.STRONG.SYS", 6), ("MEMBAR.SC.GPU", 1), ("ATOMG.E.ADD", 1)],
        ),
        (Peer::FabricLib, [("STG.E.U8.MMIO", 1), ("MEMBAR.ALL.GPU", 1), ("ATOMG.E.ADD", 1)]),
    ] {
        let sass = Sass::of(&like_translation_unit(Like::whole(peer)), &nvdisasm);
        for (what, due) in counts {
            let seen = sass.code.iter().filter(|i| i.contains(what)).count();
            assert_eq!(seen, due, "{peer}: {what}: {:#?}", sass.code);
        }
    }
}
