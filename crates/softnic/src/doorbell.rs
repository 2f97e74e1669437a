//! Doorbells: registers polled, records read, producers moved.

use wire::doorbell::{Doorbell, RECORD_RECEIVE};
use wire::index::extend;
use zerocopy::FromBytes;

use crate::config::{Nanos, Qpn};
use crate::finding::Finding;
use crate::nic::{Nic, REGISTERS, split};
use crate::qp::{Qp, QpState};
use crate::requester::record_producer;

/// Doorbell pages looked at in a step.
const PAGES_A_STEP: usize = 16;
/// Looks at a record that lags behind its ring before its words are suspected to be swapped.
const PATIENCE: u32 = 64;

impl Nic {
    /// Steps after which each doorbell page was looked at.
    #[must_use]
    pub fn steps_around(&self) -> usize {
        self.uar_list.len().div_ceil(PAGES_A_STEP)
    }

    pub(crate) fn poll_doorbells(&mut self, now: Nanos) -> u32 {
        let mut rung = 0;
        let pages = self.uar_list.len();
        for _ in 0..pages.min(PAGES_A_STEP) {
            if self.uar_next >= pages {
                self.uar_next = 0;
            }
            let index = self.uar_list[self.uar_next];
            self.uar_next += 1;
            let Some(uar) = self.uars.at_mut(index) else { continue };
            for (seen, register) in uar.seen.iter_mut().zip(REGISTERS) {
                let Ok(bytes) = uar.page.load_u64(register) else { continue };
                let value = u64::from_ne_bytes(bytes);
                if value == *seen {
                    continue;
                }
                *seen = value;
                rung += 1;
                self.counters.doorbells += 1;
                // What was stored before the ring is visible from here on.
                std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                let Ok(doorbell) = Doorbell::read_from_bytes(&bytes) else { continue };
                let (target, tag) = split(doorbell.qpn());
                let lists = Lists {
                    active: &mut self.active,
                    watching: &mut self.watching,
                    findings: &mut self.findings,
                };
                match self.qps.get_mut(target, tag) {
                    Some(qp) if qp.uar == index => {
                        ring(qp, target, doorbell.producer(), now, lists)
                    }
                    _ => self.findings.add(Finding::NoSuchQp { qpn: doorbell.qpn() }),
                }
                if uar.qps.len() > 1 {
                    // Another QP's ring may have been overwritten before it was seen.
                    for &other in uar.qps.iter().filter(|&&other| other != target) {
                        let lists = Lists {
                            active: &mut self.active,
                            watching: &mut self.watching,
                            findings: &mut self.findings,
                        };
                        if let Some(qp) = self.qps.at_mut(other)
                            && let Some(low) = qp.record.as_ref().and_then(record_producer)
                            && low != qp.sq.producer as u16
                        {
                            advance(qp, other, low, now, lists);
                        }
                    }
                }
            }
        }
        let mut i = 0;
        while let Some(&index) = self.watching.get(i) {
            let lists = Lists {
                active: &mut self.active,
                watching: &mut Vec::new(),
                findings: &mut self.findings,
            };
            let keep = self.qps.at_mut(index).is_some_and(|qp| watch(qp, index, now, lists));
            if keep {
                i += 1;
            } else {
                self.watching.swap_remove(i);
            }
        }
        rung
    }
}

struct Lists<'a> {
    active: &'a mut std::collections::VecDeque<u32>,
    watching: &'a mut Vec<u32>,
    findings: &'a mut crate::finding::Findings,
}

/// A register announced `low` for this QP.
fn ring(qp: &mut Qp, index: u32, low: u16, now: Nanos, lists: Lists<'_>) {
    if !matches!(qp.state, QpState::Rts | QpState::Error) {
        lists.findings.add(Finding::NotReady { qpn: Qpn(qp.qpn) });
        return;
    }
    let Some(record) = &qp.record else {
        advance(qp, index, low, now, lists);
        return;
    };
    let Some(shown) = record_producer(record) else { return };
    let mut lists = lists;
    if shown != qp.sq.producer as u16 && !advance(qp, index, shown, now, lists.reborrow()) {
        return;
    }
    // Covered if the ring isn't ahead of the record.
    let behind = u64::from((qp.sq.producer as u16).wrapping_sub(low));
    if behind > qp.sq.mask + 1 {
        if qp.sq.watch.is_none() {
            lists.watching.push(index);
        }
        qp.sq.watch = Some(low);
        qp.sq.watched = 0;
    }
}

impl Lists<'_> {
    fn reborrow(&mut self) -> Lists<'_> {
        Lists { active: self.active, watching: self.watching, findings: self.findings }
    }
}

/// Looks at a record that lags behind its ring. True while it does.
fn watch(qp: &mut Qp, index: u32, now: Nanos, lists: Lists<'_>) -> bool {
    let Some(rung) = qp.sq.watch else { return false };
    let Some(record) = &qp.record else { return false };
    let Some(shown) = record_producer(record) else { return false };
    if shown != qp.sq.producer as u16 {
        if !advance(qp, index, shown, now, lists) {
            qp.sq.watch = None;
            return false;
        }
    } else {
        qp.sq.watched = qp.sq.watched.saturating_add(1);
        if qp.sq.watched == PATIENCE {
            let receive = record.load_u32(RECORD_RECEIVE * 4).unwrap_or_default();
            if u32::from_be_bytes(receive) as u16 == rung {
                let qpn = Qpn(qp.qpn);
                lists.findings.add(Finding::ReceiveRecordForSend { qpn, producer: rung });
            }
        }
    }
    let covered = u64::from((qp.sq.producer as u16).wrapping_sub(rung)) <= qp.sq.mask + 1;
    if covered || !matches!(qp.state, QpState::Rts | QpState::Error) {
        qp.sq.watch = None;
    }
    qp.sq.watch.is_some()
}

/// Moves a QP's producer forward to `low` (16 bits). False if it was refused.
fn advance(qp: &mut Qp, index: u32, low: u16, now: Nanos, lists: Lists<'_>) -> bool {
    if !matches!(qp.state, QpState::Rts | QpState::Error) {
        return false;
    }
    let sq = &mut qp.sq;
    let producer = extend(sq.producer, low);
    let depth = sq.mask + 1;
    if producer - sq.completed > depth {
        let finding = Finding::DoorbellTooFar {
            qpn: Qpn(qp.qpn),
            completed: sq.completed,
            producer: low,
            depth,
        };
        lists.findings.add(finding);
        return false;
    }
    for block in (sq.producer..producer).take(32) {
        sq.ring.prefetch(sq.offset(block));
    }
    sq.producer = producer;
    sq.doorbell_at = now;
    if !qp.active {
        qp.active = true;
        lists.active.push_back(index);
    }
    true
}
