//! The NIC's work: one `step` polls doorbells, takes packets, and sends what may be sent.

use crate::check::{Cause, Check};
use crate::completion::{self, Sink, on_response};
use crate::config::{Nanos, PortAddress, QpKind, Qpn};
use crate::cq::Cqs;
use crate::dc::{self, Bench, CONNECTION, Connection, DCT, Destination};
use crate::directory::Directory;
use crate::fault::Faults;
use crate::finding::Finding;
use crate::link::LinkEnd;
use crate::mr::Regions;
use crate::nic::{Nic, split};
use crate::packet::{Header, flag, op};
use crate::placement::Pendings;
use crate::qp::{NEVER, Nak, Qp, QpState};
use crate::requester::{Context, Stop, refuse, transmit};
use crate::responder::{Air, Deferred, Direct, Outcome, Target, execute, respond};
use crate::rng::Rng;
use crate::small;
use crate::srq::{Srq, queue_of};
use crate::table::Table;
use crate::unreliable::{take_datagram, take_packet};

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Packets sent or taken, WQEs completed or flushed, doorbells seen: 0 if there was nothing to do.
    pub executed: u32,
    /// When there will be something to do though no one posts anything.
    pub next_event: Option<Nanos>,
}

/// Packets of one QP, before it is another's turn.
const TURN: u32 = 64;

impl Nic {
    /// Does what there is to do at time `now`, at most about `budget` packets of each kind.
    pub fn step(&mut self, now: Nanos, budget: u32) -> Step {
        let faults = &self.config.faults;
        self.down = faults.is_down(now);
        if faults.paused {
            return Step::default();
        }
        if let Some((from, until)) = faults.pause
            && (from..until).contains(&now)
        {
            return Step { executed: 0, next_event: Some(until) };
        }
        let mut next = faults.next_change(now).unwrap_or(NEVER);
        self.cqs.trace.now = now;
        // A peer's request may answer what its response acknowledges: requests that are taken now are those that were there
        // before the responses were looked at, so that no answer overtakes its acknowledgement.
        for link in &mut self.links {
            link.rx_requests.look();
        }
        let mut executed = self.poll_doorbells(now);
        executed += self.take_responses(now, budget, &mut next);
        executed += self.take_requests(now, budget, &mut next);
        executed += self.send(now, budget, &mut next);
        executed += self.answer(now, budget);
        executed += self.flush_receives(now, budget);
        if self.pendings.is_on() {
            executed += self.pendings.run(now);
            next = next.min(self.pendings.next().unwrap_or(NEVER));
        }
        if now >= self.next_timer {
            executed += self.run_timers(now);
        }
        if let Some((cq, qpn)) = self.cqs.overrun.take() {
            self.cq_overrun(cq, qpn);
        }
        if executed == 0 && self.timers_moved {
            self.next_timer = self.earliest_timer();
            self.timers_moved = false;
        }
        next = next.min(self.next_timer);
        Step { executed, next_event: (next != NEVER).then_some(next) }
    }

