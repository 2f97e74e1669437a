//! Round trips, index arithmetic at its wraps, and hostile bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::num::NonZeroU64;

use proptest::prelude::*;
use wire::cqe::Cqe;
use wire::doorbell::Doorbell;
use wire::explain;
use wire::index::{extend, rebuild};
use wire::split::{Side, SplitError, split};
use wire::wqe::{
    BuildError, Ctrl, CtrlFlags, DATA_MAX, MESSAGE_MAX, Opcode, Segment, Transport, Warning, Wqe,
    WqeBuf, WqeError, blocks,
};

/// Indices around every wrap that matters.
fn near_wraps() -> impl Strategy<Value = u64> {
    let base = prop_oneof![Just(0u64), Just(1 << 16), Just(1 << 32), Just(1 << 48), any::<u64>()];
    (base, -70_000i64..70_000).prop_map(|(base, by)| base.wrapping_add_signed(by))
}

proptest! {
    #[test]
    fn an_index_is_extended_forward_by_less_than_a_lap(seen in near_wraps(), ahead in 0u64..65_536) {
        let index = seen.wrapping_add(ahead);
        prop_assert_eq!(extend(seen, index as u16), index);
    }

    #[test]
    fn a_counter_in_the_window_is_rebuilt_exactly(
        consumer in near_wraps(),
        window in 1u64..=65_535,
        at in any::<proptest::sample::Index>(),
    ) {
        let done = at.index(window as usize) as u64;
        let last = consumer.wrapping_add(done);
        let next = rebuild(consumer, consumer.wrapping_add(window), last as u16);
        prop_assert_eq!(next, last.wrapping_add(1));
    }

    #[test]
    fn a_counter_outside_the_window_moves_nothing(
        consumer in near_wraps(),
        // Behind the consumer too: the producer may have been read earlier.
        window in -65_535i64..65_535,
        counter in any::<u16>(),
    ) {
        let next = rebuild(consumer, consumer.wrapping_add_signed(window), counter);
        let window = u64::try_from(window).unwrap_or(0);
        let moved = next.wrapping_sub(consumer);
        prop_assert!(moved <= window);
        let ahead = u64::from(counter.wrapping_sub(consumer as u16).wrapping_add(1));
        prop_assert_eq!(moved, if ahead <= window { ahead } else { 0 });
    }

    #[test]
    fn both_doorbell_forms_agree(index in near_wraps(), qpn in 0u32..1 << 24, ds in 1u8..=63) {
        let ctrl = Ctrl::new(Opcode::RdmaWrite, index, qpn, ds, CtrlFlags::NONE, 0);
        prop_assert_eq!(ctrl.opmod(), 0);
        let next = index.wrapping_add(blocks(ds).into());
        let (last, free) = (Doorbell::last_wqe(&ctrl), Doorbell::next_free(qpn, next));
        prop_assert_eq!(last.producer(), next as u16);
        prop_assert_eq!(free.producer(), next as u16);
        prop_assert_eq!((last.qpn(), free.qpn()), (qpn, qpn));
    }

    #[test]
    fn an_entry_is_valid_in_its_own_lap_only(ci in near_wraps(), log_size in 0u32..=22) {
        let cqe = Cqe::requester(8, 1, 2, 3).with_owner(ci, log_size);
        prop_assert!(cqe.is_valid(ci, log_size));
        prop_assert!(!cqe.is_valid(ci.wrapping_add(1 << log_size), log_size));
        prop_assert!(cqe.is_valid(ci.wrapping_add(2 << log_size), log_size));
    }

    #[test]
    fn a_write_reads_back_as_it_was_built(
        index in near_wraps(),
        qpn in 0u32..1 << 24,
        flags in any::<u8>(),
        imm in any::<u32>(),
        raddr in any::<(u64, u32)>(),
        buffers in prop::collection::vec((any::<u64>(), 1u64..4096, 1u32..), 0..20),
        payload in prop::collection::vec(any::<u8>(), 1..400),
    ) {
        let mut wqe = WqeBuf::new(Opcode::RdmaWriteImm, index, qpn, CtrlFlags(flags), imm).unwrap();
        wqe.raddr(raddr.0, raddr.1).unwrap();
        for (addr, len, lkey) in &buffers {
            wqe.data(*addr, *len, *lkey).unwrap();
        }
        wqe.inline(&payload).unwrap();

        let read = Wqe::parse(wqe.bytes(), Transport::Rc).unwrap();
        prop_assert_eq!((read.ctrl().index(), read.ctrl().qpn()), (index as u16, qpn));
        prop_assert_eq!((read.ctrl().flags().0, read.ctrl().imm.get()), (flags, imm));
        let segments: Vec<_> = read.segments().map(|placed| placed.unwrap().segment).collect();
        prop_assert_eq!(segments.len(), buffers.len() + 2);
        for (segment, (addr, len, lkey)) in segments[1..].iter().zip(&buffers) {
            let Segment::Data(data) = segment else { panic!("{segment:?}") };
            prop_assert_eq!((data.addr.get(), u64::from(data.byte_count.get()), data.lkey.get()), (*addr, *len, *lkey));
        }
        prop_assert_eq!(segments.last(), Some(&Segment::Inline(&payload)));
    }

    #[test]
    fn pieces_cover_a_transfer_once_and_stay_in_their_chunks(
        local in (0u64..1 << 40, 1u64..1 << 20),
        remote in (0u64..1 << 40, 1u64..1 << 20),
        length in 0u64..1 << 16,
        max in 1u32..1 << 16,
    ) {
        let chunk = |bytes| NonZeroU64::new(bytes).unwrap();
        let sides = (Side::chunked(local.0, chunk(local.1)), Side::chunked(remote.0, chunk(remote.1)));
        let mut done = 0;
        for piece in split(sides.0, sides.1, length, max).unwrap().take(1 << 17) {
            prop_assert_eq!(piece.done, done);
            prop_assert!(piece.bytes > 0 && piece.bytes <= max);
            for ((offset, chunk), at) in [(local, piece.local_chunk), (remote, piece.remote_chunk)] {
                let (first, last) = (offset + done, offset + done + u64::from(piece.bytes) - 1);
                prop_assert_eq!((first / chunk, last / chunk), (at, at));
            }
            done += u64::from(piece.bytes);
            prop_assert_eq!(piece.last, done == length);
        }
        prop_assert_eq!(done, length);
    }

    #[test]
    fn any_bytes_are_walked_and_explained_without_a_panic(
        raw in prop::collection::vec(any::<u8>(), 0..300),
        opcode in prop::sample::select(Opcode::ALL),
        ds in 0u8..70,
        opmod in prop::sample::select(&[0u8, 8, 9, 255][..]),
        steer in any::<bool>(),
        dc in any::<bool>(),
    ) {
        let mut raw = raw;
        if steer && raw.len() >= 8 {
            (raw[0], raw[3], raw[7]) = (opmod, opcode as u8, ds);
        }
        let transport = if dc { Transport::Dc } else { Transport::Rc };
        if let Ok(wqe) = Wqe::parse(&raw, transport) {
            let mut end = 16;
            for placed in wqe.segments() {
                let Ok(placed) = placed else { break };
                prop_assert_eq!(placed.offset, end);
                end += match placed.segment {
                    Segment::AddressVector(_) => 48,
                    Segment::MaskedCas8(_) => 32,
                    Segment::Inline(payload) => (payload.len() + 4).next_multiple_of(16),
                    _ => 16,
                };
                prop_assert!(end <= wqe.bytes().len());
            }
        }
        let shown = explain::Wqe { bytes: &raw, transport }.to_string();
        prop_assert!(!shown.is_empty());
    }

    #[test]
    fn any_cqe_and_doorbell_is_explained(raw in any::<[[u8; 32]; 2]>()) {
        let cqe: Cqe = zerocopy::transmute!(raw);
        prop_assert!(!explain::Cqe::whole(cqe).to_string().is_empty());
        let head: [u8; 8] = *raw[0].first_chunk().unwrap();
        let doorbell: Doorbell = zerocopy::transmute!(head);
        prop_assert!(!explain::Doorbell(doorbell).to_string().is_empty());
    }
}

