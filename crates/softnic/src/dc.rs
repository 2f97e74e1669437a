//! Dynamically connected transport: targets, and the connections that initiators have to them.
//!
//! An initiator announces a connection (CONNECT: key, first sequence number, a number of its own) before its
//! first request to a target, and ends it when it turns to another. A target keeps connections in a bounded,
//! set-associative table; a request of a connection that isn't there is refused, and the initiator connects
//! again.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::check::Check;
use crate::config::Nanos;
use crate::cq::Cqs;
use crate::link::LinkEnd;
use crate::mr::{Access, Regions};
use crate::packet::{Header, flag, low, op};
use crate::placement::Pendings;
use crate::qp::{Nak, Qp, ReceiveQueue, Responder};
use crate::responder::{Deferred, Direct, Outcome, Target, execute, nak_code};
use crate::srq::{Srq, queue_of};
use crate::table::Table;

/// Set in a number's index when it is a DCT's.
pub(crate) const DCT: u32 = 0x8000;
/// Set in the NIC's list of those that owe something, for connections.
pub(crate) const CONNECTION: u32 = 1 << 31;

pub(crate) struct Dct {
    pub number: u32,
    pub pd: u32,
    pub cq: u32,
    pub key: u64,
    pub access: Access,
    pub rq: Option<ReceiveQueue>,
    /// The shared receive queue that it takes receives from, by index.
    pub srq: Option<u32>,
    pub user_index: u32,
    pub min_rnr_timer: u8,
}

pub(crate) struct Connection {
    pub dct: u32,
    pub number: u32,
    pub link: usize,
    pub responder: Responder,
    live: bool,
    /// A request broke it: it answers nothing any more.
    broken: bool,
    used: u64,
}

/// Connections that one initiator's may be in.
const WAYS: usize = 8;

pub(crate) struct Targets {
    pub table: Table<Dct>,
    pub connections: Vec<Connection>,
    uses: u64,
}

/// What taking a DC request needs of the NIC.
pub(crate) struct Bench<'a> {
    pub nic: u16,
    pub mrs: &'a Regions,
    pub cqs: &'a mut Cqs,
    pub srqs: &'a mut Table<Srq>,
    pub pendings: &'a mut Pendings,
    pub owing: &'a mut VecDeque<u32>,
    pub now: Nanos,
}

impl Targets {
    pub(crate) fn new(capacity: u32, tags: &RangeInclusive<u8>) -> Self {
        Self { table: Table::with_tags(capacity, tags), connections: Vec::new(), uses: 0 }
    }

    /// Allocates the table of connections, once.
    pub(crate) fn prepare(&mut self, connections: u32, max_rd_atomic: u8) {
        if self.connections.is_empty() {
            let sets = (connections as usize).div_ceil(WAYS).max(1);
            self.connections = (0..sets * WAYS)
                .map(|_| Connection {
                    dct: 0,
                    number: 0,
                    link: 0,
                    responder: Responder::new(0, 0, 0, max_rd_atomic, 0),
                    live: false,
                    broken: false,
                    used: 0,
                })
                .collect();
        }
    }

    /// Ends all connections of a DCT.
    pub(crate) fn forget(&mut self, dct: u32) {
        for connection in &mut self.connections {
            if connection.dct == dct {
                connection.live = false;
            }
        }
    }

    /// The connections that an initiator's may be among.
    fn set(&self, src_nic: u16, src_qpn: u32) -> std::ops::Range<usize> {
        let sets = (self.connections.len() / WAYS).max(1);
        let set = (src_qpn as usize & 0xffff).wrapping_add(usize::from(src_nic) * 31) % sets;
        set * WAYS..(set + 1) * WAYS
    }

    fn find(&self, header: &Header) -> Option<usize> {
        self.set(header.src_nic, header.src).find(|&i| {
            self.connections.get(i).is_some_and(|c| {
                c.live && c.responder.src_nic == header.src_nic && c.responder.src_qpn == header.src
            })
        })
    }

