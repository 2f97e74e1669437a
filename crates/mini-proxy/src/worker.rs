//! A worker: takes descriptors from its rings, posts them in chains, and follows them to completion.
//!
//! *Taken*, *posted* and *completed* are three things. A taken descriptor's work requests are in a chain; its
//! slot is released when the last of them was posted; its position is completed when it and all before it are.
//! Nothing here waits: a full send queue leaves the rest of a chain, and the slots of its descriptors, where
//! they are.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::proxy::{Descriptor, ProxyOp};
use device::view::{Failure, Why};
use rdma::post::{Completion, Ended, RemoteAddr, SendOp, SendQueue, SendWr, Sge, look, ring};
use rdma::{Memory, QueuePair};

use crate::attr::ChannelAttr;
use crate::ring::Consumer;

/// A channel's memory, ready for work requests.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    local: u64,
    local_bytes: u64,
    lkey: u32,
    remote: u64,
    remote_bytes: u64,
    rkey: u32,
    signal: Option<RemoteAddr>,
    result: Sge,
    /// Which of the worker's queue pairs leads there.
    queue: usize,
}

impl Channel {
    pub(crate) fn of(attr: &ChannelAttr, queue: usize, result: u64, result_lkey: u32) -> Self {
        Self {
            local: attr.local.address,
            local_bytes: attr.local.length,
            lkey: attr.local.lkey,
            remote: attr.remote.address,
            remote_bytes: attr.remote.length,
            rkey: attr.remote.rkey,
            signal: attr.signal.as_ref().map(|(region, offset)| RemoteAddr {
                address: region.address + offset,
                rkey: region.rkey,
            }),
            result: Sge { address: result, bytes: 8, lkey: result_lkey },
            queue,
        }
    }

    /// Whether the channel can serve a descriptor.
    #[inline]
    pub(crate) fn check(&self, d: &Descriptor) -> Result<(), Why> {
        let bytes = match d.op {
            ProxyOp::Flush => return Ok(()),
            ProxyOp::FetchAdd => 8,
            _ => d.size,
        };
        // Sums of 38- and 26-bit numbers.
        if d.source + bytes > self.local_bytes || d.destination + bytes > self.remote_bytes {
            return Err(Why::BadOffset);
        }
        if d.op == ProxyOp::PutSignal && self.signal.is_none() {
            return Err(Why::BadChannel);
        }
        if d.op == ProxyOp::FetchAdd && !(self.remote + d.destination).is_multiple_of(8) {
            return Err(Why::UnalignedAtomic);
        }
        Ok(())
    }
}

/// What a worker has done: written by it, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pub taken: AtomicU64,
    pub posted: AtomicU64,
    pub completed: AtomicU64,
    pub chains: AtomicU64,
    pub doorbells: AtomicU64,
    pub requests: AtomicU64,
    pub completions: AtomicU64,
    pub full: AtomicU64,
}

fn count(cell: &AtomicU64, more: u64) {
    // One writer.
    cell.store(cell.load(Relaxed) + more, Relaxed);
}

/// Where a ring's requests come from.
pub(crate) enum Source {
    /// Descriptors in slots.
    Slots,
    /// Known beforehand; the counter says how many are asked for.
    Known(Arc<[Descriptor]>),
    /// WQEs that producers build in this queue pair.
    Built(Box<Built>),
}

/// A queue pair that producers fill and the worker rings for.
pub(crate) struct Built {
    pub qp: Arc<QueuePair>,
    /// Blocks before it are rung for.
    pub rung: u64,
    /// Next entry of the CQ.
    pub consumer: u64,
}

pub(crate) struct Ring {
    consumer: Consumer<Arc<Memory>>,
    source: Source,
    number: u32,
    /// First position not taken.
    taken: u64,
    /// The counter when it was last read.
    counter: u64,
    /// Work requests of each position that are not completed.
    left: Box<[u8]>,
}

impl Ring {
    pub(crate) fn new(
        consumer: Consumer<Arc<Memory>>,
        source: Source,
        number: u32,
        window: usize,
    ) -> Self {
        let taken = consumer.posted();
        let left = vec![0; window.next_power_of_two()].into();
        Self { consumer, source, number, taken, counter: taken, left }
    }

    #[inline]
    fn left(&mut self, at: u64) -> &mut u8 {
        let mask = self.left.len() - 1;
        &mut self.left[at as usize & mask]
    }