    fn take_responses(&mut self, now: Nanos, budget: u32, next: &mut Nanos) -> u32 {
        let mut taken = 0u32;
        for link in &mut self.links {
            let mut any = false;
            // Each link has the whole budget, so that none starves another.
            let limit = taken.saturating_add(budget);
            while taken < limit {
                let Some((header, payload)) = link.rx_responses.peek() else { break };
                if header.deliver_at > now {
                    *next = (*next).min(header.deliver_at);
                    break;
                }
                any = true;
                taken += 1;
                if (!self.plain || header.flags & flag::LOST != 0)
                    && loses(
                        &self.config.faults,
                        self.down,
                        (&mut self.dice, &mut self.taken),
                        header,
                    )
                {
                    self.counters.dropped += 1;
                    link.rx_responses.pop();
                    continue;
                }
                let (index, tag) = split(header.dst);
                if let Some(qp) = self.qps.get_mut(index, tag)
                    && qp.state == QpState::Rts
                    && qp.generation == header.generation
                    && qp.remote_qpn == header.src
                    && qp.remote_nic == header.src_nic
                {
                    let mut sink = Sink { cqs: &mut self.cqs, now, completed: 0 };
                    let mtu = self.config.caps.mtu;
                    on_response(qp, header, payload, mtu, &self.mrs, &mut sink);
                    self.counters.completed += sink.completed;
                    let wait = if qp.sq.not_before > now { qp.sq.not_before } else { NEVER };
                    self.next_timer = self.next_timer.min(qp.sq.deadline).min(wait);
                    self.timers_moved = true;
                    if !qp.active && (qp.sq.cursor != qp.sq.tail || qp.sq.head != qp.sq.producer) {
                        qp.active = true;
                        self.active.push_back(index);
                    }
                    if qp.state == QpState::Error {
                        broken(qp, index, &mut self.flushing, &mut self.active);
                    }
                }
                link.rx_responses.pop();
            }
            if any {
                link.rx_responses.release();
            }
        }
        self.counters.responses += u64::from(taken);
        taken
    }

    fn take_requests(&mut self, now: Nanos, budget: u32, next: &mut Nanos) -> u32 {
        let mut taken = 0u32;
        for (link_index, link) in self.links.iter_mut().enumerate() {
            let mut any = false;
            // Each link has the whole budget, so that none starves another.
            let limit = taken.saturating_add(budget);
            while taken < limit {
                let Some((header, _)) = link.rx_requests.peek() else { break };
                if header.deliver_at > now {
                    *next = (*next).min(header.deliver_at);
                    break;
                }
                any = true;
                if self.plain && !self.pendings.is_on() {
                    let (index, tag) = split(header.dst);
                    if let Some(qp) = self.qps.get_mut(index, tag)
                        && matches!(qp.state, QpState::Rtr | QpState::Rts)
                        && qp.kind == QpKind::Rc
                    {
                        let small =
                            small::take(qp, &mut link.rx_requests, &self.mrs, now, limit - taken);
                        if small > 0 {
                            taken += small;
                            if !qp.responder.queued {
                                qp.responder.queued = true;
                                self.owing.push_back(index);
                            }
                            continue;
                        }
                    }
                }
                let Some((header, payload)) = link.rx_requests.peek() else { break };
                taken += 1;
                if (!self.plain || header.flags & flag::LOST != 0)
                    && loses(
                        &self.config.faults,
                        self.down,
                        (&mut self.dice, &mut self.taken),
                        header,
                    )
                {
                    self.counters.dropped += 1;
                    link.rx_requests.pop();
                    continue;
                }
                let (index, tag) = split(header.dst);
                if index & DCT != 0 {
                    if self.targets.table.get(index & !DCT, tag).is_some() {
                        let bench = Bench {
                            nic: self.config.id,
                            mrs: &self.mrs,
                            cqs: &mut self.cqs,
                            srqs: &mut self.srqs,
                            pendings: &mut self.pendings,
                            owing: &mut self.owing,
                            now,
                        };
                        let replies = &mut link.tx_responses;
                        let packet = (header, payload);
                        self.targets.take(index & !DCT, link_index, packet, replies, bench);
                    }
                    link.rx_requests.pop();
                    continue;
                }
                if let Some(qp) = self.qps.get_mut(index, tag)
                    && matches!(qp.state, QpState::Rtr | QpState::Rts)
                    && (qp.kind == QpKind::Ud
                        || qp.remote_qpn == header.src && qp.remote_nic == header.src_nic)
                {
                    let desk = Desk {
                        mrs: &self.mrs,
                        cqs: &mut self.cqs,
                        srqs: &mut self.srqs,
                        pendings: &mut self.pendings,
                        port: &self.port,
                        now,
                    };
                    let broke = take_request(qp, index, (header, payload), desk);
                    if qp.kind.is_reliable() && !qp.responder.queued {
                        qp.responder.queued = true;
                        self.owing.push_back(index);
                    }
                    if let Some(cause) = broke {
                        qp.error.get_or_insert(cause);
                        qp.by_request = true;
                        completion::enter_error(qp);
                        broken(qp, index, &mut self.flushing, &mut self.active);
                    }
                }
                link.rx_requests.pop();
            }
            if any {
                link.rx_requests.release();
            }
        }
        self.counters.requests += u64::from(taken);
        taken
    }

