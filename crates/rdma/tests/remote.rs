//! A NIC of another process, asked over a line: here both are in one process, linked as two are.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rdma::post::{Completion, Ended, RemoteAddr, SendOp, SendPoster, SendQueue, SendWr, Sge};
use rdma::remote::{Ask, Line, RemoteNic, Side, Tell};
use rdma::soft::{Engine, Fabric, FabricAttr, SharedLink};
use rdma::{Access, ConnectAttr, CqKind, Destination, Error, Memory, Nic, Place, QueuePairAttr};

struct Direct {
    side: Arc<Side>,
    is_cut: AtomicBool,
}

impl Line for Direct {
    fn ask(&self, ask: &Ask) -> Result<Tell, String> {
        if self.is_cut.load(Relaxed) {
            return Err("rank 1 is lost".to_owned());
        }
        Ok(self.side.answer(ask))
    }
}

struct Rig {
    near: Arc<dyn Nic>,
    far: RemoteNic,
    line: Arc<Direct>,
    _fabrics: [Fabric; 2],
}

fn rig() -> Rig {
    let link = SharedLink::create().unwrap();
    let attr = FabricAttr { engine: Engine::Thread { cpu: None }, ..FabricAttr::default() };
    let here = Fabric::open_linked(1, link.near(2).unwrap(), &attr).unwrap();
    let there = SharedLink::far(&link.path(), 1).unwrap();
    let there = Fabric::open_linked(2, there, &attr).unwrap();
    let near = Arc::clone(here.nic(0)) as Arc<dyn Nic>;
    let side = Arc::new(Side::new(Arc::clone(there.nic(0)) as _, None));
    let line = Arc::new(Direct { side, is_cut: AtomicBool::new(false) });
    let far = RemoteNic::new(Arc::clone(&line) as _, line.side.introduction());
    Rig { near, far, line, _fabrics: [here, there] }
}

fn completions(near: &dyn Nic, poster: &mut SendPoster, wanted: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    let until = Instant::now() + Duration::from_secs(30);
    while all.len() < wanted && Instant::now() < until {
        let mut out = [Completion::NONE; 8];
        let taken = poster.poll(&mut out);
        all.extend(&out[..taken]);
        near.relax(1023);
    }
    all
}

#[test]
fn what_is_put_through_a_far_nic_arrives_in_its_memory() {
    let rig = rig();
    let attr = QueuePairAttr { log_cq: 10, cq_kind: CqKind::Ring, ..QueuePairAttr::default() };
    let mine = rig.near.create_queue_pair(&attr).unwrap();
    let theirs = rig.far.create_queue_pair(&QueuePairAttr { log_blocks: 2, ..attr }).unwrap();
    let to = Destination { nic: rig.far.address(), qpn: theirs.qpn };
    let back = Destination { nic: rig.near.address(), qpn: mine.qpn };
    rig.far.connect(&theirs, back, &ConnectAttr::default()).unwrap();
    rig.near.connect(&mine, to, &ConnectAttr::default()).unwrap();
    // More than one question's worth.
    let bytes = 9 << 20;
    let source = rig.near.register(&Memory::zeroed(bytes), Access::empty()).unwrap();
    let target = rig.far.allocate(&Place::Host, bytes, Access::all()).unwrap();
    let pattern: Vec<u8> = (0..bytes).map(|i| (i / 3) as u8).collect();
    source.memory.write(0, &pattern).unwrap();
    let mut poster = SendPoster::new(Arc::new(mine)).unwrap();
    let sge = Sge { address: source.address, bytes: bytes as u32, lkey: source.lkey };
    let remote = RemoteAddr { address: target.address, rkey: target.rkey };
    let write = SendWr { wr_id: 1, op: SendOp::Write(sge, remote), signaled: true, fence: false };
    let bad = RemoteAddr { rkey: target.rkey ^ 0x5500, ..remote };
    let refused = SendWr { wr_id: 2, op: SendOp::Write(sge, bad), ..write };
    assert_eq!(poster.post(&[write, refused]), Ok(2));
    let done = completions(rig.near.as_ref(), &mut poster, 2);
    assert_eq!((done[0].wr_id, done[0].ended), (1, Ended::Done));
    assert!(matches!(done[1].ended, Ended::Failed { .. }), "{done:?}");
    let mut arrived = vec![0; bytes];
    target.memory.read(0, &mut arrived).unwrap();
    assert!(arrived == pattern);
    assert!(rig.far.cause(theirs.qpn).is_some());
    assert!(rig.far.findings().is_ok());
}

