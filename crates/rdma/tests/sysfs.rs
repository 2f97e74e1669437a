//! What is read of made-up machines.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rdma::select::{Distance, GidKind, LinkLayer};
use rdma::sysfs::{Pci, Sysfs, distance, moved};

/// A tree in a folder of the test's own.
fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sysfs-{name}"));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.strip_prefix("-> ") {
            Some(to) => symlink(to, path).unwrap(),
            None => fs::write(path, format!("{text}\n")).unwrap(),
        }
    }
    root
}

#[test]
fn a_device_says_what_it_is_where_it_is_and_what_its_ports_are() {
    let root = tree(
        "device",
        &[
            ("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/numa_node", "1"),
            ("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/current_link_speed", "16.0 GT/s PCIe"),
            ("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/current_link_width", "8"),
            ("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/max_link_speed", "32.0 GT/s PCIe"),
            ("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/max_link_width", "16"),
            (
                "class/infiniband/mlx5_0/device",
                "-> ../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0",
            ),
            ("class/infiniband/mlx5_0/fw_ver", "28.39.1002"),
            ("class/infiniband/mlx5_0/board_id", "MT_0000000838"),
            ("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet"),
            ("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)"),
            ("class/infiniband/mlx5_0/ports/1/lid", "0x1f"),
            ("class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001"),
            ("class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("class/infiniband/mlx5_0/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1"),
            ("class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", "RoCE v2"),
            ("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth7"),
            ("class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "7"),
            ("class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "100"),
            ("class/infiniband/mlx5_0/ports/1/counters/odd", "N/A (not a number)"),
            (
                "devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/driver",
                "-> ../../../../bus/pci/drivers/mlx5_core",
            ),
            ("class/infiniband/rxe0/ports/1/state", "1: DOWN"),
            ("devices/system/node/node1/cpulist", "16-31"),
            ("module/nvidia_peermem/version", "1"),
        ],
    );
    let files = Sysfs::at(&root);
    let [known, bare] = &files.devices()[..] else { unreachable!("two devices") };
    assert_eq!((known.name.as_str(), known.firmware.as_deref()), ("mlx5_0", Some("28.39.1002")));
    assert_eq!((known.driver.as_deref(), &bare.driver), (Some("mlx5_core"), &None));
    let pci = known.pci.as_ref().unwrap();
    assert_eq!((pci.address.as_str(), pci.numa), ("0000:3b:00.0", Some(1)));
    assert_eq!(pci.path, ["pci0000:3a", "0000:3a:01.0", "0000:3b:00.0"]);
    let pcie = known.pcie.as_ref().unwrap();
    assert_eq!((pcie.0.as_str(), pcie.1.as_str()), ("16.0 GT/s x8", "32.0 GT/s x16"));
    let port = &known.ports[0];
    assert_eq!((port.number, port.state.as_str(), port.rate), (1, "ACTIVE", Some(400)));
    assert_eq!((port.link, port.lid), (Some(LinkLayer::Ethernet), Some(0x1f)));
    assert_eq!(port.interface.as_deref(), Some("eth7"));
    let gids: Vec<_> = port.gids.iter().map(|(index, gid)| (*index, gid.kind)).collect();
    assert_eq!(gids, [(0, GidKind::V1), (3, GidKind::V2)]);
    assert_eq!(files.gid_kind("mlx5_0", 1, 3), GidKind::V2);
    let counters = files.counters("mlx5_0", 1);
    let due = [("out_of_sequence".to_owned(), 7), ("port_xmit_data".to_owned(), 100)];
    assert_eq!(counters, BTreeMap::from(due));
    assert_eq!(files.cpus_of(1).as_deref(), Some("16-31"));
    assert!(files.has_module("nvidia_peermem") && !files.has_module("nv_peer_mem"));
    // What isn't told isn't made up.
    assert_eq!((&bare.firmware, &bare.pci, bare.ports[0].rate), (&None, &None, None));
    assert!(Sysfs::at(root.join("nowhere")).devices().is_empty());
}

#[test]
fn gpus_are_found_by_their_class_and_address() {
    let files = Sysfs::at(tree(
        "gpus",
        &[
            ("devices/pci0000:00/0000:01:00.0/vendor", "0x10de"),
            ("devices/pci0000:00/0000:01:00.0/class", "0x030200"),
            ("devices/pci0000:00/0000:02:00.0/vendor", "0x10de"),
            ("devices/pci0000:00/0000:02:00.0/class", "0x068000"),
            ("bus/pci/devices/0000:01:00.0", "-> ../../../devices/pci0000:00/0000:01:00.0"),
            ("bus/pci/devices/0000:02:00.0", "-> ../../../devices/pci0000:00/0000:02:00.0"),
        ],
    ));
    let found: Vec<String> = files.gpus().into_iter().map(|gpu| gpu.address).collect();
    // The other one is a switch of theirs.
    assert_eq!(found, ["0000:01:00.0"]);
    assert_eq!(files.pci("00000000:01:00.0").unwrap().address, "0000:01:00.0");
    assert!(files.pci("0000:09:00.0").is_none());
}

#[test]
fn distances_are_those_of_the_bus() {
    let pci = |numa: Option<u32>, path: &str| {
        let path: Vec<String> = path.split('/').map(str::to_owned).collect();
        Pci { address: path.last().unwrap().clone(), path, numa }
    };
    for (one, other, numa, due) in [
        (
            "pci0000:3a/3a:00.0/3b:00.0/3c:00.0/gpu",
            "pci0000:3a/3a:00.0/3b:00.0/3c:01.0/nic",
            [None; 2],
            Distance::Switch,
        ),
        (
            "pci0000:3a/3a:00.0/3b:00.0/3c:00.0/3d:00.0/3e:00.0/gpu",
            "pci0000:3a/3a:00.0/3b:00.0/3c:01.0/nic",
            [None; 2],
            Distance::Switches,
        ),
        ("pci0000:3a/3a:00.0/gpu", "pci0000:3a/3a:01.0/nic", [None; 2], Distance::HostBridge),
        ("pci0000:3a/3a:00.0/gpu", "pci0000:5d/5d:00.0/nic", [Some(0), Some(0)], Distance::Node),
        ("pci0000:3a/3a:00.0/gpu", "pci0000:5d/5d:00.0/nic", [None; 2], Distance::Node),
        ("pci0000:3a/3a:00.0/gpu", "pci0000:5d/5d:00.0/nic", [Some(0), Some(1)], Distance::System),
        ("pci0000:3a/3a:00.0/gpu", "pci0000:5d/5d:00.0/nic", [Some(0), None], Distance::System),
    ] {
        assert_eq!(
            distance(&pci(numa[0], one), &pci(numa[1], other)),
            due,
            "{one} {other} {numa:?}"
        );
    }
}

#[test]
fn only_counters_that_moved_are_told() {
    let of = |all: &[(&str, u64)]| all.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    let (before, after): (BTreeMap<_, _>, BTreeMap<_, _>) = (
        of(&[("still", 5), ("more", 5), ("reset", 9)]),
        of(&[("still", 5), ("more", 8), ("reset", 2), ("new", 1)]),
    );
    assert_eq!(moved(&before, &after), of(&[("more", 3), ("reset", 2), ("new", 1)]));
}
