//! The choice of GID and path MTU, on tables.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::unwrap_used)]

use std::net::Ipv6Addr;

use rdma::select::{Gid, GidKind, NoMtu, PathMtu, gid, path_mtu};
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