fn write() -> WqeBuf {
    let mut wqe = WqeBuf::new(Opcode::RdmaWrite, 0, 0x2ed, CtrlFlags::CQ_UPDATE, 0).unwrap();
    wqe.raddr(0x1000, 2).unwrap();
    wqe
}

#[test]
fn what_can_not_be_a_wqe_is_refused_and_appends_nothing() {
    let mut wqe = write();
    let before = wqe.bytes().to_vec();
    let max = u64::from(DATA_MAX);
    for (len, error) in [
        (0, BuildError::Empty),
        (1 << 31, BuildError::TooLong { len: 1 << 31, max }),
        (1 << 32, BuildError::TooLong { len: 1 << 32, max }),
        (u64::MAX, BuildError::TooLong { len: u64::MAX, max }),
    ] {
        assert_eq!(wqe.data(0, len, 1).unwrap_err(), error);
    }
    assert_eq!(wqe.inline(&[]).unwrap_err(), BuildError::Empty);
    assert_eq!(wqe.inline(&[0; 61 * 16 - 3]).unwrap_err(), BuildError::Segments { needed: 64 });
    assert!(matches!(wqe.inline(&[0; 1 << 20]), Err(BuildError::Segments { .. })));
    assert_eq!(wqe.bytes(), before);

    wqe.data(0, max, 1).unwrap();
    let len = max + 2;
    assert_eq!(wqe.data(0, 2, 1).unwrap_err(), BuildError::TooLong { len, max: MESSAGE_MAX });
    for _ in 0..60 {
        write_one(&mut wqe);
    }
    assert_eq!(wqe.raddr(0, 0).unwrap_err(), BuildError::Segments { needed: 64 });
    assert_eq!((wqe.bytes().len(), wqe.blocks()), (63 * 16, 16));

    let qpn = 1 << 24;
    let refused = WqeBuf::new(Opcode::Nop, 0, qpn, CtrlFlags::NONE, 0);
    assert_eq!(refused.unwrap_err(), BuildError::Qpn { qpn });
}

