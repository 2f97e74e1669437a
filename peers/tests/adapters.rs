//! Every adapter against the headers of its library: it compiles for the GPUs, fills in the structures, and refuses
//! what it doesn't know. What isn't on the machine is listed at the end of `scripts/test.sh`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use device::cuda::Place;
use device::nvrtc::Arch;
use peers::{
    Adapter, Compiled, Paths, PeerError, Queue, RateLanes, SendQueue, Sharing, Side, Source, State,
    StateLibrary, Toolchain, Variant,
};

/// Checkouts for these tests, as `NAME=DIR NAME=DIR`.
const PATHS_VAR: &str = "GICBENCH_PEER_PATHS";

fn paths() -> Paths {
    let words = std::env::var(PATHS_VAR).unwrap_or_default();
    Paths::parse(words.split_whitespace()).unwrap()
}

fn skip(why: &str) {
    eprintln!("skipped: {why}");
    let Some(log) = std::env::var_os("GICBENCH_SKIP_LOG") else { return };
    let mut log = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    writeln!(log, "{why}").unwrap();
}

/// The compilers, where they are.
fn tools() -> Option<Toolchain> {
    match Toolchain::find() {
        Ok(tools) => Some(tools),
        Err(error) => {
            assert!(std::env::var_os("GICBENCH_REQUIRE_PEERS").is_none(), "{error}");
            skip(&format!("adapters of other libraries: {error}"));
            None
        }
    }
}

/// The adapters whose library is here.
fn here() -> Vec<&'static Adapter> {
    let required = std::env::var_os("GICBENCH_REQUIRE_PEERS").is_some();
    peers::all()
        .into_iter()
        .filter(|adapter| match peers::find(adapter, &paths()) {
            Ok(_) => true,
            Err(error) => {
                let packaged = matches!(adapter.source, Source::PyPi { .. });
                assert!(!(packaged && required), "{error}");
                skip(&format!("the adapter of {}: {error}", adapter.title));
                false
            }
        })
        .collect()
}