    /// The next request, if it is there and can be followed.
    #[inline]
    fn next(&mut self) -> Option<Result<Descriptor, Why>> {
        if self.taken - self.consumer.completed() >= self.left.len() as u64 {
            return None;
        }
        match &self.source {
            Source::Slots => {
                let [low, high] = self.consumer.peek(self.taken)?;
                Some(Descriptor::unpack(low, high).ok_or(Why::BadDescriptor))
            }
            Source::Known(requests) => {
                if self.counter == self.taken {
                    self.counter = self.consumer.counter();
                    if self.counter == self.taken {
                        return None;
                    }
                }
                Some(Ok(requests[(self.taken % requests.len() as u64) as usize]))
            }
            Source::Built(_) => None,
        }
    }

    fn fail(&mut self, word: u64) {
        self.consumer.fail(word);
    }
}

/// Whose a posted work request is.
#[derive(Clone, Copy, Default)]
struct Owner {
    at: u64,
    /// Index of the worker's ring; [`NOBODY`] of a NOP that only fetches a completion.
    ring: u32,
}

const NOBODY: u32 = u32::MAX;

struct Queue {
    queue: Box<dyn SendQueue>,
    /// Requests that are taken and not posted, in order.
    chain: Vec<SendWr>,
    /// Of the requests by their number, which is their `wr_id`.
    owners: Box<[Owner]>,
    /// Numbers: first not made, first not posted, first not known to be completed.
    made: u64,
    posted: u64,
    completed: u64,
    /// `made` at the end of the last visit.
    seen: u64,
    /// The last request posted asked for no completion.
    silent: bool,
    failure: Option<u64>,
}

impl Queue {
    fn new(queue: Box<dyn SendQueue>, chain: usize) -> Self {
        let tracked = (queue.depth() + 2 * chain + 2).next_power_of_two();
        Self {
            queue,
            chain: Vec::with_capacity(chain + 2),
            owners: vec![Owner::default(); tracked].into(),
            made: 0,
            posted: 0,
            completed: 0,
            seen: 0,
            silent: false,
            failure: None,
        }
    }

    #[inline]
    fn add(&mut self, owner: Owner, op: SendOp, every: u64) {
        let number = self.made;
        self.made += 1;
        let mask = self.owners.len() - 1;
        self.owners[number as usize & mask] = owner;
        let signaled = self.made.is_multiple_of(every);
        self.chain.push(SendWr { wr_id: number, op, signaled, fence: false });
    }

    fn owner(&self, number: u64) -> Owner {
        self.owners[number as usize & (self.owners.len() - 1)]
    }
}

pub(crate) struct Worker {
    rings: Vec<Ring>,
    queues: Vec<Queue>,
    channels: Vec<Channel>,
    chain: usize,
    every: u64,
    cells: Arc<Cells>,
    /// Next ring to begin a visit with, so that none is always last.
    first: usize,
    /// Nothing is done any more: every ring was told why.
    ended: bool,
    completions: [Completion; 32],
}

impl Worker {
    pub(crate) fn new(
        rings: Vec<Ring>,
        queues: Vec<Box<dyn SendQueue>>,
        channels: Vec<Channel>,
        chain: u32,
        signal_every: u32,
        cells: Arc<Cells>,
    ) -> Self {
        let chain = chain as usize;
        Self {
            rings,
            queues: queues.into_iter().map(|queue| Queue::new(queue, chain)).collect(),
            channels,
            chain,
            every: u64::from(signal_every),
            cells,
            first: 0,
            ended: false,
            completions: [Completion::NONE; 32],
        }
    }

    /// One round: completions, what a full queue had left, new descriptors. True if anything was done.
    pub(crate) fn visit(&mut self) -> bool {
        if self.ended {
            return false;
        }
        // First the CQs: they make the room that the rest needs.
        let mut did = self.drain();
        for queue in 0..self.queues.len() {
            did |= self.post(queue);
        }
        let mut took = 0;
        for turn in 0..self.rings.len() {
            let ring = (self.first + turn) % self.rings.len();
            took += match self.rings[ring].source {
                Source::Built(_) => self.assist(ring),
                _ => self.take(ring),
            };
        }
        self.first = (self.first + 1) % self.rings.len().max(1);
        for queue in 0..self.queues.len() {
            self.ask_for_last(queue);
            did |= self.post(queue);
        }
        // What was done is told before what failed.
        self.publish();
        self.sweep();
        did || took > 0
    }