fn write_one(wqe: &mut WqeBuf) {
    wqe.raddr(0, 1).unwrap();
}

/// Bytes to set, and where.
type Patches = &'static [(usize, u8)];

/// Sets bytes of a well-formed write of one buffer.
fn spoiled(patches: Patches) -> Vec<u8> {
    let mut wqe = write();
    wqe.data(0x2000, 8, 1).unwrap();
    let mut bytes = wqe.bytes().to_vec();
    for (at, byte) in patches {
        bytes[*at] = *byte;
    }
    bytes
}

#[test]
fn malformed_wqes_are_errors_that_say_what_and_where() {
    let cases: &[(Patches, WqeError, &str)] = &[
        (&[(7, 0)], WqeError::Ds { raw: 0 }, "ds is 0"),
        (&[(7, 64)], WqeError::Ds { raw: 64 }, "ds is 64"),
        (&[(7, 4)], WqeError::Truncated { ds: 4, have: 48 }, "only 48 bytes"),
        (&[(3, 0x77)], WqeError::Opcode { byte: 0x77 }, "0x77 at offset 3"),
        (
            &[(7, 1)],
            WqeError::Missing {
                part: wire::wqe::Part::Raddr,
                offset: 16,
                opcode: Opcode::RdmaWrite,
            },
            "remote address segment at offset 16",
        ),
        (
            &[(32, 0x80), (35, 13)],
            WqeError::InlineBeyond { offset: 32, len: 13, room: 12 },
            "room for 12",
        ),
        (
            &[(3, 0x10), (32, 0x80)],
            WqeError::InlineResult { offset: 32, opcode: Opcode::RdmaRead },
            "RDMA_READ",
        ),
        (
            &[(3, 0x14), (0, 7)],
            WqeError::Opmod { opcode: Opcode::AtomicMaskedCs, opmod: 7 },
            "opmod 0x07",
        ),
    ];
    for (patches, expected, words) in cases {
        let raw = spoiled(patches);
        let found = Wqe::parse(&raw, Transport::Rc)
            .and_then(|wqe| wqe.segments().collect::<Result<Vec<_>, _>>().map(drop));
        assert_eq!(found.unwrap_err(), *expected);
        let shown = explain::Wqe { bytes: &raw, transport: Transport::Rc }.to_string();
        assert!(shown.contains(words), "{words:?} is not in\n{shown}");
    }
}

#[test]
fn silent_mistakes_are_warned_of() {
    let cases: &[(Patches, Warning, &str)] = &[
        (
            &[(0, 1), (2, 5)],
            Warning::Opmod { opcode: Opcode::RdmaWrite, opmod: 1, index: 5 },
            "it would be 65541",
        ),
        (&[(27, 0)], Warning::ZeroRkey { offset: 16 }, "remote key at offset 24 is 0"),
        (&[(39, 0)], Warning::ZeroLkey { offset: 32 }, "local key at offset 36 is 0"),
        (&[(38, 1), (39, 0)], Warning::InvalidLkey { offset: 32 }, "0x100"),
        (&[(35, 0)], Warning::ByteCountZero { offset: 32 }, "2^31"),
        (&[(32, 0x80), (35, 0)], Warning::InlineEmpty { offset: 32 }, "0 bytes"),
    ];
    for (patches, expected, words) in cases {
        let raw = spoiled(patches);
        let mut warnings = Vec::new();
        Wqe::parse(&raw, Transport::Rc).unwrap().warnings(|warning| warnings.push(warning));
        assert_eq!(warnings, [*expected]);
        let shown = explain::Wqe { bytes: &raw, transport: Transport::Rc }.to_string();
        assert!(shown.contains(words), "{words:?} is not in\n{shown}");
    }
}

#[test]
fn splits_that_make_no_sense_are_refused() {
    let zero = Side::whole(0);
    for max in [0, DATA_MAX + 1, u32::MAX] {
        assert_eq!(split(zero, zero, 1, max).unwrap_err(), SplitError::MaxMessage { max });
    }
    let offset = u64::MAX - 1;
    let error = SplitError::Overflow { offset, length: 2 };
    assert_eq!(split(Side::whole(offset), zero, 2, 1).unwrap_err(), error);
    assert_eq!(split(zero, Side::whole(offset), 2, 1).unwrap_err(), error);
    assert_eq!(split(zero, zero, 0, 1).unwrap().count(), 0);
}
