//! Fixed-capacity tables whose handles carry a tag (1 to 255), so that a stale handle never matches.

pub(super) struct Slots<T> {
    slots: Vec<(u8, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            slots: (0..capacity).map(|_| (0, None)).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    /// Puts the value into a free slot; gives its index and tag.
    pub(super) fn insert(&mut self, value: T) -> Option<(u32, u8)> {
        let index = self.free.pop()?;
        let (tag, slot) = self.slots.get_mut(index as usize)?;
        *tag = tag.checked_add(1).unwrap_or(1);
        *slot = Some(value);
        Some((index, *tag))
    }

    pub(super) fn remove(&mut self, index: u32, tag: u8) -> Option<T> {
        let (current, slot) = self.slots.get_mut(index as usize)?;
        if *current != tag {
            return None;
        }
        let value = slot.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(super) fn get(&self, index: u32, tag: u8) -> Option<&T> {
        let (current, slot) = self.slots.get(index as usize)?;
        if *current == tag { slot.as_ref() } else { None }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, (_, slot))| Some((i as u32, slot.as_ref()?)))
    }
}
