//! Shared receive queues: receives that several queue pairs take from one list.

use crate::config::{Qpn, SrqAttr, SrqId};
use crate::error::{CreateError, DestroyError, ModifyError};
use crate::nic::Nic;
use crate::notify::Event;
use crate::qp::{QpState, ReceiveQueue};
use crate::qp_control::receive_queue;
use crate::table::Table;

/// What `query_srq` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// Receives taken, ever.
    pub taken: u64,
    /// The limit below which an event is told; 0 for none, or when it was told.
    pub limit: u32,
}

pub(crate) struct Srq {
    pub pd: u32,
    pub queue: ReceiveQueue,
    /// Of extended reliable connections: the CQ, by index, and what its completions carry.
    pub completions: Option<(u32, u32)>,
    /// QPs and DC targets that take receives from it.
    users: u32,
}

/// The place of a list's head, and when to say that it is short.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    pub head: u32,
    /// An event is wanted when there are fewer receives than this.
    pub limit: u32,
    /// It is due.
    pub reached: bool,
}

/// The receive queue of who has its own, or shares one, and the protection domain of its buffers.
pub(crate) fn queue_of<'a>(
    own: Option<&'a mut ReceiveQueue>,
    pd: u32,
    srq: Option<u32>,
    srqs: &'a mut Table<Srq>,
) -> (Option<&'a mut ReceiveQueue>, u32) {
    match srq.and_then(|index| srqs.at_mut(index)) {
        Some(srq) => (Some(&mut srq.queue), srq.pd),
        None => (own, pd),
    }
}

impl Nic {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Unknown objects, sizes, alignment, or a full table.
    pub fn create_srq(&mut self, attr: SrqAttr) -> Result<SrqId, CreateError> {
        self.check_pd(attr.pd)?;
        let completions = match attr.completions {
            Some((cq, user_index)) => Some((self.check_cq(cq)?, user_index & wire::NUMBER_MASK)),
            None => None,
        };
        if attr.record.len() < 4 || !attr.record.is_aligned(4) {
            let got = attr.record.len() as u64;
            return Err(CreateError::Memory { what: "doorbell record", needed: 4, got, align: 4 });
        }
        if attr.queue.log_stride < 5 {
            return Err(CreateError::Range {
                what: "log2 of shared receive WQE bytes (5 to 9)",
                max: 9,
            });
        }
        let mut queue = receive_queue(attr.queue, attr.record)?;
        queue.list = Some(List::default());
        let srq = Srq { pd: attr.pd.0, queue, completions, users: 0 };
        let made = self.srqs.insert(|index, tag| (srq, SrqId(index << 8 | u32::from(tag))));
        let id = made.ok_or(CreateError::TableFull { what: "shared receive queues" })?;
        if let Some((cq, _)) = completions
            && let Some(cq) = self.cqs.table.at_mut(cq)
        {
            cq.users += 1;
        }
        Ok(id)
    }

    /// Asks for [`Event::SrqLimit`] when fewer receives than `limit` are left, which may be at once;
    /// 0 takes it back.
    ///
    /// # Errors
    /// Unknown, or more than it holds.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), ModifyError> {
        let index = self.check_srq(srq).map_err(|_| ModifyError::UnknownSrq)?;
        let srq = self.srqs.at_mut(index).ok_or(ModifyError::UnknownSrq)?;
        let max = 1 << srq.queue.log_wqes;
        if limit > max {
            return Err(ModifyError::Range { what: "limit", max: u64::from(max) });
        }
        srq.queue.list = srq.queue.list.map(|list| List { limit, ..list });
        srq.queue.check_limit();
        Ok(())
    }

    /// A shared receive queue's state.
    #[must_use]
    pub fn query_srq(&self, srq: SrqId) -> Option<SrqInfo> {
        let srq = self.srqs.get(srq.0 >> 8, srq.0 as u8)?;
        Some(SrqInfo { taken: srq.queue.head, limit: srq.queue.list.map_or(0, |list| list.limit) })
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// Unknown, or others take receives from it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), DestroyError> {
        let what = "shared receive queue";
        let index = self.check_srq(srq).map_err(|_| DestroyError::Unknown { what })?;
        if self.srqs.at(index).is_some_and(|srq| srq.users > 0) {
            return Err(DestroyError::Busy { what });
        }
        let srq = self.srqs.remove(index, srq.0 as u8).ok_or(DestroyError::Unknown { what })?;
        if let Some((cq, _)) = srq.completions
            && let Some(cq) = self.cqs.table.at_mut(cq)
        {
            cq.users -= 1;
        }
        Ok(())
    }

    pub(crate) fn check_srq(&self, srq: SrqId) -> Result<u32, CreateError> {
        let (index, tag) = (srq.0 >> 8, srq.0 as u8);
        let unknown = CreateError::Unknown { what: "shared receive queue" };
        self.srqs.get(index, tag).map(|_| index).ok_or(unknown)
    }

    /// Somebody takes receives from it, or does so no longer.
    pub(crate) fn use_srq(&mut self, srq: Option<u32>, more: bool) {
        if let Some(srq) = srq.and_then(|index| self.srqs.at_mut(index)) {
            srq.users = if more { srq.users + 1 } else { srq.users.saturating_sub(1) };
        }
    }

    /// Tells limits that were reached, and queue pairs in ERROR that take nothing more from theirs.
    pub(crate) fn srq_events(&mut self, tell: &mut impl FnMut(Event)) {
        let reached: Vec<u32> = self
            .srqs
            .iter_mut()
            .filter_map(|(index, srq)| {
                let list = srq.queue.list.as_mut()?;
                std::mem::take(&mut list.reached).then_some(index)
            })
            .collect();
        for index in reached {
            let tag = self.srqs.tag(index).map_or(0, u32::from);
            tell(Event::SrqLimit { srq: SrqId(index << 8 | tag) });
        }
        for (_, qp) in self.qps.iter_mut() {
            let is_done = qp.srq.is_some() && qp.state == QpState::Error;
            if is_done && !std::mem::replace(&mut qp.told_last, true) {
                tell(Event::LastReceive { qpn: Qpn(qp.qpn) });
            }
        }
    }
}
