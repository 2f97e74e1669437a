//! Writes whose data stays invisible for a while, or lands out of order.
//!
//! Off unless a profile delays placement or a fault shuffles it; then every write goes through a bounded store.

use std::collections::VecDeque;

use crate::config::Nanos;
use crate::dma::DmaBuf;
use crate::rng::Rng;

/// Writes kept at once; when there are more, the oldest is placed.
const KEPT: usize = 256;
const LARGEST: usize = 4096;

struct Pending {
    due: Nanos,
    connection: u32,
    memory: DmaBuf,
    offset: usize,
    len: usize,
    data: Box<[u8; LARGEST]>,
}

#[derive(Default)]
pub(crate) struct Pendings {
    queue: VecDeque<Pending>,
    free: Vec<Box<[u8; LARGEST]>>,
    delay: Nanos,
    shuffle: Option<Rng>,
}

impl Pendings {
    /// Turns it on or off. Allocates, so not on the data path.
    pub(crate) fn configure(&mut self, delay: Nanos, shuffle: Option<u64>) {
        self.settle_all();
        self.delay = delay;
        self.shuffle = shuffle.map(Rng::new);
        if self.is_on() && self.free.is_empty() {
            self.queue = VecDeque::with_capacity(KEPT);
            self.free = (0..KEPT).map(|_| Box::new([0; LARGEST])).collect();
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.delay > 0 || self.shuffle.is_some()
    }

    /// When the next write is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.queue.front().map(|pending| pending.due)
    }

    /// Keeps a write. A fenced one lets all earlier ones of its connection go first.
    pub(crate) fn add(
        &mut self,
        now: Nanos,
        connection: u32,
        memory: &DmaBuf,
        offset: usize,
        bytes: &[u8],
        fenced: bool,
    ) {
        if fenced {
            self.settle(connection);
        }
        if self.free.is_empty() {
            self.place(0);
        }
        let Some(mut data) = self.free.pop() else { return };
        let len = bytes.len().min(LARGEST);
        data[..len].copy_from_slice(&bytes[..len]);
        let due = now.saturating_add(self.delay);
        let memory = memory.clone();
        self.queue.push_back(Pending { due, connection, memory, offset, len, data });
    }

    /// Places what is due.
    pub(crate) fn run(&mut self, now: Nanos) -> u32 {
        let mut placed = 0;
        while self.queue.front().is_some_and(|pending| pending.due <= now) {
            let due = self.queue.iter().take_while(|pending| pending.due <= now).count();
            self.place_one_of(due);
            placed += 1;
        }
        placed
    }

    /// Places all that is kept of a connection: in order, or shuffled.
    pub(crate) fn settle(&mut self, connection: u32) {
        loop {
            let of = self.queue.iter().filter(|p| p.connection == connection).count();
            if of == 0 {
                return;
            }
            let nth = self.shuffle.as_mut().map_or(0, |rng| rng.below(of as u64) as usize);
            let found = self
                .queue
                .iter()
                .enumerate()
                .filter(|(_, p)| p.connection == connection)
                .nth(nth)
                .map(|(i, _)| i);
            match found {
                Some(i) => self.place(i),
                None => return,
            }
        }
    }

    pub(crate) fn settle_all(&mut self) {
        while !self.queue.is_empty() {
            self.place_one_of(self.queue.len());
        }
    }

    fn place_one_of(&mut self, first: usize) {
        let nth = self.shuffle.as_mut().map_or(0, |rng| rng.below(first as u64) as usize);
        self.place(nth);
    }

    fn place(&mut self, nth: usize) {
        if let Some(pending) = self.queue.remove(nth) {
            // Bounds were checked when the write came; a region settles before it goes.
            let _ = pending.memory.write(pending.offset, &pending.data[..pending.len]);
            self.free.push(pending.data);
        }
    }
}
