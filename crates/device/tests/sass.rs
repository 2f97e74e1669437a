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

    /// Whether a function whose name has that part begins here.
    fn is_entry(&self, at: usize, part: &str) -> bool {
        self.labels.iter().any(|(label, place)| *place == at && label.contains(part))
    }

    /// The fewest instructions from a begin to one with `end` in it, of which those that act on memory in order are
    /// exactly `due`, and `loads` others are loads, or any number of them. None: there is no such way.
    fn accesses(
        &self,
        begins: impl Fn(usize) -> bool,
        end: &str,
        due: &[&str],
        loads: Option<usize>,
    ) -> Option<Vec<usize>> {
        let mut before = HashMap::new();
        let mut queue: BinaryHeap<_> = (0..self.code.len())
            .filter(|at| begins(*at))
            .map(|at| Reverse((0, at, (0, 0), (usize::MAX, (0, 0)))))
            .collect();
        while let Some(Reverse((length, at, done, from))) = queue.pop() {
            if at >= self.code.len() || before.contains_key(&(at, done)) {
                continue;
            }
            before.insert((at, done), from);
            let instruction = &self.code[at];
            let mut now = done;
            if length > 0 && instruction.contains(end) {
                if done != (due.len(), loads.unwrap_or(0)) {
                    continue;
                }
                let (mut path, mut step) = (Vec::new(), (at, done));
                while step.0 != usize::MAX {
                    path.push(step.0);
                    step = before[&step];
                }
                path.reverse();
                return Some(path);
            }
            if is_ordered(instruction) {
                if due.get(done.0) != Some(&full_name(instruction)) {
                    continue;
                }
                now.0 += 1;
            } else if is_load(instruction)
                && let Some(loads) = loads
            {
                if done.1 == loads {
                    continue;
                }
                now.1 += 1;
            }
            let next = self.next(at).into_iter();
            queue.extend(next.map(|next| Reverse((length + 1, next, now, (at, done)))));
        }
        None
    }
}

/// An instruction's name with its modifiers, without predicate.
fn full_name(instruction: &str) -> &str {
    let words = match instruction.strip_prefix('@') {
        Some(predicated) => predicated.split_once(' ').unwrap().1,
        None => instruction,
    };
    words.split(' ').next().unwrap()
}

/// An instruction's name, without predicate and modifiers.
fn name(instruction: &str) -> &str {
    full_name(instruction).split('.').next().unwrap()
}

/// An instruction that acts on memory in the order that it is written in: an atomic, a fence, a store, a load that sees
/// others' stores.
fn is_ordered(instruction: &str) -> bool {
    match name(instruction) {
        "ATOM" | "ATOMG" | "RED" | "MEMBAR" | "CCTL" | "ST" | "STG" => true,
        _ => is_load(instruction) && instruction.contains("STRONG"),
    }
}

/// A load from memory that others may have written to.
fn is_load(instruction: &str) -> bool {
    matches!(name(instruction), "LD" | "LDG")
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

/// What a put like a library's does to memory, in the library's order, where nothing fails and nothing is waited for:
/// "3 ST" is three of them in a row. `loads`: words that it may find in a cache, whose order is the compiler's.
struct Accesses {
    peer: Peer,
    /// Begin and end: a function of its own, by a part of its name, or else the clock readings.
    function: Option<&'static str>,
    ordered: &'static [&'static str],
    loads: usize,
}

