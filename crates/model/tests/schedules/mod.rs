//! What the models of the whole share: random schedules, two small NICs that are stepped, threads beside them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::ShuttleMemory;
use rdma::soft::{Engine, Fabric, FabricAttr};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, MaxSteps, Runner};
use softnic::{Caps, Clock, NicConfig};

/// Runs a model on random schedules. Shuttle prints the seed of one that fails; `SHUTTLE_RANDOM_SEED` sets it.
pub fn check(seed: u64, schedules: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 19;
    config.max_steps = MaxSteps::FailAfter(2_000_000);
    eprintln!("{schedules} schedules from seed {seed:#x}");
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config).run(model);
}

pub fn fabric() -> Fabric {
    let caps = Caps {
        max_qps: 4,
        max_dcts: 1,
        max_dc_contexts: 1,
        max_cqs: 8,
        max_mrs: 8,
        max_pds: 2,
        max_uars: 4,
        max_outstanding: 16,
        ..Caps::default()
    };
    let attr = FabricAttr {
        nics: 2,
        engine: Engine::Stepped,
        clock: Clock::Virtual,
        config: NicConfig { caps, ..NicConfig::default() },
    };
    Fabric::open(&attr).unwrap()
}

/// Does `step` over and over while the bodies run on `rig`.
pub fn run_beside<R: Clone + Send + 'static>(
    rig: &R,
    threads: u64,
    body: impl Fn(&R, u64) + Send + Sync + 'static,
    step: impl Fn(),
) {
    let _entered = ShuttleMemory.enter();
    let finished = Arc::new(AtomicUsize::new(0));
    let body = Arc::new(body);
    let threads: Vec<_> = (0..threads)
        .map(|thread| {
            let (rig, finished, body) = (rig.clone(), finished.clone(), body.clone());
            shuttle::thread::spawn(move || {
                body(&rig, thread);
                finished.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    while finished.load(Ordering::SeqCst) < threads.len() {
        step();
        shuttle::thread::yield_now();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}