    fn send(&mut self, now: Nanos, budget: u32, next: &mut Nanos) -> u32 {
        let mut left = budget;
        let mut work = 0;
        for _ in 0..self.active.len() {
            if left == 0 {
                break;
            }
            let Some(index) = self.active.pop_front() else { break };
            let Some(qp) = self.qps.at_mut(index) else { continue };
            qp.active = false;
            let again = match qp.state {
                QpState::Rts => {
                    let mut cx = Context {
                        nic: self.config.id,
                        mtu: self.config.caps.mtu,
                        max_message: self.config.caps.max_message,
                        mrs: &self.mrs,
                        port: &self.port,
                        now,
                        findings: &mut self.findings,
                        faults: &mut self.config.faults,
                        pace: &mut self.pace,
                        plain: self.plain,
                        down: self.down,
                        far: self.far,
                    };
                    let Some(link) = self.links.get_mut(qp.link) else { continue };
                    if qp.reconnect
                        && let Some(to) = qp.destination
                    {
                        dc::connect(qp, self.config.id, link, to);
                    }
                    let mut turn = TURN.min(left);
                    let before = turn;
                    link.tx_requests.rewind();
                    let stop = transmit(qp, link, &mut cx, &mut turn, &mut work);
                    link.tx_requests.publish();
                    left -= before - turn;
                    if let Stop::Connect(to) = stop {
                        turn_to(qp, self.config.id, &mut self.links, &mut self.directory, to);
                    }
                    let mut sink = Sink { cqs: &mut self.cqs, now, completed: 0 };
                    completion::advance(qp, now, &mut sink);
                    self.counters.completed += sink.completed;
                    // What never leaves the NIC completes here: a WQE for another target may have waited for it.
                    let again = sink.completed > 0 && qp.sq.head != qp.sq.producer;
                    self.next_timer = self.next_timer.min(qp.sq.deadline);
                    if qp.state == QpState::Error {
                        broken(qp, index, &mut self.flushing, &mut self.active);
                        false
                    } else {
                        if stop == Stop::Pace {
                            *next = (*next).min(self.pace.free_at());
                        }
                        stop != Stop::Idle || again
                    }
                }
                QpState::Error => {
                    let mut sink = Sink { cqs: &mut self.cqs, now, completed: 0 };
                    let before = left;
                    let done = completion::flush(qp, &mut left, &mut sink);
                    work += before - left;
                    self.counters.completed += sink.completed;
                    !done
                }
                _ => false,
            };
            if again && !qp.active {
                qp.active = true;
                self.active.push_back(index);
            }
        }
        self.counters.wqes += u64::from(work);
        work + (budget - left)
    }

    /// Sends acknowledgements and responses.
    fn answer(&mut self, now: Nanos, budget: u32) -> u32 {
        let mut left = budget;
        let mut answered = 0;
        let air = Air {
            nic: self.config.id,
            mtu: self.config.caps.mtu,
            mrs: &self.mrs,
            profile: &self.config.profile,
            instant: self.config.profile.is_instant(),
            now,
            lost: self.down,
        };
        for _ in 0..self.owing.len() {
            let Some(index) = self.owing.pop_front() else { break };
            let (responder, number, link) = if index & CONNECTION != 0 {
                let at = (index & !CONNECTION) as usize;
                let Some(connection) = self.targets.connections.get_mut(at) else { continue };
                let Connection { responder, number, link, .. } = connection;
                (responder, *number, *link)
            } else {
                let Some(qp) = self.qps.at_mut(index) else { continue };
                (&mut qp.responder, qp.qpn, qp.link)
            };
            let Some(link) = self.links.get_mut(link) else { continue };
            let done = respond(responder, number, link, &air, &mut left);
            link.tx_responses.publish();
            if done {
                responder.queued = false;
                answered += 1;
            } else {
                self.owing.push_back(index);
            }
        }
        answered + (budget - left)
    }

