//! A NIC fed with hostile queues, doorbells and commands, for fuzzers and for the tests that replay them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wire::doorbell::{UAR_BLUEFLAME_STRIDE, UAR_SEND};

use crate::config::{Caps, CqAttr, DctAttr, MrAttr, NicConfig, QpAttr, QpKind, Qpn, RqAttr};
use crate::fault::Faults;
use crate::link::{LinkAttr, link};
use crate::memory::Memory;
use crate::mr::{Access, MrKeys};
use crate::nic::Nic;
use crate::qp::Modify;

const GUARD: usize = 256;
const GUARD_WORD: u64 = 0xa5a5_5a5a_a5a5_5a5a;
const REGION: usize = 16 << 10;
const BASE: u64 = 0x10_0000;
const LOG_SQ: u32 = 4;

/// Memory with guard words on both sides of what the NIC is given.
struct Guarded {
    memory: Arc<Memory>,
    len: usize,
}

impl Guarded {
    fn new(len: usize) -> Self {
        let memory = Memory::zeroed(len + 2 * GUARD);
        let guarded = Self { memory, len };
        for offset in guarded.guards() {
            guarded.memory.word(offset).store(GUARD_WORD, Ordering::Relaxed);
        }
        guarded
    }
    fn guards(&self) -> impl Iterator<Item = usize> + use<> {
        let len = self.len;
        (0..GUARD / 8).flat_map(move |i| [i * 8, GUARD + len + i * 8])
    }
    fn dma(&self) -> Option<crate::DmaBuf> {
        self.memory.dma().slice(GUARD, self.len).ok()
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        let room = self.len.saturating_sub(offset).min(bytes.len());
        let _ = self.memory.write(GUARD + offset, &bytes[..room]);
    }
    /// # Panics
    /// If a guard was overwritten.
    fn check(&self) {
        for offset in self.guards() {
            let word = self.memory.word(offset).load(Ordering::Relaxed);
            assert_eq!(word, GUARD_WORD, "the NIC wrote outside of what it was given");
        }
    }
}

struct Side {
    sq: Guarded,
    rq: Guarded,
    cq: Guarded,
    region: Guarded,
    record: Guarded,
    page: Guarded,
    keys: MrKeys,
    qpn: Qpn,
}

fn side(nic: &mut Nic, kind: QpKind) -> Option<Side> {
    let (sq, rq) = (Guarded::new(64 << LOG_SQ), Guarded::new(64 << 3));
    let (cq, region) = (Guarded::new(64 << 4), Guarded::new(REGION));
    let (record, page) = (Guarded::new(64), Guarded::new(4096));
    cq.write(0, &[0xff; 64 << 4]);
    let pd = nic.alloc_pd().ok()?;
    let uar = nic.alloc_uar(page.dma()?).ok()?;
    let cq_id = nic
        .create_cq(CqAttr {
            ring: cq.dma()?,
            log_size: 4,
            record: record.dma()?.slice(16, 8).ok()?,
            collapsed: false,
            ignore_overrun: true,
        })
        .ok()?;
    let length = REGION as u64;
    let memory = region.dma()?;
    let keys = nic.reg_mr(MrAttr { pd, iova: BASE, length, access: Access::all(), memory }).ok()?;
    let receive = RqAttr { ring: rq.dma()?, log_wqes: 3, log_stride: 6 };
    let qpn = nic
        .create_qp(QpAttr {
            pd,
            kind,
            send_cq: cq_id,
            recv_cq: cq_id,
            sq: sq.dma()?,
            log_sq_blocks: LOG_SQ,
            rq: Some(receive.clone()),
            record: Some(record.dma()?),
            uar,
            max_rd_atomic: 4,
            sq_start: 0,
        })
        .ok()?;
    let rq_record = record.dma()?;
    let access = Access::all();
    nic.create_dct(DctAttr {
        pd,
        recv_cq: cq_id,
        dc_key: 7,
        access,
        rq: Some((receive, rq_record)),
        min_rnr_timer: 1,
    })
    .ok()?;
    Some(Side { sq, rq, cq, region, record, page, keys, qpn })
}

fn connect(nic: &mut Nic, qpn: Qpn, dest_nic: u16, dest_qpn: Qpn) {
    let _ = nic.modify_qp(qpn, Modify::ToReset);
    let _ = nic.modify_qp(qpn, Modify::ToInit { access: Access::all() });
    let max_dest_rd_atomic = 4;
    let to = Modify::ToRtr { dest_nic, dest_qpn, rq_psn: 0, max_dest_rd_atomic, min_rnr_timer: 1 };
    let _ = nic.modify_qp(qpn, to);
    let to = Modify::ToRts { sq_psn: 0, retry_cnt: 1, rnr_retry: 1, timeout: 1, max_rd_atomic: 4 };
    let _ = nic.modify_qp(qpn, to);
}

/// Reads commands from a fuzzer's bytes.
struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (now, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        now
    }
    fn byte(&mut self) -> Option<u8> {
        self.take(1).first().copied()
    }
    fn word(&mut self) -> u32 {
        let mut word = [0; 4];
        let bytes = self.take(4);
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(word)
    }
}

