//! The control path of queue pairs and DC targets.

use wire::wqe::WQEBB;

use crate::check::Cause;
use crate::completion::{ack_timeout, enter_error};
use crate::config::{DctAttr, QpAttr, Qpn, ReceiveFormat, RqAttr};
use crate::dc::{DCT, Dct};
use crate::dma::DmaBuf;
use crate::error::{CreateError, DestroyError, ModifyError};
use crate::finding::Finding;
use crate::mr::Access;
use crate::nic::{Nic, REGISTERS, TAG_SHIFT, split};
use crate::qp::{
    Modify, NEVER, Qp, QpInfo, QpState, QpUpdate, ReceiveQueue, Responder, SendQueue, Sends, Sent,
    Times,
};

impl Nic {
    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// Unknown objects, sizes, alignment, or a full table.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<Qpn, CreateError> {
        self.create_qp_as(attr, ReceiveFormat::default())
    }

    /// As [`create_qp`](Self::create_qp), with receives from elsewhere.
    ///
    /// # Errors
    /// As there.
    pub fn create_qp_as(
        &mut self,
        attr: QpAttr,
        format: ReceiveFormat,
    ) -> Result<Qpn, CreateError> {
        self.check_pd(attr.pd)?;
        let srq = format.srq.map(|srq| self.check_srq(srq)).transpose()?;
        let send_cq = self.check_cq(attr.send_cq)?;
        let recv_cq = self.check_cq(attr.recv_cq)?;
        let uar = attr.uar.0 >> 8;
        if self.uars.get(uar, attr.uar.0 as u8).is_none() {
            return Err(CreateError::Unknown { what: "doorbell page" });
        }
        let caps = self.config.caps;
        if attr.log_sq_blocks > caps.log_max_sq_blocks {
            let max = u64::from(caps.log_max_sq_blocks);
            return Err(CreateError::Range { what: "log2 of send queue blocks", max });
        }
        if attr.max_rd_atomic > caps.max_rd_atomic {
            let max = u64::from(caps.max_rd_atomic);
            return Err(CreateError::Range { what: "reads and atomics in flight", max });
        }
        let blocks = 1u64 << attr.log_sq_blocks;
        let needed = blocks * WQEBB as u64;
        if (attr.sq.len() as u64) < needed || !attr.sq.is_aligned(64) {
            let got = attr.sq.len() as u64;
            return Err(CreateError::Memory { what: "send queue", needed, got, align: 64 });
        }
        if let Some(record) = &attr.record {
            check_record(record)?;
        }
        let rq = match attr.rq {
            None => None,
            Some(_) if srq.is_some() => None,
            Some(rq) => {
                let record = attr.record.clone().ok_or(CreateError::ReceiveWithoutRecord)?;
                Some(receive_queue(rq, record)?)
            }
        };
        let window = u64::from(caps.max_outstanding).min(blocks) as usize;
        let sq = SendQueue {
            ring: attr.sq,
            mask: blocks - 1,
            start: attr.sq_start,
            head: attr.sq_start,
            producer: attr.sq_start,
            completed: attr.sq_start,
            watch: None,
            watched: 0,
            doorbell_at: 0,
            sent: vec![Sent::default(); window].into(),
            times: if self.cqs.trace.is_on() {
                vec![Times::default(); window].into()
            } else {
                Box::default()
            },
            una: 0,
            cursor: 0,
            tail: 0,
            cursor_packets: 0,
            held: false,
            copy: Box::new([0; 128]),
            next_psn: 0,
            acked: 0,
            slots: vec![[0; 128]; usize::from(attr.max_rd_atomic)].into(),
            slots_used: 0,
            max_rd_atomic: attr.max_rd_atomic,
            stopped: false,
            held_back: false,
            retry_cnt: 7,
            retries: 7,
            rnr_retry: 7,
            rnr_retries: 7,
            timeout: NEVER,
            deadline: NEVER,
            not_before: 0,
        };
        let qp = Qp {
            qpn: 0,
            kind: attr.kind,
            state: QpState::Reset,
            pd: attr.pd.0,
            uar,
            send_cq,
            recv_cq,
            record: attr.record,
            access: Access::empty(),
            remote_nic: 0,
            remote_qpn: 0,
            link: 0,
            sq,
            rq,
            srq,
            qkey: 0,
            responder: Responder::new(0, 0, 0, 0, 0),
            generation: 0,
            destination: None,
            reconnect: false,
            user_index: format.user_index & wire::NUMBER_MASK,
            told: false,
            told_last: false,
            told_drained: true,
            by_request: false,
            active: false,
            error: None,
        };
        let made = self.qps.insert(|index, tag| {
            let qpn = u32::from(tag) << TAG_SHIFT | index;
            (Qp { qpn, ..qp }, (index, Qpn(qpn)))
        });
        let (index, qpn) = made.ok_or(CreateError::TableFull { what: "queue pairs" })?;
        if let Some(uar) = self.uars.at_mut(uar) {
            uar.qps.push(index);
        }
        let needs = [(send_cq, blocks), (recv_cq, self.receive_depth(index))];
        for (cq, needed) in needs {
            self.commit(cq, needed);
        }
        self.use_srq(srq, true);
        Ok(qpn)
    }

    fn receive_depth(&self, index: u32) -> u64 {
        self.qps.at(index).and_then(|qp| qp.rq.as_ref()).map_or(0, |rq| 1 << rq.log_wqes)
    }

    /// Counts what may complete in a CQ, and says when that is too much.
    fn commit(&mut self, index: u32, needed: u64) {
        if let Some(cq) = self.cqs.table.at_mut(index) {
            cq.users += 1;
            cq.committed += needed;
            let entries = 1u64 << cq.log_size;
            if !cq.collapsed && cq.committed > entries && needed > 0 {
                let needed = cq.committed;
                let cq = self.cqs.id(index);
                self.findings.add(Finding::CqTooSmall { cq, entries, needed });
            }
        }
    }

    /// Creates a DC target. It answers at once.
    ///
    /// # Errors
    /// Unknown objects, sizes, alignment, or a full table.
    pub fn create_dct(&mut self, attr: DctAttr) -> Result<Qpn, CreateError> {
        self.create_dct_as(attr, ReceiveFormat::default())
    }

    /// As [`create_dct`](Self::create_dct), with receives from elsewhere.
    ///
    /// # Errors
    /// As there.
    pub fn create_dct_as(
        &mut self,
        attr: DctAttr,
        format: ReceiveFormat,
    ) -> Result<Qpn, CreateError> {
        self.check_pd(attr.pd)?;
        let srq = format.srq.map(|srq| self.check_srq(srq)).transpose()?;
        let cq = self.check_cq(attr.recv_cq)?;
        let caps = self.config.caps;
        let depth = attr.rq.as_ref().map_or(0, |(rq, _)| 1u64 << rq.log_wqes.min(63));
        let rq = match attr.rq {
            None => None,
            Some((rq, record)) => {
                check_record(&record)?;
                Some(receive_queue(rq, record)?)
            }
        };
        self.targets.prepare(caps.max_dc_contexts, caps.max_rd_atomic);
        let made = self.targets.table.insert(|index, tag| {
            let number = u32::from(tag) << TAG_SHIFT | DCT | index;
            let dct = Dct {
                number,
                pd: attr.pd.0,
                cq,
                key: attr.dc_key,
                access: attr.access,
                rq,
                srq,
                user_index: format.user_index & wire::NUMBER_MASK,
                min_rnr_timer: attr.min_rnr_timer,
            };
            (dct, Qpn(number))
        });
        let number = made.ok_or(CreateError::TableFull { what: "DC targets" })?;
        self.commit(cq, depth);
        self.use_srq(srq, true);
        Ok(number)
    }

    /// Destroys a DC target and its connections.
    ///
    /// # Errors
    /// Unknown.
    pub fn destroy_dct(&mut self, dctn: Qpn) -> Result<(), DestroyError> {
        self.settle_all();
        let what = "DC target";
        let (index, tag) = split(dctn.0);
        if index & DCT == 0 {
            return Err(DestroyError::Unknown { what });
        }
        let index = index & !DCT;
        let dct = self.targets.table.remove(index, tag).ok_or(DestroyError::Unknown { what })?;
        self.targets.forget(index);
        self.use_srq(dct.srq, false);
        if let Some(cq) = self.cqs.table.at_mut(dct.cq) {
            cq.users -= 1;
            cq.committed -= dct.rq.map_or(0, |rq| 1 << rq.log_wqes);
        }
        Ok(())
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        let (index, tag) = split(qpn.0);
        self.qps.get(index, tag)
    }

    /// Destroys a queue pair. Nothing of its memory is touched afterwards.
    ///
    /// # Errors
    /// Unknown.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        self.settle_all();
        let (index, tag) = split(qpn.0);
        let depth = self.receive_depth(index);
        let qp = self.qps.remove(index, tag).ok_or(DestroyError::Unknown { what: "queue pair" })?;
        self.forget(index);
        self.use_srq(qp.srq, false);
        if let Some(uar) = self.uars.at_mut(qp.uar) {
            uar.qps.retain(|&i| i != index);
        }
        for (cq, committed) in [(qp.send_cq, qp.sq.mask + 1), (qp.recv_cq, depth)] {
            if let Some(cq) = self.cqs.table.at_mut(cq) {
                cq.users -= 1;
                cq.committed -= committed;
            }
        }
        self.clear_registers(qp.uar, qpn.0);
        Ok(())
    }

    /// Takes a QP off all work lists.
    fn forget(&mut self, index: u32) {
        self.active.retain(|&i| i != index);
        self.watching.retain(|&i| i != index);
        self.owing.retain(|&i| i != index);
        self.flushing.retain(|&i| i != index);
    }

    /// Blanks the registers that hold a ring for `qpn`, so that an equal ring later is a change.
    fn clear_registers(&mut self, uar: u32, qpn: u32) {
        if let Some(uar) = self.uars.at_mut(uar) {
            for (seen, register) in uar.seen.iter_mut().zip(REGISTERS) {
                let value = uar.page.load_u64(register).unwrap_or_default();
                let words = value.last_chunk::<4>().copied().unwrap_or_default();
                if u32::from_be_bytes(words) >> 8 == qpn {
                    let value = u64::from_ne_bytes(value);
                    if matches!(uar.page.replace_u64(register, value, 0), Ok(true)) {
                        *seen = 0;
                    }
                }
            }
        }
    }

    /// Moves a queue pair through its state machine.
    ///
    /// # Errors
    /// Unknown QP, a transition that isn't allowed, attributes out of range, or no link to the peer.
    pub fn modify_qp(&mut self, qpn: Qpn, to: Modify) -> Result<(), ModifyError> {
        let (index, tag) = split(qpn.0);
        let caps = self.config.caps;
        let links = &self.links;
        let trace = self.cqs.trace.is_on();
        let qp = self.qps.get_mut(index, tag).ok_or(ModifyError::Unknown { qpn })?;
        let wrong = |to| ModifyError::Transition { qpn, from: qp.state, to };
        match to {
            Modify::ToInit { access } => {
                if !matches!(qp.state, QpState::Reset | QpState::Init) {
                    return Err(wrong(QpState::Init));
                }
                qp.access = access;
                qp.state = QpState::Init;
            }
            Modify::ToRtr { dest_nic, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer } => {
                if qp.state != QpState::Init {
                    return Err(wrong(QpState::Rtr));
                }
                if max_dest_rd_atomic > caps.max_rd_atomic {
                    let max = u64::from(caps.max_rd_atomic);
                    return Err(ModifyError::Range { what: "max_dest_rd_atomic", max });
                }
                if rq_psn > wire::NUMBER_MASK || dest_qpn.0 > wire::NUMBER_MASK {
                    let max = u64::from(wire::NUMBER_MASK);
                    return Err(ModifyError::Range { what: "sequence or QP number", max });
                }
                if qp.kind.is_connected() {
                    qp.link = links
                        .iter()
                        .position(|link| link.remote == dest_nic)
                        .ok_or(ModifyError::NoLink { remote: dest_nic })?;
                    qp.remote_nic = dest_nic;
                    qp.remote_qpn = dest_qpn.0;
                }
                qp.responder = Responder::new(
                    dest_nic,
                    dest_qpn.0,
                    u64::from(rq_psn) | 1 << 32,
                    max_dest_rd_atomic,
                    min_rnr_timer,
                );
                qp.state = QpState::Rtr;
            }
            Modify::ToRts { sq_psn, retry_cnt, rnr_retry, timeout, max_rd_atomic } => {
                if qp.state != QpState::Rtr {
                    return Err(wrong(QpState::Rts));
                }
                for (what, value, max) in [
                    ("sq_psn", u64::from(sq_psn), u64::from(wire::NUMBER_MASK)),
                    ("retry_cnt", u64::from(retry_cnt), 7),
                    ("rnr_retry", u64::from(rnr_retry), 7),
                    ("timeout", u64::from(timeout), 31),
                    ("max_rd_atomic", u64::from(max_rd_atomic), qp.sq.slots.len() as u64),
                ] {
                    if value > max {
                        return Err(ModifyError::Range { what, max });
                    }
                }
                let sq = &mut qp.sq;
                // Wide sequence numbers start high enough to be extended backwards.
                sq.next_psn = u64::from(sq_psn) | 1 << 32;
                sq.acked = sq.next_psn;
                sq.retry_cnt = retry_cnt;
                sq.retries = retry_cnt;
                sq.rnr_retry = rnr_retry;
                sq.rnr_retries = rnr_retry;
                sq.timeout = ack_timeout(timeout);
                sq.max_rd_atomic = max_rd_atomic;
                if !trace {
                    sq.times = Box::default();
                }
                qp.state = QpState::Rts;
            }
            Modify::ToError => {
                if qp.state == QpState::Reset {
                    return Err(wrong(QpState::Error));
                }
                qp.told = true;
                if qp.state != QpState::Error {
                    enter_error(qp);
                    self.wake_error(index);
                }
            }
            Modify::ToReset => {
                qp.state = QpState::Reset;
                qp.sq.reset();
                qp.error = None;
                qp.told = false;
                qp.told_last = false;
                qp.told_drained = true;
                qp.by_request = false;
                qp.destination = None;
                qp.reconnect = false;
                qp.active = false;
                qp.responder = Responder::new(0, 0, 0, 0, 0);
                if let Some(rq) = &mut qp.rq {
                    rq.head = 0;
                    rq.producer = 0;
                }
                let uar = qp.uar;
                self.forget(index);
                self.clear_registers(uar, qpn.0);
            }
        }
        Ok(())
    }

    /// Changes what may change in any state.
    ///
    /// # Errors
    /// Unknown QP.
    pub fn update_qp(&mut self, qpn: Qpn, update: QpUpdate) -> Result<(), ModifyError> {
        let (index, tag) = split(qpn.0);
        let qp = self.qps.get_mut(index, tag).ok_or(ModifyError::Unknown { qpn })?;
        if let Some(access) = update.access {
            qp.access = access;
        }
        if let Some(timer) = update.min_rnr_timer {
            qp.responder.min_rnr_timer = timer & 31;
        }
        if let Some(index) = update.user_index {
            qp.user_index = index & wire::NUMBER_MASK;
        }
        Ok(())
    }

    /// Sets what datagrams to a queue pair must know.
    ///
    /// # Errors
    /// Unknown QP.
    pub fn set_qkey(&mut self, qpn: Qpn, qkey: u32) -> Result<(), ModifyError> {
        let (index, tag) = split(qpn.0);
        let qp = self.qps.get_mut(index, tag).ok_or(ModifyError::Unknown { qpn })?;
        qp.qkey = qkey;
        Ok(())
    }

    /// Lets a queue pair that is ready to send fetch nothing more (`Some`, and whether to tell
    /// [`Event::Drained`](crate::Event::Drained) when all it has sent is done), or go on (`None`).
    ///
    /// # Errors
    /// Unknown QP, or one that isn't ready to send.
    pub fn drain_sends(&mut self, qpn: Qpn, tell: Option<bool>) -> Result<(), ModifyError> {
        let (index, tag) = split(qpn.0);
        let qp = self.qps.get_mut(index, tag).ok_or(ModifyError::Unknown { qpn })?;
        if qp.state != QpState::Rts {
            return Err(ModifyError::Transition { qpn, from: qp.state, to: QpState::Rts });
        }
        qp.sq.held_back = tell.is_some();
        qp.told_drained = !tell.unwrap_or(false);
        if tell.is_none() && !qp.active {
            qp.active = true;
            self.active.push_back(index);
        }
        Ok(())
    }

    /// A queue pair's state.
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.qp(qpn).map(|qp| QpInfo {
            state: qp.state,
            kind: qp.kind,
            sq_head: qp.sq.head,
            sq_producer: qp.sq.producer,
            sq_completed: qp.sq.completed,
            rq_head: qp.rq.as_ref().map_or(0, |rq| rq.head),
            error: qp.error,
            sends: match (qp.sq.held_back, qp.sq.is_drained()) {
                (false, _) => Sends::Go,
                (true, false) => Sends::Drain,
                (true, true) => Sends::Drained,
            },
        })
    }

    /// Why a QP went to ERROR: the first cause, which flushed completions don't tell.
    #[must_use]
    pub fn qp_error(&self, qpn: Qpn) -> Option<Cause> {
        self.qp(qpn)?.error
    }
}

fn check_record(record: &DmaBuf) -> Result<(), CreateError> {
    if record.len() < 8 || !record.is_aligned(4) {
        let got = record.len() as u64;
        return Err(CreateError::Memory { what: "doorbell record", needed: 8, got, align: 4 });
    }
    Ok(())
}

pub(crate) fn receive_queue(rq: RqAttr, record: DmaBuf) -> Result<ReceiveQueue, CreateError> {
    if rq.log_wqes > 15 {
        return Err(CreateError::Range { what: "log2 of receive WQEs", max: 15 });
    }
    if !(4..=9).contains(&rq.log_stride) {
        return Err(CreateError::Range { what: "log2 of receive WQE bytes (4 to 9)", max: 9 });
    }
    let needed = 1u64 << (rq.log_wqes + rq.log_stride);
    if (rq.ring.len() as u64) < needed || !rq.ring.is_aligned(16) {
        let got = rq.ring.len() as u64;
        return Err(CreateError::Memory { what: "receive queue", needed, got, align: 16 });
    }
    Ok(ReceiveQueue {
        ring: rq.ring,
        record,
        log_wqes: rq.log_wqes,
        log_stride: rq.log_stride,
        head: 0,
        producer: 0,
        list: None,
    })
}