    /// QPs in error flush receives that are posted later, too: their record is their only doorbell.
    fn flush_receives(&mut self, now: Nanos, budget: u32) -> u32 {
        let mut left = budget;
        let mut i = 0;
        while let Some(&index) = self.flushing.get(i) {
            let Some(qp) = self.qps.at_mut(index) else {
                self.flushing.swap_remove(i);
                continue;
            };
            if qp.state == QpState::Error {
                let mut sink = Sink { cqs: &mut self.cqs, now, completed: 0 };
                completion::flush(qp, &mut left, &mut sink);
                i += 1;
            } else {
                self.flushing.swap_remove(i);
            }
        }
        budget - left
    }

    fn earliest_timer(&self) -> Nanos {
        let timers = self.qps.iter().filter(|(_, qp)| qp.state == QpState::Rts).map(|(_, qp)| {
            let wait = if qp.sq.not_before > 0 { qp.sq.not_before } else { NEVER };
            qp.sq.deadline.min(wait)
        });
        timers.min().unwrap_or(NEVER)
    }

    fn run_timers(&mut self, now: Nanos) -> u32 {
        let mut ran = 0;
        let mut next = NEVER;
        for (index, qp) in self.qps.iter_mut() {
            if qp.state != QpState::Rts {
                continue;
            }
            if qp.sq.deadline <= now {
                self.counters.timeouts += 1;
                let mut sink = Sink { cqs: &mut self.cqs, now, completed: 0 };
                completion::timed_out(qp, &mut sink);
                self.counters.completed += sink.completed;
                ran += 1;
                if qp.state == QpState::Error {
                    broken(qp, index, &mut self.flushing, &mut self.active);
                    continue;
                }
            }
            if qp.sq.not_before > now {
                next = next.min(qp.sq.not_before);
                continue;
            }
            qp.sq.not_before = 0;
            if !qp.active && (qp.sq.cursor != qp.sq.tail || qp.sq.head != qp.sq.producer) {
                qp.active = true;
                ran += 1;
                self.active.push_back(index);
            }
            next = next.min(qp.sq.deadline);
        }
        self.next_timer = next;
        ran
    }

    /// A CQ ran over: it takes no other entry, and its QPs go to ERROR.
    #[cold]
    fn cq_overrun(&mut self, cq: u32, qpn: u32) {
        self.findings.add(Finding::CqOverrun { cq: self.cqs.id(cq), qpn: Qpn(qpn) });
        for (index, qp) in self.qps.iter_mut() {
            if (qp.send_cq == cq || qp.recv_cq == cq)
                && !matches!(qp.state, QpState::Reset | QpState::Error)
            {
                qp.error.get_or_insert(Check::CqOverrun.into());
                completion::enter_error(qp);
                broken(qp, index, &mut self.flushing, &mut self.active);
            }
        }
    }

    pub(crate) fn wake_error(&mut self, index: u32) {
        if let Some(qp) = self.qps.at_mut(index) {
            broken(qp, index, &mut self.flushing, &mut self.active);
        }
    }
}

/// What taking a request needs of the NIC.
struct Desk<'a> {
    mrs: &'a Regions,
    cqs: &'a mut Cqs,
    srqs: &'a mut Table<Srq>,
    pendings: &'a mut Pendings,
    port: &'a PortAddress,
    now: Nanos,
}