/// Runs a program of hostile commands against two linked NICs.
///
/// # Panics
/// If the NIC writes outside of what it was given. Anything else that panics is a defect, too.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape(bytes);
    let caps = Caps {
        max_qps: 4,
        max_dcts: 4,
        max_dc_contexts: 8,
        max_cqs: 4,
        max_mrs: 4,
        max_pds: 4,
        max_uars: 4,
        ..Caps::default()
    };
    let first = tape.byte().unwrap_or(0);
    let trace = if first & 2 == 2 { 8 } else { 0 };
    let mut nics = [1, 2].map(|id| Nic::new(NicConfig { id, caps, trace, ..NicConfig::default() }));
    let (x, y) = link(1, 2, LinkAttr { log_lane_bytes: 14 });
    nics[0].connect_link(x);
    nics[1].connect_link(y);
    let kind = if first & 1 == 1 { QpKind::Dci } else { QpKind::Rc };
    let (Some(a), Some(b)) = (side(&mut nics[0], kind), side(&mut nics[1], QpKind::Rc)) else {
        return;
    };
    connect(&mut nics[0], a.qpn, 2, b.qpn);
    connect(&mut nics[1], b.qpn, 1, a.qpn);
    let sides = [a, b];
    let mut now = 0u64;
    let mut producer = 0u32;
    while let Some(command) = tape.byte() {
        let who = usize::from(command >> 7);
        let side = &sides[who];
        match command & 15 {
            // Raw bytes into the send queue.
            0 => {
                let at = usize::from(tape.byte().unwrap_or(0)) * 16;
                side.sq.write(at, tape.take(64));
            }
            // A WQE whose control segment, keys and addresses are sound, with hostile details.
            1..=6 => {
                let op = tape.byte().unwrap_or(0);
                let ds = tape.byte().unwrap_or(3);
                let flags = tape.byte().unwrap_or(0);
                let opmod = if flags & 1 == 1 { 9u32 } else { 0 };
                let slot = (producer & ((1 << LOG_SQ) - 1)) as usize * 64;
                let mut wqe = Vec::with_capacity(64);
                wqe.extend_from_slice(
                    &(opmod << 24 | (producer & 0xffff) << 8 | u32::from(op)).to_be_bytes(),
                );
                wqe.extend_from_slice(&(side.qpn.0 << 8 | u32::from(ds)).to_be_bytes());
                wqe.extend_from_slice(&[0, 0, 0, flags, 1, 2, 3, 4]);
                let peer = sides[1 - who].keys;
                let address = BASE.wrapping_add(u64::from(tape.word()) % (2 * REGION as u64));
                let raddr =
                    [&address.to_be_bytes()[..], &peer.rkey.to_be_bytes(), &[0; 4]].concat();
                let local = BASE.wrapping_add(u64::from(tape.word()) % (2 * REGION as u64));
                let len = tape.word() % (REGION as u32 * 2);
                let data =
                    [&len.to_be_bytes()[..], &side.keys.lkey.to_be_bytes(), &local.to_be_bytes()]
                        .concat();
                match command & 15 {
                    1 => wqe.extend([raddr, data].concat()),
                    2 => wqe.extend([data.clone(), data].concat()),
                    3 => wqe.extend([raddr, tape.take(16).to_vec(), data].concat()),
                    4 => wqe.extend([raddr, tape.take(32).to_vec()].concat()),
                    5 => wqe.extend([tape.take(16).to_vec(), raddr, data].concat()),
                    _ => wqe.extend(
                        [raddr, (0x8000_0000 | (len % 64)).to_be_bytes().to_vec()].concat(),
                    ),
                }
                side.sq.write(slot, &wqe);
                producer = producer.wrapping_add(u32::from(ds & 63).div_ceil(4).max(1));
                if command & 0x40 != 0 {
                    // Rung with a later one.
                    continue;
                }
                side.record.write(4, &(producer & 0xffff).to_be_bytes());
                let bell = u64::from(producer & 0xffff) << 40 | u64::from(side.qpn.0) << 8;
                side.page.write(UAR_SEND, &bell.to_be_bytes());
            }
            7 => side.record.write(usize::from(tape.byte().unwrap_or(0) & 28), tape.take(4)),
            8 => side.page.write(UAR_SEND, tape.take(8)),
            9 => {
                let bell = u64::from(tape.word() & 0xffff) << 40 | u64::from(side.qpn.0) << 8;
                side.page.write(UAR_SEND + UAR_BLUEFLAME_STRIDE, &bell.to_be_bytes());
            }
            10 => side.rq.write(usize::from(tape.byte().unwrap_or(0)) * 16, tape.take(64)),
            11 => {
                let data = [
                    &(tape.word() % (2 * REGION as u32)).to_be_bytes()[..],
                    &side.keys.lkey.to_be_bytes(),
                    &BASE.to_be_bytes(),
                ]
                .concat();
                side.rq.write(usize::from(tape.byte().unwrap_or(0) & 7) * 64, &data);
                side.record.write(0, &(tape.word() & 0xff).to_be_bytes());
            }
            12 => {
                let (n, seed) = (tape.word() % 8, u64::from(tape.word()));
                let drop_random = (n > 0).then_some((n, seed));
                let shuffle = tape.byte().map(u64::from).filter(|b| b % 2 == 1);
                nics[who].set_faults(Faults {
                    drop_random,
                    out_of_order_placement: shuffle,
                    ..Faults::default()
                });
            }
            13 => {
                let peer = sides[1 - who].qpn;
                connect(&mut nics[who], side.qpn, 2 - who as u16, peer);
                producer = 0;
            }
            14 => {
                let _ = nics[who].modify_qp(side.qpn, Modify::ToError);
            }
            _ => now = now.saturating_add(u64::from(tape.word())),
        }
        for nic in &mut nics {
            nic.step(now, 64);
        }
    }
    for _ in 0..64 {
        now += 10_000;
        for nic in &mut nics {
            nic.step(now, 64);
        }
    }
    for side in &sides {
        for guarded in [&side.sq, &side.rq, &side.cq, &side.region, &side.record, &side.page] {
            guarded.check();
        }
    }
}