    /// Takes a request for the DCT at `index`.
    pub(crate) fn take(
        &mut self,
        index: u32,
        link_index: usize,
        packet: (&Header, &[u8]),
        replies: &mut crate::link::Sender,
        bench: Bench<'_>,
    ) {
        let (header, _) = packet;
        self.uses += 1;
        let found = self.find(header);
        match header.op {
            op::CONNECT => return self.connect(index, link_index, header, found, bench.owing),
            op::DISCONNECT => {
                if let Some(connection) = found.and_then(|i| self.connections.get_mut(i))
                    && connection.responder.generation == header.generation
                {
                    connection.live = false;
                }
                return;
            }
            _ => {}
        }
        let known = found.filter(|&i| {
            self.connections
                .get(i)
                .is_some_and(|c| c.responder.generation == header.generation && c.dct == index)
        });
        let Some(at) = known else {
            // Nothing is lost if there is no room: the initiator's timer asks again.
            let nak = Header {
                op: op::NAK,
                src_nic: bench.nic,
                dst: header.src,
                src: header.dst,
                psn: header.psn,
                rkey: nak_code::UNKNOWN,
                generation: header.generation,
                ..Header::default()
            };
            if replies.push(nak, 0).is_some() {
                replies.publish();
            }
            return;
        };
        let (Some(connection), Some(dct)) =
            (self.connections.get_mut(at), self.table.at_mut(index))
        else {
            return;
        };
        connection.used = self.uses;
        if connection.broken {
            return;
        }
        let (rq, rq_pd) = queue_of(dct.rq.as_mut(), dct.pd, dct.srq, bench.srqs);
        let target = Target {
            number: dct.number,
            pd: dct.pd,
            access: dct.access,
            rq,
            rq_pd,
            cq: dct.cq,
            user_index: dct.user_index,
        };
        let responder = &mut connection.responder;
        let name = CONNECTION | at as u32;
        let outcome = if bench.pendings.is_on() {
            let mut later = Deferred { pendings: bench.pendings, connection: name, now: bench.now };
            execute(responder, target, packet, bench.mrs, bench.cqs, &mut later, bench.now)
        } else {
            execute(responder, target, packet, bench.mrs, bench.cqs, &mut Direct, bench.now)
        };
        if matches!(outcome, Outcome::Broken(_)) {
            connection.broken = true;
        }
        if !connection.responder.queued {
            connection.responder.queued = true;
            bench.owing.push_back(name);
        }
    }

    fn connect(
        &mut self,
        index: u32,
        link: usize,
        header: &Header,
        found: Option<usize>,
        owing: &mut VecDeque<u32>,
    ) {
        let Some(dct) = self.table.at(index) else { return };
        if found
            .and_then(|i| self.connections.get(i))
            .is_some_and(|c| c.responder.generation == header.generation)
        {
            return;
        }
        // The least recently used that owes nothing makes room.
        let free = self
            .set(header.src_nic, header.src)
            .filter(|&i| self.connections.get(i).is_some_and(|c| !c.live || !c.responder.queued));
        let oldest = free.min_by_key(|&i| {
            self.connections.get(i).map_or(0, |c| if c.live { c.used } else { 0 })
        });
        let Some(at) = found.or(oldest) else { return };
        let Some(connection) = self.connections.get_mut(at) else { return };
        connection.dct = index;
        connection.number = dct.number;
        connection.link = link;
        connection.live = true;
        connection.broken = dct.key != header.va;
        connection.used = self.uses;
        let r = &mut connection.responder;
        r.restart(header.src_nic, header.src, u64::from(header.psn) | 1 << 32, dct.min_rnr_timer);
        r.generation = header.generation;
        if connection.broken {
            r.nak = Some(Nak::Fatal(Check::DcKey.into()));
            if !r.queued {
                r.queued = true;
                owing.push_back(CONNECTION | at as u32);
            }
        }
    }
}

/// Whom a DC WQE is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub nic: u16,
    pub dct: u32,
    pub key: u64,
}

/// Announces a connection, from the first sequence number that isn't acknowledged. False if the lane is full.
pub(crate) fn connect(qp: &mut Qp, nic: u16, link: &mut LinkEnd, to: Destination) -> bool {
    let generation = qp.generation.wrapping_add(1).max(1);
    let header = Header {
        op: op::CONNECT,
        flags: flag::FIRST | flag::LAST,
        src_nic: nic,
        dst: to.dct,
        src: qp.qpn,
        psn: low(qp.sq.acked),
        va: to.key,
        generation,
        ..Header::default()
    };
    if link.tx_requests.push(header, 0).is_none() {
        return false;
    }
    link.tx_requests.publish();
    qp.generation = generation;
    qp.remote_nic = link.remote;
    qp.remote_qpn = to.dct;
    qp.destination = Some(to);
    qp.reconnect = false;
    true
}

/// Ends the QP's connection. If the lane is full, the target finds out when it needs the room.
pub(crate) fn disconnect(qp: &Qp, nic: u16, link: &mut LinkEnd) {
    let header = Header {
        op: op::DISCONNECT,
        flags: flag::FIRST | flag::LAST,
        src_nic: nic,
        dst: qp.remote_qpn,
        src: qp.qpn,
        generation: qp.generation,
        ..Header::default()
    };
    if link.tx_requests.push(header, 0).is_some() {
        link.tx_requests.publish();
    }
}
