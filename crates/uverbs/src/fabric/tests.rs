//! Two openers of one fabric, as two processes would be.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsRawFd;

use super::*;

fn path(file: &OwnedFd) -> std::path::PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[test]
fn nodes_find_each_other_by_device_and_number() {
    let file = Fabric::create().unwrap();
    let [a, b] = [0, 1].map(|_| Fabric::open(&path(&file)).unwrap());
    let x = a.join(0).unwrap();
    let y = b.join(0).unwrap();
    assert_ne!(x.at, y.at);
    for (node, other) in [(x, &b), (y, &a)] {
        let qpn = u32::from(*node.tags().end()) << 16 | 5;
        assert_eq!(other.owner(0, qpn), Some(node));
        assert_eq!(other.owner(1, qpn), None, "another device");
        assert_eq!(other.owner(0, 5), None, "no tag");
        assert_eq!(other.owner(0, 0xff_0005), None, "nobody's tag");
    }
    a.leave(x);
    assert!(!b.is_there(x, false));
    let again = b.join(0).unwrap();
    assert_eq!(again.at, x.at);
    assert!(!b.is_there(x, false) && b.is_there(again, true));
}

#[test]
fn each_end_of_a_link_is_taken_once_whoever_begins() {
    let file = Fabric::create().unwrap();
    let [a, b] = [0, 1].map(|_| Fabric::open(&path(&file)).unwrap());
    let x = a.join(0).unwrap();
    let y = b.join(0).unwrap();
    let bell = b.bell(y);
    assert!(a.connect(x, y).unwrap().is_some());
    assert!(a.connect(x, y).unwrap().is_none());
    assert_ne!(b.bell(y), bell);
    assert_eq!(b.accept(y).unwrap().len(), 1);
    assert!(b.accept(y).unwrap().is_empty());
    assert!(b.connect(y, x).unwrap().is_none());
    assert!(a.accept(x).unwrap().is_empty());
    // The peer comes again as another.
    b.leave(y);
    let z = b.join(0).unwrap();
    assert_eq!(z.at, y.at);
    assert!(b.connect(z, x).unwrap().is_some());
    assert_eq!(a.accept(x).unwrap().len(), 1);
}

#[test]
fn links_of_the_gone_are_used_again() {
    let fabric = Fabric::private().unwrap();
    let x = fabric.join(0).unwrap();
    for _ in 0..LINKS + 10 {
        let peer = fabric.join(0).unwrap();
        let both = [fabric.connect(x, peer).unwrap(), fabric.connect(peer, x).unwrap()];
        assert!(both.iter().all(Option::is_some));
        fabric.leave(peer);
        fabric.release(x, peer);
    }
}

#[test]
fn a_table_that_is_full_says_so() {
    let fabric = Fabric::private().unwrap();
    let nodes: Vec<_> = std::iter::from_fn(|| fabric.join(0).ok()).collect();
    assert_eq!(nodes.len(), NODES);
    assert_eq!(fabric.join(0), Err(Errno::ENOMEM));
}

#[test]
fn what_is_no_fabric_is_refused() {
    assert!(matches!(Fabric::open(Path::new("/nowhere")), Err(FabricError::System { .. })));
    let file = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
    fchmod(&file, Mode::RUSR | Mode::WUSR).unwrap();
    assert!(matches!(Fabric::open(&path(&file)), Err(FabricError::Format)));
    ftruncate(&file, layout::SIZE as u64).unwrap();
    assert!(matches!(Fabric::open(&path(&file)), Err(FabricError::Format)));
    let file = Fabric::create().unwrap();
    fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::ROTH).unwrap();
    assert!(matches!(Fabric::open(&path(&file)), Err(FabricError::Format)));
}

#[test]
fn findings_are_kept_up_to_their_room() {
    let fabric = Fabric::private().unwrap();
    fabric.report("first");
    fabric.report("second");
    assert_eq!(fabric.reported(), "first\nsecond\n");
    let long = "x".repeat(100 << 10);
    for _ in 0..4 {
        fabric.report(&long);
    }
    assert_eq!(fabric.reported().len(), 256 << 10);
}

#[test]
fn engine_sleeps_until_a_peer_wakes_any_of_its_nodes() {
    const NEVER: Duration = Duration::from_secs(3600);
    let file = Fabric::create().unwrap();
    let [a, b] = [0, 1].map(|_| Fabric::open(&path(&file)).unwrap());
    let nodes = [0, 1].map(|device| b.join(device).unwrap());
    for node in nodes {
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| b.doze(&nodes, NEVER, || true));
            while !sleeper.is_finished() {
                a.wake(node);
                std::thread::yield_now();
            }
        });
    }
    // What comes when all can see that it sleeps is seen by itself.
    b.doze(&nodes, NEVER, || false);
}