/// Takes a request for a QP. The cause if that breaks it.
#[inline]
fn take_request(
    qp: &mut Qp,
    index: u32,
    packet: (&Header, &[u8]),
    desk: Desk<'_>,
) -> Option<Cause> {
    let (header, _) = packet;
    let Desk { mrs, cqs, srqs, pendings, port, now } = desk;
    let (kind, number, r) = (qp.kind, qp.qpn, &mut qp.responder);
    let mut target = Target {
        number,
        pd: qp.pd,
        access: qp.access,
        rq: None,
        rq_pd: qp.pd,
        cq: qp.recv_cq,
        user_index: qp.user_index,
    };
    if kind == QpKind::XrcTarget {
        // The request says which queue its receive is taken from, and that says where it completes.
        let (at, tag) = (header.generation >> 8, header.generation as u8);
        let takes = header.op == op::SEND || header.flags & flag::IMM != 0;
        match srqs.get_mut(at, tag) {
            Some(Srq { queue, pd, completions: Some((cq, user_index)), .. }) => {
                target = Target {
                    rq: Some(queue),
                    pd: *pd,
                    rq_pd: *pd,
                    cq: *cq,
                    user_index: *user_index,
                    ..target
                };
            }
            _ if takes => {
                r.nak = Some(Nak::Fatal(Check::BadRequest.into()));
                return Some(Check::BadRequest.into());
            }
            _ => {}
        }
    } else {
        (target.rq, target.rq_pd) = queue_of(qp.rq.as_mut(), qp.pd, qp.srq, srqs);
    }
    if kind == QpKind::Ud {
        return take_datagram(r, target, packet, (qp.qkey, port), mrs, cqs);
    }
    let mut later = Deferred { pendings, connection: index, now };
    if kind == QpKind::Uc {
        return if later.pendings.is_on() {
            take_packet(r, target, packet, mrs, cqs, &mut later, now)
        } else {
            take_packet(r, target, packet, mrs, cqs, &mut Direct, now)
        };
    }
    let outcome = if later.pendings.is_on() {
        execute(r, target, packet, mrs, cqs, &mut later, now)
    } else {
        execute(r, target, packet, mrs, cqs, &mut Direct, now)
    };
    match outcome {
        Outcome::Broken(cause) => Some(cause),
        _ => None,
    }
}

/// Turns a DC initiator that has nothing in flight, or the datagrams of a QP, to another target.
fn turn_to(
    qp: &mut Qp,
    nic: u16,
    links: &mut [LinkEnd],
    directory: &mut Option<Directory>,
    to: Destination,
) {
    let is_dci = qp.kind == QpKind::Dci;
    if qp.destination.take().is_some()
        && is_dci
        && let Some(link) = links.get_mut(qp.link)
    {
        dc::disconnect(qp, nic, link);
    }
    let remote = match directory {
        None => to.nic,
        Some(directory) => match directory.find(to) {
            Some(remote) => remote,
            // It tries again at its next turn.
            None => return,
        },
    };
    let found = links.iter_mut().enumerate().find(|(_, link)| link.remote == remote);
    let Some((index, link)) = found else {
        refuse(qp, Check::NoRoute.into());
        return;
    };
    qp.link = index;
    if !is_dci {
        qp.remote_nic = remote;
        qp.remote_qpn = to.dct;
        qp.destination = Some(to);
        return;
    }
    // With a full lane the QP stays without a destination, and tries again at its next turn.
    dc::connect(qp, nic, link, to);
}

/// Whether a packet is lost on its way here.
fn loses(
    faults: &Faults,
    down: bool,
    (dice, taken): (&mut Rng, &mut u32),
    header: &Header,
) -> bool {
    *taken = taken.wrapping_add(1);
    header.flags & flag::LOST != 0
        || down
        || faults.drop_every.is_some_and(|n| taken.checked_rem(n) == Some(0))
        || faults.drop_random.is_some_and(|(n, _)| dice.below(u64::from(n)) == 0)
}

/// Puts a QP that has gone to ERROR on the lists that flush it.
fn broken(
    qp: &mut Qp,
    index: u32,
    flushing: &mut Vec<u32>,
    active: &mut std::collections::VecDeque<u32>,
) {
    if qp.rq.is_some() && !flushing.contains(&index) {
        flushing.push(index);
    }
    if !qp.active {
        qp.active = true;
        active.push_back(index);
    }
}