    /// Takes up to a chain of descriptors of one ring; returns how many.
    fn take(&mut self, index: usize) -> u64 {
        let Self { rings, queues, channels, .. } = self;
        let ring = &mut rings[index];
        if ring.consumer.is_failed() {
            return 0;
        }
        let mut taken = 0;
        while taken < self.chain as u64 {
            let Some(next) = ring.next() else { break };
            let at = ring.taken;
            let refused = |why, qpn| Failure { why, qpn, index: at as u16, syndrome: 0, vendor: 0 };
            let checked = next.and_then(|d| {
                let channel = channels.get(d.channel as usize).ok_or(Why::BadChannel)?;
                channel.check(&d)?;
                Ok((d, channel))
            });
            let (d, channel) = match checked {
                Ok(found) => found,
                Err(why) => {
                    ring.fail(refused(why, 0).pack());
                    break;
                }
            };
            let queue = &mut queues[channel.queue];
            if let Some(word) = queue.failure {
                ring.fail(word);
                break;
            }
            let requests = match d.op {
                ProxyOp::Flush => 0,
                ProxyOp::PutSignal => 2,
                _ => 1,
            };
            let fits = queue.chain.is_empty() || queue.chain.len() + requests <= self.chain;
            if !(fits || post_chain(queue, &self.cells) && queue.chain.is_empty()) {
                break;
            }
            let owner = Owner { at, ring: index as u32 };
            let sge =
                Sge { address: channel.local + d.source, bytes: d.size as u32, lkey: channel.lkey };
            let remote = RemoteAddr { address: channel.remote + d.destination, rkey: channel.rkey };
            match d.op {
                ProxyOp::Put => queue.add(owner, SendOp::Write(sge, remote), self.every),
                ProxyOp::PutSignal => {
                    queue.add(owner, SendOp::Write(sge, remote), self.every);
                    // Checked above: there is one.
                    let signal = channel.signal.unwrap_or_default();
                    queue.add(owner, SendOp::FetchAdd(1, signal, channel.result), self.every);
                }
                ProxyOp::PutImm => {
                    let imm = ring.number << 24 | at as u32 & 0xff_ffff;
                    queue.add(owner, SendOp::WriteImm(sge, remote, imm), self.every);
                }
                ProxyOp::Get => queue.add(owner, SendOp::Read(sge, remote), self.every),
                ProxyOp::FetchAdd => {
                    let result = Sge { bytes: 8, ..sge };
                    queue.add(owner, SendOp::FetchAdd(d.size, remote, result), self.every);
                }
                ProxyOp::Flush => {}
            }
            *ring.left(at) = requests as u8;
            ring.taken += 1;
            taken += 1;
        }
        if taken > 0 {
            count(&self.cells.taken, taken);
        }
        taken
    }

    /// Rings for the WQEs that producers have built; returns how many blocks.
    fn assist(&mut self, index: usize) -> u64 {
        let ring_ = &mut self.rings[index];
        let Source::Built(built) = &mut ring_.source else { return 0 };
        if ring_.consumer.is_failed() {
            return 0;
        }
        let producer = ring_.consumer.counter();
        let new = producer - built.rung;
        if new > 0 {
            ring(&built.qp, producer);
            built.rung = producer;
            ring_.taken = producer;
            count(&self.cells.taken, new);
            count(&self.cells.posted, new);
            count(&self.cells.requests, new);
            count(&self.cells.chains, 1);
            count(&self.cells.doorbells, 1);
        }
        new
    }

    /// A chain's last request asks for a completion if nothing is behind it, or nobody would ever hear of it.
    fn ask_for_last(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        let is_new = queue.made != queue.seen;
        // A full chain is likely to be followed by another. If it isn't, the next visit asks.
        let full = queue.chain.len() >= self.chain;
        if let Some(last) = queue.chain.last_mut() {
            last.signaled |= !full;
        } else if !is_new && queue.silent && queue.failure.is_none() && queue.queue.room() > 0 {
            queue.add(Owner { at: 0, ring: NOBODY }, SendOp::Nop, 1);
        }
        queue.seen = queue.made;
    }

    /// Queues that failed take the rings with them that wait for them.
    fn sweep(&mut self) {
        for queue in &mut self.queues {
            let Some(word) = queue.failure else { continue };
            for number in queue.completed..queue.made {
                let owner = queue.owner(number);
                if owner.ring != NOBODY {
                    self.rings[owner.ring as usize].fail(word);
                }
            }
            queue.chain.clear();
            queue.posted = queue.made;
            queue.completed = queue.made;
        }
    }

    fn post(&mut self, index: usize) -> bool {
        post_chain(&mut self.queues[index], &self.cells)
    }

    /// Takes in completions.
    fn drain(&mut self) -> bool {
        let mut did = false;
        for index in 0..self.queues.len() {
            loop {
                let queue = &mut self.queues[index];
                let taken = queue.queue.poll(&mut self.completions);
                for i in 0..taken {
                    self.complete(index, self.completions[i]);
                }
                count(&self.cells.completions, taken as u64);
                did |= taken > 0;
                if taken < self.completions.len() {
                    break;
                }
            }
        }
        for index in 0..self.rings.len() {
            did |= self.drain_built(index);
        }
        did
    }

