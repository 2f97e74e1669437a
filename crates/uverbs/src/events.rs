//! Events of objects and of the port, as the client's channels carry them.

use softnic::Event;
use wire::cqe::Syndrome;

use crate::channel::About;
use crate::engine::{Listener, Port};

/// Event types, as `enum ib_event_type` has them.
mod kind {
    pub(super) const CQ_ERROR: u32 = 0;
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQUEST: u32 = 2;
    pub(super) const QP_ACCESS: u32 = 3;
    pub(super) const SQ_DRAINED: u32 = 5;
    pub(super) const PORT_ACTIVE: u32 = 9;
    pub(super) const PORT_ERROR: u32 = 10;
    pub(super) const SRQ_LIMIT: u32 = 15;
    pub(super) const LAST_RECEIVE: u32 = 16;
}

impl Port {
    pub(crate) fn tell(&self, event: Event) {
        match event {
            Event::Completion { cq } => {
                if let Some(to) = self.completions.get(&cq) {
                    to.channel.push(About::Cq(to.handle), &to.name.to_ne_bytes());
                }
            }
            Event::CqError { cq } => tell_async(self.cq_errors.get(&cq), event),
            Event::QpError { qpn, .. } | Event::LastReceive { qpn } | Event::Drained { qpn } => {
                tell_async(self.qp_errors.get(&qpn), event);
            }
            Event::SrqLimit { srq } => tell_async(self.srq_events.get(&srq), event),
            Event::Port { is_up } => {
                let kind = if is_up { kind::PORT_ACTIVE } else { kind::PORT_ERROR };
                for channel in self.watchers.iter().filter_map(std::sync::Weak::upgrade) {
                    channel.push(About::Port, &entry(1, kind));
                }
            }
            _ => {}
        }
    }

    /// Sends what found no room in the channels before.
    pub(crate) fn flush_events(&self) {
        let listeners = self.completions.values().chain(self.cq_errors.values());
        let listeners = listeners.chain(self.qp_errors.values()).chain(self.srq_events.values());
        listeners.for_each(|listener| listener.channel.flush_waiting());
        let watchers = self.watchers.iter().filter_map(std::sync::Weak::upgrade);
        watchers.for_each(|channel| channel.flush_waiting());
    }
}

fn tell_async(listener: Option<&Listener>, event: Event) {
    let Some(to) = listener else { return };
    let (about, kind) = match event {
        Event::QpError { cause, by_request, .. } => {
            let kind = match cause.map(|cause| cause.syndrome) {
                Some(Syndrome::RemoteAccess) if by_request => kind::QP_ACCESS,
                Some(Syndrome::RemoteInvalidRequest) if by_request => kind::QP_REQUEST,
                Some(Syndrome::LocalQpOp) => kind::QP_FATAL,
                // The completion says it.
                _ => return,
            };
            (About::Qp(to.handle), kind)
        }
        Event::Drained { .. } => (About::Qp(to.handle), kind::SQ_DRAINED),
        Event::LastReceive { .. } => (About::Qp(to.handle), kind::LAST_RECEIVE),
        Event::SrqLimit { .. } => (About::Srq(to.handle), kind::SRQ_LIMIT),
        _ => (About::CqError(to.handle), kind::CQ_ERROR),
    };
    to.channel.push(about, &entry(to.name, kind));
}

/// An asynchronous event: what it is about, and its type.
fn entry(element: u64, kind: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&element.to_ne_bytes());
    bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
    bytes
}
