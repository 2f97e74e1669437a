//! The choice of GID and path MTU, on tables.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::unwrap_used)]

use std::net::Ipv6Addr;

use rdma::select::{
    Candidate, Distance, Gid, GidKind, NoMtu, PathMtu, Wanted, gid, path_mtu, port,
};
use serde_json::Value;

fn cases(kind: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../wire/testdata/public-reports.json")).unwrap();
    let cases = all[kind].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn entry(text: &str) -> Gid {
    let (address, kind) = text.split_once(' ').unwrap();
    let address: Ipv6Addr = if address == "fe80" { "fe80::1" } else { address }.parse().unwrap();
    Gid { address, kind: if kind == "v2" { GidKind::V2 } else { GidKind::V1 } }
}

#[test]
fn the_gid_of_reported_tables_is_the_routable_one() {
    for case in cases("gid_choice") {
        let table: Vec<Gid> =
            case["table"].as_array().unwrap().iter().map(|e| entry(e.as_str().unwrap())).collect();
        assert_eq!(gid(&table).map(|i| i as u64), case["index"].as_u64(), "{case}");
    }
}

#[test]
fn version_goes_before_reach_and_reach_before_order() {
    for (table, chosen) in [
        (&[][..], None),
        (&[":: v2"], None),
        (&["fe80 v1"], Some(0)),
        (&["2001:db8::1 v1", "fe80 v2"], Some(1)),
        (&["fe80 v2", "2001:db8::1 v2", "::ffff:10.0.0.1 v2"], Some(1)),
        (&[":: v2", "fe80 v1", "::ffff:10.0.0.1 v1"], Some(2)),
    ] {
        let entries: Vec<Gid> = table.iter().map(|e| entry(e)).collect();
        assert_eq!(gid(&entries), chosen, "{table:?}");
    }
}

#[test]
fn a_path_mtu_is_never_above_the_ports_and_says_when_it_is_less_than_asked() {
    for case in cases("path_mtu") {
        let number = |name: &str| case[name].as_u64().unwrap() as u32;
        let mtu = path_mtu(number("asked"), number("active")).unwrap();
        assert_eq!(mtu, PathMtu { bytes: number("active"), limited_by_port: true }, "{case}");
    }
    assert_eq!(path_mtu(512, 4096), Ok(PathMtu { bytes: 512, limited_by_port: false }));
    for (asked, active, wrong) in
        [(0, 1024, 0), (1500, 4096, 1500), (8192, 4096, 8192), (1024, 1000, 1000)]
    {
        assert!(matches!(path_mtu(asked, active), Err(NoMtu { bytes, .. }) if bytes == wrong));
    }
}

fn candidate(
    device: &str,
    port: u8,
    active: bool,
    rate: Option<u32>,
    distance: Option<Distance>,
) -> Candidate {
    let state = if active { Ok(()) } else { Err("DOWN".to_owned()) };
    Candidate { device: device.to_owned(), port, state, rate, distance }
}

#[test]
fn a_port_is_active_near_fast_and_first_in_this_order() {
    use Distance::{HostBridge, Node, Switch, System};
    let port_of =
        |device, number, active, rate, distance| candidate(device, number, active, rate, distance);
    for (name, table, wanted, chosen, why) in [
        ("alone", vec![port_of("mlx5_0", 1, true, Some(400), None)], "", 0, "the only port"),
        (
            "one is down",
            vec![
                port_of("a", 1, false, Some(400), Some(Switch)),
                port_of("b", 1, true, Some(100), Some(System)),
            ],
            "",
            1,
            "the only active port",
        ),
        (
            "near before fast",
            vec![
                port_of("a", 1, true, Some(400), Some(System)),
                port_of("b", 1, true, Some(200), Some(Switch)),
            ],
            "",
            1,
            "nearest to the GPU (PIX)",
        ),
        (
            "unknown is far",
            vec![
                port_of("a", 1, true, Some(400), None),
                port_of("b", 1, true, Some(200), Some(HostBridge)),
            ],
            "",
            1,
            "nearest to the GPU (PHB)",
        ),
        (
            "fast where equally near",
            vec![
                port_of("a", 1, true, Some(100), Some(Node)),
                port_of("b", 1, true, Some(400), Some(Node)),
            ],
            "",
            1,
            "fastest (400 Gb/s) of 2 active ports",
        ),
        (
            "first where all is equal",
            vec![port_of("a", 1, true, None, None), port_of("a", 2, true, None, None)],
            "",
            0,
            "first of 2 active ports",
        ),
        (
            "what is asked for, near or not",
            vec![
                port_of("a", 1, true, Some(400), Some(Switch)),
                port_of("b", 1, true, Some(100), Some(System)),
            ],
            "b",
            1,
            "asked for",
        ),
        (
            "a port of it",
            vec![port_of("a", 1, true, Some(400), None), port_of("a", 2, true, Some(100), None)],
            "a:2",
            1,
            "asked for",
        ),
    ] {
        let wanted = if wanted.is_empty() { Wanted::default() } else { wanted.parse().unwrap() };
        let (index, said) = port(&table, &wanted).unwrap();
        assert_eq!(index, chosen, "{name}: {said}");
        assert!(said.contains(why), "{name}: {said}");
    }
}

#[test]
fn without_a_port_it_is_said_what_there_is() {
    let table = [
        candidate("a", 1, false, None, None),
        candidate("a", 2, true, None, None),
        candidate("b", 1, false, None, None),
    ];
    for (table, wanted, words) in [
        (&[][..], "", vec!["no RDMA device"]),
        (&table[..1], "", vec!["a:1 is DOWN"]),
        (&table, "c", vec!["called c", "a:1, a:2, b:1"]),
        (&table, "a:3", vec!["called a:3", "a:2"]),
        (&table, "b", vec!["b:1 is DOWN"]),
        (&table, "a:1", vec!["a:1 is DOWN"]),
    ] {
        let wanted = if wanted.is_empty() { Wanted::default() } else { wanted.parse().unwrap() };
        let said = port(table, &wanted).unwrap_err().to_string();
        for word in words {
            assert!(said.contains(word), "{word} in {said}");
        }
    }
    for text in ["", ":1", "a:0", "a:x", "a:256"] {
        assert!(text.parse::<Wanted>().is_err(), "{text}");
    }
}