#[test]
fn what_the_far_side_refuses_is_an_error_in_its_words() {
    let rig = rig();
    let why = |error: Error| error.to_string();
    let local = rig.near.create_queue_pair(&QueuePairAttr::default()).unwrap();
    let to = Destination { nic: rig.near.address(), qpn: local.qpn };
    let attr = ConnectAttr::default();
    assert!(
        why(rig.far.connect(&local, to, &attr).unwrap_err()).contains("isn't the other process's")
    );
    let deep = QueuePairAttr { log_blocks: 40, ..QueuePairAttr::default() };
    assert!(why(rig.far.create_queue_pair(&deep).unwrap_err()).contains("2^40"));
    let memory = Memory::zeroed(8);
    assert!(rig.far.register(&memory, Access::all()).is_err());
    // As only somebody who doesn't keep to this code asks.
    for (ask, expected) in [
        (Ask::Read { object: 99, offset: 0, bytes: 8 }, "no object 99"),
        (Ask::Drop { object: 99 }, "no object 99"),
        (
            Ask::Allocate { place: rdma::remote::PlaceKind::Host, bytes: u64::MAX, access: 255 },
            "are the most",
        ),
        (
            Ask::Allocate { place: rdma::remote::PlaceKind::Gpu, bytes: 8, access: 0 },
            "this rank has none",
        ),
    ] {
        let Tell::Failed(text) = rig.line.side.answer(&ask) else { panic!("{ask:?} was answered") };
        assert!(text.contains(expected), "{ask:?}: {text}");
    }
    let region = rig.far.allocate(&Place::Host, 16, Access::all()).unwrap();
    for (offset, bytes) in [(0, 17), (16, 1), (u64::MAX, 2), (8, u64::MAX)] {
        let ask = Ask::Read { object: 1, offset, bytes };
        assert!(matches!(rig.line.side.answer(&ask), Tell::Failed(_)), "{ask:?}");
    }
    drop(region);
    assert!(matches!(rig.line.side.answer(&Ask::Drop { object: 1 }), Tell::Failed(_)));
}

#[test]
fn a_line_that_is_cut_is_told_and_nothing_hangs() {
    let rig = rig();
    let region = rig.far.allocate(&Place::Host, 16, Access::all()).unwrap();
    rig.line.is_cut.store(true, Relaxed);
    let mut bytes = [1; 16];
    region.memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
    let error = rig.far.create_queue_pair(&QueuePairAttr::default()).unwrap_err().to_string();
    assert!(error.contains("rank 1 is lost"), "{error}");
    assert!(rig.far.findings().is_err() && rig.far.completed().is_err());
}

#[test]
fn a_link_is_the_users_own_and_of_the_right_size() {
    let file = tempfile_of(4096);
    let error = SharedLink::far(file.as_ref(), 1).err().unwrap();
    assert!(matches!(error, Error::SharedLink { what: "believed", .. }), "{error}");
    let nowhere = SharedLink::far("/proc/self/fd/9999".as_ref(), 1).err().unwrap();
    assert!(matches!(nowhere, Error::SharedLink { what: "opened", .. }), "{nowhere}");
}

fn tempfile_of(bytes: u64) -> std::path::PathBuf {
    let path = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("not-a-link");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}
