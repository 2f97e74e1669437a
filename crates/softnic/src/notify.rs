//! Events: completions that a client waits for, and objects that went into error.

use wire::doorbell::RECORD_CQ_ARM;

use crate::check::Cause;
use crate::config::{CqId, Qpn, SrqId};
use crate::cq::Cq;
use crate::error::CreateError;
use crate::nic::Nic;
use crate::qp::QpState;

/// What a NIC has to tell its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A CQ that was armed has a new entry. It isn't armed any more.
    Completion {
        /// The CQ.
        cq: CqId,
    },
    /// A CQ ran over.
    CqError {
        /// The CQ.
        cq: CqId,
    },
    /// A shared receive queue has fewer receives than its limit, which is taken back.
    SrqLimit {
        /// The queue.
        srq: SrqId,
    },
    /// A QP in ERROR takes nothing more from its shared receive queue.
    LastReceive {
        /// Its number.
        qpn: Qpn,
    },
    /// A QP that was told to send nothing more has no send on its way any more.
    Drained {
        /// Its number.
        qpn: Qpn,
    },
    /// The port went down, or came up again.
    Port {
        /// It is up.
        is_up: bool,
    },
    /// A QP went to ERROR, and not because it was told to.
    QpError {
        /// Its number.
        qpn: Qpn,
        /// Why, if a WQE or a request did it.
        cause: Option<Cause>,
        /// A peer's request did it, not a WQE.
        by_request: bool,
    },
}

/// Of a CQ whose client waits for events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notify {
    /// The arm request that was seen last.
    seen: u32,
    armed: bool,
    solicited_only: bool,
    /// The consumer index of that request, extended.
    consumer: u64,
    /// Entries written when the last event was told.
    told: u64,
}

/// What the arm word of a CQ's record holds before the client's first request: none that it can write, because the
/// first request may be 0, as the record is when it is made.
const NEVER_ARMED: u32 = u32::MAX;

/// In the arm word: only completions that asked for it.
const SOLICITED: u32 = 1 << 24;

impl Cq {
    fn arm_word(&self) -> u32 {
        u32::from_be_bytes(self.record.load_u32(RECORD_CQ_ARM * 4).unwrap_or([0xff; 4]))
    }

    /// Whether an event is due now.
    fn is_due(&mut self) -> bool {
        let word = self.arm_word();
        if word != self.notify.seen {
            let back = (self.produced as u32).wrapping_sub(word) & 0xff_ffff;
            self.notify = Notify {
                seen: word,
                armed: true,
                solicited_only: word & SOLICITED != 0,
                consumer: self.produced.saturating_sub(u64::from(back)),
                ..self.notify
            };
        }
        let newest = if self.notify.solicited_only { self.solicited } else { self.produced };
        let due = self.notify.armed && newest > self.notify.consumer.max(self.notify.told);
        if due {
            self.notify.armed = false;
            self.notify.told = self.produced;
        }
        due
    }
}

impl Nic {
    /// Watches the arm word of a CQ's doorbell record from now on, for
    /// [`Event::Completion`]. The word is overwritten with a value that no request has.
    ///
    /// # Errors
    /// [`CreateError::Unknown`].
    pub fn watch_cq(&mut self, cq: CqId) -> Result<(), CreateError> {
        let index = self.check_cq(cq)?;
        if let Some(cq) = self.cqs.table.at_mut(index) {
            let _ = cq.record.write(RECORD_CQ_ARM * 4, &NEVER_ARMED.to_be_bytes());
            cq.notify = Notify { seen: NEVER_ARMED, ..Notify::default() };
        }
        if !self.watched_cqs.contains(&index) {
            self.watched_cqs.push(index);
        }
        Ok(())
    }

    /// Tells the completions that are due, at most `most` of them. To be called after each step.
    pub fn take_completions(&mut self, most: usize, mut tell: impl FnMut(Event)) {
        let mut told = 0;
        for &index in &self.watched_cqs {
            if told == most {
                return;
            }
            if self.cqs.table.at_mut(index).is_some_and(Cq::is_due) {
                tell(Event::Completion { cq: self.cqs.id(index) });
                told += 1;
            }
        }
    }

    /// Tells what went into error, or ran low, since the last call. It looks at every object: once in a while will do.
    pub fn take_errors(&mut self, mut tell: impl FnMut(Event)) {
        if self.down != self.told_down {
            self.told_down = self.down;
            tell(Event::Port { is_up: !self.down });
        }
        let mut failed = Vec::new();
        for (index, cq) in self.cqs.table.iter_mut() {
            if cq.in_error && !cq.told {
                cq.told = true;
                failed.push(index);
            }
        }
        for index in failed {
            tell(Event::CqError { cq: self.cqs.id(index) });
        }
        for (_, qp) in self.qps.iter_mut() {
            if qp.state == QpState::Error && !qp.told {
                qp.told = true;
                tell(Event::QpError {
                    qpn: Qpn(qp.qpn),
                    cause: qp.error,
                    by_request: qp.by_request,
                });
            }
            if qp.state == QpState::Rts && qp.sq.is_drained() && !qp.told_drained {
                qp.told_drained = true;
                tell(Event::Drained { qpn: Qpn(qp.qpn) });
            }
        }
        self.srq_events(&mut tell);
    }
}
