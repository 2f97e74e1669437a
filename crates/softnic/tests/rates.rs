//! Rates under a profile, in virtual time: computed, not measured.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::sync::Arc;

use rig::*;
use softnic::*;
use wire::wqe::{CtrlFlags, Data, Opcode, Raddr};

/// Bytes a nanosecond of `count` messages of `len` bytes, all posted at once.
fn gigabytes_a_second(op: Opcode, len: u32, count: u64) -> f64 {
    let config = NicConfig { profile: Profile::CX7_NDR200, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, timeout: 14, ..Options::default() });
    let mut region = |nic: usize, iova: u64| {
        let memory: Arc<Memory> = Memory::zeroed(len as usize);
        let pd = [rig.a.pd, rig.b.pd][nic];
        let (length, access) = (u64::from(len), Access::all());
        rig.nics[nic].reg_mr(MrAttr { pd, iova, length, access, memory: memory.dma() }).unwrap()
    };
    let (near, far) = (region(0, 0), region(1, 0));
    for _ in 0..count {
        let data = [Data::new(0, len, near.lkey)];
        rig.a.post(op, CtrlFlags::CQ_UPDATE, 0, Some(Raddr::new(0, far.rkey)), &data);
    }
    rig.a.ring();
    // To the last completion, not to the last timer.
    let mut done = 0;
    while done < count {
        let step = rig.nics.iter_mut().map(|nic| nic.step(rig.now, 256));
        let steps: Vec<_> = step.collect();
        if steps.iter().all(|step| step.executed == 0) {
            let next = steps.iter().filter_map(|step| step.next_event).min();
            rig.now = rig.now.max(next.unwrap_or_else(|| panic!("nothing is left to happen")));
        }
        let cqes = rig.a.poll_all();
        assert!(cqes.iter().all(|cqe| cqe.syndrome_byte() == 0));
        done += cqes.len() as u64;
    }
    (u64::from(len) * count) as f64 / rig.now as f64
}

#[test]
fn large_messages_fill_the_profiles_link_either_way() {
    for op in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let rate = gigabytes_a_second(op, 1 << 20, 32);
        assert!((24.0..25.0).contains(&rate), "{op:?}: {rate} GB/s");
    }
}

#[test]
fn small_messages_take_the_profiles_time_each() {
    let messages = |count| gigabytes_a_second(Opcode::RdmaWrite, 8, count) / 8.0;
    // 260 M/s, but for the latency of the first: 64 take 3.3 us and 64 * 3.846 ns.
    let rate = messages(64);
    let expected = 64.0 / (3_300.0 + 64.0 * 3.846);
    assert!((rate / expected - 1.0).abs() < 0.1, "{rate} instead of {expected} messages a ns");
}
