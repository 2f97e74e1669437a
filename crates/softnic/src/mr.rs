//! Memory regions and their keys.

use crate::check::Check;
use crate::dma::DmaBuf;
use crate::table::Table;

bitflags::bitflags! {
    /// What may be done to a region (or, of the remote ones, through a QP). Local reads are always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// The NIC may write for this process: receives, read and atomic results.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 2;
        /// Peers may read.
        const REMOTE_READ = 4;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 8;
    }
}

/// The keys of a region. They differ, so that one used in the other's place is noticed; hardware gives the
/// same number for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// For data segments.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

pub(crate) struct Region {
    pub iova: u64,
    pub length: u64,
    pub pd: u32,
    pub access: Access,
    pub memory: DmaBuf,
}

pub(crate) struct Regions {
    table: Table<Region>,
}

/// Bit of a key's index that tells rkeys from lkeys.
const REMOTE: u32 = 1;

impl Regions {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { table: Table::new(capacity) }
    }

    pub(crate) fn insert(&mut self, region: Region) -> Option<MrKeys> {
        self.table.insert(|index, tag| {
            let lkey = (index * 2) << 8 | u32::from(tag);
            (region, MrKeys { lkey, rkey: lkey | REMOTE << 8 })
        })
    }

    /// Puts another region behind the same keys.
    pub(crate) fn replace(&mut self, keys: MrKeys, region: Region) -> bool {
        let known = self.table.get_mut(keys.lkey >> 9, keys.lkey as u8);
        let known = known.filter(|_| keys.rkey == keys.lkey | REMOTE << 8);
        known.map(|known| *known = region).is_some()
    }

    pub(crate) fn remove(&mut self, keys: MrKeys) -> Option<Region> {
        if keys.lkey >> 8 & REMOTE != 0 || keys.rkey != keys.lkey | REMOTE << 8 {
            return None;
        }
        self.table.remove(keys.lkey >> 9, keys.lkey as u8)
    }

    pub(crate) fn count(&self) -> usize {
        self.table.iter().count()
    }

    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.table.iter().any(|(_, region)| region.pd == pd)
    }

    /// The region and offset of `len` local bytes at `addr`, if `lkey` allows `access` to them.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&DmaBuf, usize), Check> {
        let region = self.local_region(pd, lkey, access)?;
        let offset = region.offset(addr, len).ok_or(Check::LocalBounds)?;
        Ok((&region.memory, offset))
    }

    /// The region behind `lkey`, if it allows `access`; its bounds are still to be checked.
    #[inline]
    pub(crate) fn local_region(
        &self,
        pd: u32,
        lkey: u32,
        access: Access,
    ) -> Result<&Region, Check> {
        if lkey >> 8 & REMOTE != 0 {
            return Err(Check::LocalKey);
        }
        let region = self.table.get(lkey >> 9, lkey as u8).ok_or(Check::LocalKey)?;
        if region.pd != pd {
            return Err(Check::LocalPd);
        }
        if !region.access.contains(access) {
            return Err(Check::LocalPermission);
        }
        Ok(region)
    }

    /// The region and offset of `len` bytes at `addr` that a peer asks for under `rkey`.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: u32,
        rkey: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&DmaBuf, usize), Check> {
        let region = self.remote_region(pd, rkey, access)?;
        let offset = region.offset(addr, len).ok_or(Check::RemoteBounds)?;
        Ok((&region.memory, offset))
    }

    /// The region that a peer asks for under `rkey`; its bounds are still to be checked.
    #[inline]
    pub(crate) fn remote_region(
        &self,
        pd: u32,
        rkey: u32,
        access: Access,
    ) -> Result<&Region, Check> {
        if rkey >> 8 & REMOTE == 0 {
            return Err(Check::RemoteKey);
        }
        let region = self.table.get(rkey >> 9, rkey as u8).ok_or(Check::RemoteKey)?;
        if region.pd != pd {
            return Err(Check::RemotePd);
        }
        if !region.access.contains(access) {
            return Err(Check::RemotePermission);
        }
        Ok(region)
    }
}

impl Region {
    #[inline]
    pub(crate) fn offset(&self, addr: u64, len: u64) -> Option<usize> {
        let offset = addr.checked_sub(self.iova)?;
        (len <= self.length && offset <= self.length - len).then_some(offset as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn region(iova: u64, length: u64) -> Region {
        let memory = Memory::zeroed(length as usize).dma();
        Region { iova, length, pd: 1, access: Access::REMOTE_WRITE, memory }
    }

    #[test]
    fn bounds_hold_without_overflow() {
        let mut regions = Regions::new(4);
        let end = u64::MAX - 63;
        let keys = regions.insert(region(end, 64)).unwrap();
        for (addr, len, ok) in [
            (end, 64, true),
            (end + 63, 1, true),
            (end + 56, 8, true),
            (end + 63, 2, false),
            (end - 1, 1, false),
            (end, u64::MAX, false),
            (0, 1, false),
            (end, 0, true),
        ] {
            let got = regions.remote(1, keys.rkey, addr, len, Access::REMOTE_WRITE);
            assert_eq!(got.is_ok(), ok, "{addr:#x} + {len}");
        }
    }

    #[test]
    fn a_stale_key_never_matches_again_before_255_others() {
        let mut regions = Regions::new(1);
        let stale = regions.insert(region(0, 64)).unwrap();
        regions.remove(stale).unwrap();
        for _ in 0..254 {
            let keys = regions.insert(region(0, 64)).unwrap();
            assert_ne!(keys, stale);
            assert_eq!(
                regions.remote(1, stale.rkey, 0, 1, Access::empty()).err(),
                Some(Check::RemoteKey)
            );
            assert!(regions.remove(stale).is_none());
            regions.remove(keys).unwrap();
        }
    }

    #[test]
    fn keys_are_never_zero_and_differ() {
        let mut regions = Regions::new(2);
        let keys = regions.insert(region(0, 64)).unwrap();
        assert!(keys.lkey != 0 && keys.rkey != 0 && keys.lkey != keys.rkey);
        assert_eq!(regions.local(1, keys.rkey, 0, 1, Access::empty()).err(), Some(Check::LocalKey));
        assert_eq!(
            regions.remote(1, keys.lkey, 0, 1, Access::empty()).err(),
            Some(Check::RemoteKey)
        );
    }
}