fn variants(adapter: &'static Adapter) -> impl Iterator<Item = &'static Variant> {
    adapter.paths.iter().flat_map(|path| path.variants)
}

/// The kernels that an adapter promises.
fn entries(adapter: &'static Adapter) -> Vec<String> {
    let mut names = Vec::new();
    for variant in variants(adapter) {
        names.extend(variant.ops.iter().map(|op| variant.entry("latency", op.name())));
        if variant.round_trip {
            names.push(variant.entry("round_trip", ""));
        }
        if variant.rate.is_some() {
            names.push(variant.entry("rate", ""));
        }
        if variant.rate == Some(RateLanes::Both) {
            names.push(variant.entry("rate", "warp"));
        }
    }
    names
}

#[test]
fn adapters_compile_for_each_gpu_with_every_kernel_that_they_promise() {
    let Some(tools) = tools() else { return };
    for adapter in here() {
        for arch in [Arch::SM_90, Arch::SM_100] {
            let compiled = Compiled::new(adapter, &paths(), Some(arch), &tools)
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(compiled.found.known, "{}: {}", adapter.title, compiled.found);
            let cubin = fs::read(compiled.cubin.unwrap()).unwrap();
            for entry in entries(adapter) {
                let name = [b"\0", entry.as_bytes(), b"\0"].concat();
                let has = cubin.windows(name.len()).any(|window| window == name);
                assert!(has, "{} has no kernel {entry} for {}", adapter.title, arch.name());
            }
        }
    }
}

/// Queues in ordinary memory: state builders only take their addresses.
struct Memory {
    queues: Vec<Vec<u64>>,
    payload: [Vec<u64>; 2],
}

const LOG_BLOCKS: u32 = 10;
const LINE: usize = 8;

impl Memory {
    fn new(queues: usize) -> Self {
        let blocks = LINE << LOG_BLOCKS;
        // SQ, CQ, a line of records, a doorbell page.
        let each = || vec![0u64; 2 * blocks + LINE + 512];
        Self {
            queues: (0..queues).map(|_| each()).collect(),
            payload: [vec![0; 4096], vec![0; 4096]],
        }
    }

    fn side(&self, variant: &Variant, me: usize, to_self: &[bool]) -> Side {
        let queue = |(i, words): (usize, &Vec<u64>)| {
            let base = words.as_ptr() as u64;
            let blocks = (8 * LINE as u64) << LOG_BLOCKS;
            SendQueue {
                sq: base,
                cq: base + blocks,
                record: base + 2 * blocks + 4,
                cq_record: base + 2 * blocks + 8,
                doorbell: base + 2 * blocks + 64,
                log_blocks: LOG_BLOCKS,
                log_cq: if variant.queue == Queue::RcRing { LOG_BLOCKS } else { 1 },
                qpn: 0x100 + i as u32,
                peer: (if to_self[i] { me } else { 1 - me }) as u32,
            }
        };
        let payload = |side: usize| self.payload[side].as_ptr() as u64;
        Side {
            variant: variant.number,
            me: me as u32,
            queues: self.queues.iter().enumerate().map(queue).collect(),
            local: payload(me),
            bytes: 8 * 4096,
            remote: payload(1 - me),
            lkey: 0x1234,
            rkey: 0x5678,
            own_rkey: 0x9abc,
            producers: if variant.safety.sharing == Sharing::Gpu { 4 } else { 1 },
            address_vector: [7; 48],
        }
    }
}

fn library(adapter: &'static Adapter, tools: &Toolchain) -> Arc<StateLibrary> {
    let compiled = Compiled::new(adapter, &paths(), None, tools).unwrap_or_else(|e| panic!("{e}"));
    StateLibrary::load(adapter.title, &compiled.state).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn both_sides_of_every_variant_are_built_and_lead_into_their_own_memory() {
    let Some(tools) = tools() else { return };
    for adapter in here() {
        let library = library(adapter, &tools);
        assert!(!library.layouts().is_empty() && !library.version().is_empty());
        assert!(library.layouts().iter().all(|(name, size)| !name.is_empty() && *size > 0));
        for variant in variants(adapter) {
            for qps in [1, 2, 16] {
                let what = format!("{} {} with {qps} queue pairs", adapter.title, variant.name);
                let to_self = library.queues(variant.number, qps);
                assert!(to_self.iter().filter(|own| !**own).count() >= 1, "{what}");
                let memory = Memory::new(to_self.len());
                for me in [0, 1] {
                    let side = memory.side(variant, me, &to_self);
                    let state = State::build(&library, &side, &Place::Host, &Place::Host)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_ne!(state.address(), 0, "{what}");
                    // What the library will write to is in its state: every queue that it has to find by itself.
                    let known: Vec<u8> =
                        (state.built().iter()).flat_map(|word| word.to_ne_bytes()).collect();
                    let has = |address: u64| {
                        known.windows(8).any(|window| window == address.to_ne_bytes())
                    };
                    if variant.queue != Queue::Cpu {
                        for queue in &side.queues {
                            // The record is the CPU's to write where that rings.
                            let record = variant.cpu_rings || has(queue.record);
                            assert!(has(queue.sq) && record, "{what}: {queue:x?}");
                        }
                    }
                    if variant.queue == Queue::Cpu || variant.cpu_rings {
                        let mut cpu = state.consume().expect("a CPU takes part");
                        assert!(cpu.take().is_none(), "{what}: nothing was handed over");
                        assert!(state.consume().is_none(), "{what}: there is one CPU side");
                    }
                }
            }
        }
    }
}

#[test]
fn a_side_without_queues_is_refused_with_a_reason() {
    let Some(tools) = tools() else { return };
    for adapter in here() {
        let library = library(adapter, &tools);
        for variant in variants(adapter).filter(|variant| variant.queue != Queue::Cpu) {
            let side = Memory::new(0).side(variant, 0, &[]);
            let error = State::build(&library, &side, &Place::Host, &Place::Host).err();
            let Some(PeerError::Refused { why, .. }) = error else {
                panic!("{} {}: {error:?}", adapter.title, variant.name)
            };
            assert!(!why.is_empty(), "{} {}", adapter.title, variant.name);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A library of another version: the text that is changed in a file, below its `include`.
struct Other {
    adapter: &'static str,
    number: &'static [(&'static str, &'static str, &'static str)],
    structure: (&'static str, &'static str, &'static str),
    says: [&'static str; 2],
}

const OTHERS: [Other; 2] = [
    Other {
        adapter: "nccl",
        number: &[
            ("nccl.h", "NCCL_VERSION_CODE 22809", "NCCL_VERSION_CODE 29901"),
            ("nccl.h", "NCCL_MINOR 28", "NCCL_MINOR 99"),
        ],
        structure: (
            "nccl_device/gin/gdaki/doca_gpunetio/common/doca_gpunetio_verbs_dev.h",
            "    uint64_t sq_rsvd_index;",
            "    uint64_t more; uint64_t sq_rsvd_index;",
        ),
        says: ["2.99", "doca_gpu_dev_verbs_qp"],
    },
    Other {
        adapter: "nvshmem",
        number: &[(
            "non_abi/nvshmem_version.h",
            "NVSHMEM_VENDOR_MINOR_VERSION 4",
            "NVSHMEM_VENDOR_MINOR_VERSION 99",
        )],
        // Of the same size: the library's own checks pass it.
        structure: (
            "device_host_transport/nvshmem_common_ibgda.h",
            "    uint64_t *cons_idx;\n    uint64_t *resv_head;",
            "    uint64_t *resv_head;\n    uint64_t *cons_idx;",
        ),
        says: ["3.99.5", "nvshmemi_ibgda_device_cq_t.cons_idx is at offset 32"],
    },
];

#[test]
fn another_version_is_tried_and_refused_by_name_where_its_structures_differ() {
    let Some(tools) = tools() else { return };
    let here = here();
    for other in OTHERS {
        let Some(adapter) = here.iter().find(|adapter| adapter.name == other.adapter) else {
            continue;
        };
        let found = peers::find(adapter, &paths()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        copy(&found.root.join("include"), &root.join("include"));
        if let Some(library) = adapter.device_library {
            let to = root.join(library);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(found.root.join(library), to).unwrap();
        }
        let change = |(file, from, to): (&str, &str, &str)| {
            let file = root.join("include").join(file);
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(from), "{from}");
            fs::write(file, text.replacen(from, to, 1)).unwrap();
        };
        let word = format!("{}={}", adapter.name, root.display());
        let named = Paths::parse([word.as_str()]).unwrap();
        other.number.iter().copied().for_each(change);
        let compiled =
            Compiled::new(adapter, &named, None, &tools).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            !compiled.found.known,
            "the same structures under another number: {}",
            compiled.found
        );

        change(other.structure);
        let error = Compiled::new(adapter, &named, None, &tools).unwrap_err();
        assert!(matches!(error, PeerError::Unfit { .. }), "{error}");
        let text = error.to_string();
        assert!(other.says.iter().all(|word| text.contains(word)), "{text}");
    }
}

#[test]
fn a_step_is_told_by_an_earlier_variant_of_its_path_and_only_a_step_is() {
    for path in peers::all().iter().flat_map(|adapter| adapter.paths) {
        for (index, variant) in path.variants.iter().enumerate() {
            let what = format!("{} {}", path.name, variant.name);
            // A queue of another build of the library: no variant has it and the put around it.
            let alone = what == "uccl-ep ring";
            let is_step = !variant.omits.is_empty() && !alone;
            assert_eq!(is_step, !variant.base.is_empty(), "{what}");
            if !is_step {
                continue;
            }
            // Of the earlier ones, so that no two are each other's.
            let base = path.variants[..index].iter().find(|earlier| earlier.name == variant.base);
            let base = base.unwrap_or_else(|| panic!("{what}: no {} before it", variant.base));
            assert!(variant.ops.iter().all(|op| base.ops.contains(op)), "{what}");
            assert_eq!(base.queue, variant.queue, "{what}");
        }
    }
}

#[test]
fn a_path_without_the_library_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    for adapter in peers::all() {
        let word = format!("{}={}", adapter.name, folder.path().display());
        let error = peers::find(adapter, &Paths::parse([word.as_str()]).unwrap()).unwrap_err();
        assert!(matches!(error, PeerError::NotThere { .. }));
        assert!(error.to_string().contains(&word), "{error}");
    }
}