    /// One completion: all requests of the queue up to it are done, or it is the first that failed.
    fn complete(&mut self, index: usize, completion: Completion) {
        let queue = &mut self.queues[index];
        if queue.failure.is_some() {
            return;
        }
        let done = completion.ended == Ended::Done;
        let until = if done { completion.wr_id + 1 } else { completion.wr_id };
        for number in queue.completed..until {
            let owner = queue.owner(number);
            if owner.ring != NOBODY {
                *self.rings[owner.ring as usize].left(owner.at) -= 1;
            }
        }
        queue.completed = queue.completed.max(until);
        if done {
            return;
        }
        queue.failure = Some(failure_of(&completion).pack());
    }

    fn drain_built(&mut self, index: usize) -> bool {
        let ring = &mut self.rings[index];
        let Source::Built(built) = &mut ring.source else { return false };
        let first = built.consumer;
        let mut completed = ring.consumer.completed();
        let mut failure = None;
        while let Some(found) = look(&built.qp, built.consumer) {
            built.consumer += 1;
            let next = wire::index::rebuild(completed, built.rung, found.index);
            if found.ended == Ended::Done {
                completed = next;
            } else if failure.is_none() && !ring.consumer.is_failed() {
                // All before the one that failed succeeded; of a flushed one nothing follows.
                if !found.ended.is_flushed() && next != completed {
                    completed = next - 1;
                }
                failure = Some(failure_of(&found).pack());
            }
        }
        if built.consumer == first {
            return false;
        }
        rdma::post::consumed(&built.qp, built.consumer);
        count(&self.cells.completions, built.consumer - first);
        count(&self.cells.completed, completed - ring.consumer.completed());
        // A send queue's slot is free when its WQE has completed.
        ring.consumer.release(completed);
        ring.consumer.complete(completed);
        if let Some(word) = failure {
            ring.consumer.fail(word);
        }
        true
    }

    /// Tells producers how far things are.
    fn publish(&mut self) {
        let leftover = self.queues.iter().any(|queue| !queue.chain.is_empty());
        for index in 0..self.rings.len() {
            if matches!(self.rings[index].source, Source::Built(_)) {
                continue;
            }
            let mut posted = self.rings[index].taken;
            if leftover {
                for queue in &self.queues {
                    let first = (queue.posted..queue.made)
                        .map(|number| queue.owner(number))
                        .find(|owner| owner.ring as usize == index);
                    posted = first.map_or(posted, |owner| posted.min(owner.at));
                }
            }
            let ring = &mut self.rings[index];
            count(&self.cells.posted, posted - ring.consumer.posted());
            ring.consumer.release(posted);
            let before = ring.consumer.completed();
            let mut completed = before;
            while completed < posted && *ring.left(completed) == 0 {
                completed += 1;
            }
            if completed != before {
                count(&self.cells.completed, completed - before);
                ring.consumer.complete(completed);
            }
        }
    }

    /// Ends the worker, and tells why to every ring that has met no failure yet.
    pub(crate) fn end(&mut self, why: Why) {
        self.ended = true;
        for ring in &mut self.rings {
            let index = ring.consumer.completed() as u16;
            ring.fail(Failure { why, qpn: 0, index, syndrome: 0, vendor: 0 }.pack());
        }
    }
}

pub(crate) fn failure_of(completion: &Completion) -> Failure {
    let (why, syndrome, vendor) = match completion.ended {
        Ended::Failed { syndrome, vendor } => (Why::Completion, syndrome, vendor),
        Ended::Done => (Why::Completion, 0, 0),
        Ended::Unknown { op_own } => (Why::BadCqe, 0, op_own),
    };
    Failure { why, qpn: completion.qpn, index: completion.index, syndrome, vendor }
}

/// Posts a queue's chain as far as there is room. True if any of it was posted.
fn post_chain(queue: &mut Queue, cells: &Cells) -> bool {
    if queue.chain.is_empty() {
        return false;
    }
    let posted = match queue.queue.post(&queue.chain) {
        Ok(posted) => posted,
        // Channels check what a queue refuses; if it refuses all the same, the queue is of no use any more.
        Err(error) => {
            let failure = Failure {
                why: Why::BadDescriptor,
                qpn: queue.queue.qpn(),
                index: error.index as u16,
                syndrome: 0,
                vendor: 0,
            };
            queue.failure.get_or_insert(failure.pack());
            error.index
        }
    };
    if posted == 0 {
        count(&cells.full, 1);
        return false;
    }
    queue.silent = !queue.chain[posted - 1].signaled;
    queue.posted += posted as u64;
    if posted == queue.chain.len() {
        queue.chain.clear();
    } else {
        count(&cells.full, 1);
        queue.chain.drain(..posted);
    }
    count(&cells.requests, posted as u64);
    count(&cells.chains, 1);
    count(&cells.doorbells, 1);
    true
}
