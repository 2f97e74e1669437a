//! Devices and what they say of themselves and of their ports.

use std::ffi::{CStr, c_int};
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Verbs, words};
use super::{VerbError, ffi, verbs};
use crate::Error;
use crate::select::{Gid, GidKind, LinkLayer};
use crate::sysfs::Sysfs;

/// The list of devices, freed when it is dropped.
struct List {
    verbs: &'static Verbs,
    first: NonNull<*mut ffi::Device>,
    len: usize,
}

impl List {
    fn get() -> Result<Self, Error> {
        let verbs = verbs()?;
        let mut len: c_int = 0;
        // SAFETY: the count is written, and the list is ours until it is freed.
        let first = unsafe { (verbs.get_device_list)(&raw mut len) };
        let first = NonNull::new(first).ok_or_else(|| VerbError::last("ibv_get_device_list"))?;
        Ok(Self { verbs, first, len: usize::try_from(len).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ffi::Device, String)> {
        (0..self.len).map(|index| {
            // SAFETY: within the list, whose devices live as long as it; their names, too.
            unsafe {
                let device = *self.first.as_ptr().add(index);
                (device, words((self.verbs.get_device_name)(device)))
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: what `ibv_get_device_list` gave, freed once. Devices that are open outlive it.
        unsafe { (self.verbs.free_device_list)(self.first.as_ptr()) }
    }
}

/// Names of the RDMA devices that libibverbs finds, in its order.
///
/// # Errors
/// There is no libibverbs, or it can't look.
pub fn device_names() -> Result<Vec<String>, Error> {
    Ok(List::get()?.devices().map(|(_, name)| name).collect())
}

/// An open device.
pub struct Context {
    pub(super) verbs: &'static Verbs,
    pub(super) raw: NonNull<ffi::Context>,
    name: String,
}

// SAFETY: libibverbs' functions may be called on a context by any thread at any time; the library locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a port says of itself.
#[derive(Clone, Debug)]
pub struct Port {
    /// The library's structure.
    pub attr: ffi::PortAttr,
    /// Its link layer.
    pub link: LinkLayer,
    /// Its active MTU, in bytes.
    pub active_mtu: u32,
    /// Its GID table. Entries that aren't set are all zeros.
    pub gids: Vec<Gid>,
}

impl Context {
    /// Opens a device by its name.
    ///
    /// # Errors
    /// There is none of that name, or this user may not open it.
    pub fn open(name: &str) -> Result<Arc<Self>, Error> {
        let list = List::get()?;
        let found = list.devices().find(|(_, one)| one == name);
        let Some((device, name)) = found else {
            return Err(VerbError { verb: "ibv_open_device", errno: libc::ENODEV }.into());
        };
        // SAFETY: a device of the list, which is alive.
        let raw = unsafe { (list.verbs.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_open_device"))?;
        let context = Self { verbs: list.verbs, raw, name };
        context.dont_block_on_events();
        Ok(Arc::new(context))
    }

    /// Async events are looked for, never waited for.
    fn dont_block_on_events(&self) {
        // SAFETY: an open context's own file.
        unsafe {
            let fd = self.raw.as_ref().async_fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            if flags >= 0 {
                libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            }
        }
    }

    /// The library's own pointer, for calls that aren't here. It is valid as long as this value.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ffi::Context {
        self.raw.as_ptr()
    }

    /// The device's name, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device says of itself.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn attr(&self) -> Result<ffi::DeviceAttr, Error> {
        // SAFETY: numbers and bytes, of which zeros are valid.
        let mut attr: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and room for the answer.
        let returned = unsafe { (self.verbs.query_device)(self.raw.as_ptr(), &raw mut attr) };
        VerbError::check("ibv_query_device", returned)?;
        Ok(attr)
    }

    /// The firmware's version, as the device says it.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn firmware(&self) -> Result<String, Error> {
        let attr = self.attr()?;
        let bytes = attr.fw_ver.map(|c| c.cast_unsigned());
        let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
        Ok(text.unwrap_or_default().into_owned())
    }

    /// What a port says of itself.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut attr = ffi::PortAttr::default();
        // SAFETY: an open context, and more room than the exported function writes.
        let returned = unsafe { (self.verbs.query_port)(self.raw.as_ptr(), number, &raw mut attr) };
        VerbError::check("ibv_query_port", returned)?;
        let ethernet = attr.link_layer == ffi::LINK_LAYER_ETHERNET;
        let link = if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let entries = u32::try_from(attr.gid_tbl_len).unwrap_or(0);
        let gids = (0..entries).map(|index| self.gid(number, index, link)).collect();
        Ok(Port { attr, link, active_mtu: mtu_bytes(attr.active_mtu), gids })
    }

    /// An entry of the GID table; all zeros where there is none.
    fn gid(&self, port: u8, index: u32, link: LinkLayer) -> Gid {
        let nothing = Gid { address: Ipv6Addr::UNSPECIFIED, kind: GidKind::V1 };
        if let Some(query) = self.verbs.query_gid_ex {
            let mut entry = ffi::GidEntry::default();
            // SAFETY: an open context, and room for an entry of the size that is said.
            let returned = unsafe {
                let size = size_of::<ffi::GidEntry>();
                query(self.raw.as_ptr(), port.into(), index, &raw mut entry, 0, size)
            };
            return match returned {
                0 => {
                    let kind = if entry.gid_type == 2 { GidKind::V2 } else { GidKind::V1 };
                    Gid { address: Ipv6Addr::from(entry.gid), kind }
                }
                // Kernels say so of an entry that isn't set.
                _ => nothing,
            };
        }
        // An older library knows no types: the kernel's files do.
        let mut gid = [0u8; 16];
        let place = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: an open context, and room for a GID.
        let returned =
            unsafe { (self.verbs.query_gid)(self.raw.as_ptr(), port, place, &raw mut gid) };
        if returned != 0 {
            return nothing;
        }
        let kind = match link {
            LinkLayer::InfiniBand => GidKind::V1,
            LinkLayer::Ethernet => Sysfs::system().gid_kind(&self.name, port, index),
        };
        Gid { address: Ipv6Addr::from(gid), kind }
    }

    /// Async events that have come since the last call, in words. Those that name an object are acknowledged at once.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        let mut seen = Vec::new();
        let empty = ffi::AsyncEvent { element: std::ptr::null_mut(), event_type: -1 };
        // A device that raises events faster than they are read must not keep this thread.
        for _ in 0..64 {
            let mut event = empty;
            // SAFETY: an open context whose file doesn't block; what comes is acknowledged once.
            unsafe {
                if (self.verbs.get_async_event)(self.raw.as_ptr(), &raw mut event) != 0 {
                    break;
                }
                let what = words((self.verbs.event_type_str)(event.event_type));
                let about = match event.event_type {
                    // QP fatal, request and access errors, last WQE reached.
                    1..=3 | 16 if !event.element.is_null() => {
                        let number = (*event.element.cast::<ffi::Qp>()).qp_num;
                        format!(" on queue pair {number:#x}")
                    }
                    _ => String::new(),
                };
                (self.verbs.ack_async_event)(&raw mut event);
                seen.push(format!("{}: {what}{about}", self.name));
            }
        }
        seen
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once, and all that was made of it holds it.
        unsafe { (self.verbs.close_device)(self.raw.as_ptr()) };
    }
}

/// Bytes of an `enum ibv_mtu`; 0 for none.
pub(super) fn mtu_bytes(code: c_int) -> u32 {
    if (1..=5).contains(&code) { 128 << code } else { 0 }
}

/// The `enum ibv_mtu` of so many bytes.
pub(super) fn mtu_code(bytes: u32) -> u32 {
    bytes.max(256).ilog2() - 7
}