const ACCESSES: &[Accesses] = &[
    Accesses {
        peer: Peer::GdakiExclusive,
        function: None,
        ordered: &[
            // Reserve; room, by what is known to be completed.
            "ST.E.64",
            "CCTL.IVALL",
            "ST.E.64",
            "3 ST.E.EF.128",
            // Ready index, lock, producer index.
            "ST.E.64",
            "ST.E",
            "ST.E.64",
            "MEMBAR.ALL.GPU",
            "STG.E.64.MMIO.SYS",
            "STG.E.STRONG.SYS",
            "MEMBAR.ALL.GPU",
            "STG.E.64.MMIO.SYS",
            "ST.E",
        ],
        loads: 12,
    },
    Accesses {
        peer: Peer::GdakiCta,
        function: None,
        ordered: &[
            "ATOM.E.ADD.64.STRONG.SM",
            "LD.E.64.STRONG.SM",
            "CCTL.IVALL",
            "ATOM.E.MAX.64.STRONG.SM",
            "3 ST.E.EF.128",
            "MEMBAR.ALL.CTA",
            "LD.E.64.STRONG.SM",
            "ST.E.64.STRONG.SM",
            "ATOM.E.CAS.STRONG.SM",
            "ATOM.E.MAX.64.STRONG.SM",
            "MEMBAR.ALL.GPU",
            "STG.E.64.MMIO.SYS",
            "STG.E.STRONG.SYS",
            "MEMBAR.ALL.GPU",
            "STG.E.64.MMIO.SYS",
            "MEMBAR.ALL.CTA",
            "ST.E.STRONG.SM",
        ],
        loads: 8,
    },
    Accesses {
        peer: Peer::Gdaki,
        function: None,
        ordered: &[
            "ATOM.E.ADD.64.STRONG.GPU",
            "LD.E.64.STRONG.GPU",
            "CCTL.IVALL",
            "ATOM.E.MAX.64.STRONG.GPU",
            "3 ST.E.EF.128",
            "MEMBAR.ALL.GPU",
            "LD.E.64.STRONG.GPU",
            "CCTL.IVALL",
            "ST.E.64.STRONG.GPU",
            "ATOM.E.CAS.STRONG.GPU",
            "CCTL.IVALL",
            "ATOM.E.MAX.64.STRONG.GPU",
            "CCTL.IVALL",
            "MEMBAR.ALL.GPU",
            "STG.E.64.MMIO.SYS",
            "STG.E.STRONG.SYS",
            "MEMBAR.ALL.GPU",
            "STG.E.64.MMIO.SYS",
            "MEMBAR.ALL.GPU",
            "ST.E.STRONG.GPU",
        ],
        loads: 8,
    },
    Accesses {
        peer: Peer::Deepep,
        function: None,
        ordered: &[
            "ATOMG.E.ADD.64.STRONG.GPU",
            "3 STG.E.NA.128.STRONG.GPU",
            "MEMBAR.SC.GPU",
            "CCTL.IVALL",
            "ATOM.E.CAS.64.STRONG.GPU",
            "ATOMG.E.CAS.STRONG.GPU",
            "MEMBAR.ALL.CTA",
            "ATOMG.E.MAX.64.STRONG.GPU",
            "MEMBAR.ALL.GPU",
            "STG.E.NA.STRONG.GPU",
            "MEMBAR.ALL.GPU",
            "STG.E.NA.64.STRONG.GPU",
            "MEMBAR.ALL.CTA",
            "STG.E.NA.STRONG.GPU",
        ],
        loads: 8,
    },
    Accesses { peer: Peer::NvshmemInternal, function: None, ordered: NVSHMEM, loads: 19 },
    Accesses { peer: Peer::Nvshmem, function: Some("put_apart"), ordered: NVSHMEM, loads: 19 },
    Accesses {
        peer: Peer::NvshmemProxy,
        function: Some("put_apart"),
        ordered: &[
            "MEMBAR.SC.GPU",
            "CCTL.IVALL",
            "ATOMG.E.ADD.64.STRONG.GPU",
            "LDG.E.64.STRONG.SYS",
            "4 STG.E.64.STRONG.SYS",
        ],
        loads: 0,
    },
    Accesses {
        peer: Peer::GinProxy,
        function: None,
        ordered: &[
            "MEMBAR.ALL.SYS",
            "CCTL.IVALL",
            "ATOM.E.ADD.STRONG.SYS",
            "LD.E.STRONG.SYS",
            "4 STG.E.128.STRONG.SYS",
        ],
        loads: 7,
    },
    Accesses {
        peer: Peer::Mscclpp,
        function: None,
        ordered: &["ATOM.E.ADD.64.STRONG.GPU", "MEMBAR.ALL.SYS", "STG.E.128.STRONG.SYS"],
        loads: 1,
    },
    Accesses {
        peer: Peer::UcclEp,
        function: None,
        ordered: &["ATOM.E.ADD.64.STRONG.GPU", "MEMBAR.ALL.SYS", "STG.E.128.STRONG.SYS"],
        loads: 7,
    },
    Accesses {
        peer: Peer::FabricLib,
        function: None,
        ordered: &["MEMBAR.ALL.GPU", "ATOMG.E.ADD.STRONG.GPU", "STG.E.U8.MMIO.SYS", "ST.E"],
        loads: 0,
    },
];

const NVSHMEM: &[&str] = &[
    // The counter that spreads puts over devices.
    "STG.E.U8",
    "ATOM.E.ADD.64.STRONG.GPU",
    // What is known to be completed.
    "LD.E.64.STRONG.SYS",
    "2 MEMBAR.ALL.CTA",
    // Four of them are a DC target's, and not done.
    "16 ST.E.STRONG.SYS",
    "MEMBAR.SC.GPU",
    "CCTL.IVALL",
    "ATOM.E.CAS.64.STRONG.GPU",
    "MEMBAR.ALL.CTA",
    "LD.E.64.STRONG.SYS",
    "ATOM.E.CAS.STRONG.GPU",
    "MEMBAR.ALL.CTA",
    "ATOM.E.MAX.64.STRONG.GPU",
    "MEMBAR.SC.GPU",
    "CCTL.IVALL",
    "ST.E.STRONG.SYS",
    "MEMBAR.SC.GPU",
    "CCTL.IVALL",
    "ST.E.64.STRONG.SYS",
    "MEMBAR.ALL.CTA",
    "ST.E.STRONG.SYS",
];

#[test]
fn a_put_like_a_librarys_makes_the_librarys_accesses_in_its_order() {
    let Some(nvdisasm) = tools() else { return };
    for Accesses { peer, function, ordered, loads } in ACCESSES {
        let sass = Sass::of(&like_translation_unit(Like::whole(*peer)), &nvdisasm);
        let due: Vec<&str> = ordered
            .iter()
            .flat_map(|row| match row.split_once(' ') {
                Some((times, what)) => vec![what; times.parse().unwrap()],
                None => vec![*row],
            })
            .collect();
        let clock = |at: usize| sass.code[at].contains("SR_CLOCK");
        let begins = |at| function.map_or_else(|| clock(at), |part| sass.is_entry(at, part));
        let end = if function.is_some() { "RET" } else { "SR_CLOCK" };
        let text = |path: &[usize]| -> Vec<&str> {
            path.iter().map(|at| sass.code[*at].as_str()).collect()
        };
        let Some(shortest) = sass.accesses(begins, end, &due, None) else {
            let seen = sass.code.iter().filter(|i| is_ordered(i)).collect::<Vec<_>>();
            panic!("{peer}: not {due:#?}: {seen:#?}");
        };
        // The shortest way may be one that can't be gone, past what is looked up.
        let Some(put) = sass.accesses(|at| at == shortest[0], end, &due, Some(*loads)) else {
            panic!("{peer}: not {loads} loads: {:#?}", text(&shortest));
        };
        if function.is_none() {
            let put = text(&put);
            assert_eq!(count(&put, LOCAL), 0, "{peer}: {put:#?}");
        }
    }
}
