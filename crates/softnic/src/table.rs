//! Tables of bounded size whose handles carry a tag, so that a stale handle never matches. They grow as they are filled: a
//! NIC that has room for much is cheap while it holds little.

use std::ops::RangeInclusive;

pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Slots that were used before.
    free: Vec<u32>,
    capacity: u32,
    /// Tags given, within 1 to 255.
    tags: (u8, u8),
}

struct Slot<T> {
    tag: u8,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), capacity, tags: (1, u8::MAX) }
    }

    /// As [`new`](Self::new), with these tags alone; 0 is none.
    pub(crate) fn with_tags(capacity: u32, tags: &RangeInclusive<u8>) -> Self {
        let first = (*tags.start()).max(1);
        Self { tags: (first, (*tags.end()).max(first)), ..Self::new(capacity) }
    }

    /// Puts the value that `make` gives for its index and tag (1 to 255) into a free slot.
    pub(crate) fn insert<R>(&mut self, make: impl FnOnce(u32, u8) -> (T, R)) -> Option<R> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.capacity as usize => {
                self.slots.push(Slot { tag: 0, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        let (first, last) = self.tags;
        slot.tag = if (first..last).contains(&slot.tag) { slot.tag + 1 } else { first };
        let (value, result) = make(index, slot.tag);
        slot.value = Some(value);
        Some(result)
    }

    pub(crate) fn remove(&mut self, index: u32, tag: u8) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.tag != tag {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(index);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32, tag: u8) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        if slot.tag == tag { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32, tag: u8) -> Option<&mut T> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.tag == tag { slot.value.as_mut() } else { None }
    }

    pub(crate) fn tag(&self, index: u32) -> Option<u8> {
        self.slots.get(index as usize).map(|slot| slot.tag)
    }

    /// By index alone: for references from inside the NIC, which never outlive what they refer to.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    /// As [`at`](Self::at).
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i as u32, s.value.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, s)| Some((i as u32, s.value.as_mut()?)))
    }
}
