//! The opened port, by verbs: protection domain, memory regions, addresses.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use wire::wqe::AddressVector;

use super::dv::{Dv, Opened};
use super::error::Mlx5Error;
use crate::ibv::{Asked, Context, MemoryRegion, OpenPort, PortOf, ProtectionDomain, Route, verbs};
use crate::select::NoPort;
use crate::{Access, Address, Error, Memory};

/// An opened port.
pub(super) struct Port {
    open: OpenPort,
}

/// What libmlx5's devices are called, unless somebody has named them otherwise.
const DRIVER: &str = "mlx5";

impl Port {
    pub(super) fn open(asked: &Asked, dv: Arc<Dv>) -> Result<(Self, Arc<Opened>), Error> {
        let by_name = Asked { driver: Some(DRIVER), ..asked.clone() };
        let open = match OpenPort::open(&by_name) {
            Err(Error::NoPort(NoPort::NoDevice | NoPort::Unknown { .. })) => OpenPort::open(asked)?,
            opened => opened?,
        };
        let context = &open.context;
        let none = || Mlx5Error::NotMlx5 { device: open.of.device.clone() };
        // SAFETY: an open context.
        let device = NonNull::new(unsafe { (*context.as_ptr()).device }.cast()).ok_or_else(none)?;
        // SAFETY: a context's own device.
        if !unsafe { Opened::drives(&dv, device) } {
            return Err(none().into());
        }
        let raw = NonNull::new(context.as_ptr().cast()).ok_or_else(none)?;
        // SAFETY: it is open as long as the context, which is kept.
        let opened = unsafe { Opened::new(dv, raw, Arc::clone(context)) };
        Ok((Self { open }, opened))
    }

    pub(super) fn of(&self) -> &PortOf {
        &self.open.of
    }

    pub(super) fn context(&self) -> &Context {
        &self.open.context
    }

    pub(super) fn route(&self) -> &Route {
        &self.open.route
    }

    pub(super) fn address(&self) -> Address {
        self.open.of.address
    }

    pub(super) fn pd_number(&self, opened: &Opened) -> Result<u32, Error> {
        let pd = raw_pd(&self.open.pd)?;
        // SAFETY: the device's own domain.
        Ok(unsafe { opened.pd_number(pd) }?)
    }

    /// Registers the first `bytes` bytes of memory by their address, in the order in which they are written.
    pub(super) fn register(
        &self,
        memory: &Memory,
        bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let address = memory.as_ptr().addr() as u64;
        let access = access | Access::LOCAL_WRITE;
        // SAFETY: the region's owner keeps the memory, and all access to it is atomic or from outside of Rust. GPU memory
        // is the kernel's to accept, and is never followed here.
        unsafe { self.open.pd.register(address, bytes, access, false) }
    }

    /// Registers memory behind a dmabuf, at the address that device code knows it by.
    pub(super) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let address = memory.as_ptr().addr() as u64;
        let access = access | Access::LOCAL_WRITE;
        self.open.pd.register_dmabuf(dmabuf, 0, memory.len(), address, access)
    }

    /// The way to a peer, with its MAC address: the kernel knows it, and tells it with an address handle.
    pub(super) fn vector_to(
        &self,
        opened: &Opened,
        peer: &Address,
    ) -> Result<AddressVector, Error> {
        let verbs = verbs()?;
        let mut attr = self.open.route.to(peer);
        // SAFETY: a domain that lives, and the library's own layout.
        let raw = unsafe { (verbs.create_ah)(self.open.pd.as_ptr(), &raw mut attr) };
        let handle = NonNull::new(raw).ok_or_else(|| Mlx5Error::call("ibv_create_ah"))?;
        // SAFETY: just made.
        let vector = unsafe { opened.address_vector(handle.cast()) };
        // SAFETY: nobody else has it.
        unsafe { (verbs.destroy_ah)(raw) };
        Ok(zerocopy::transmute!(vector?))
    }

    /// A shared receive queue that nobody posts to, and its number: DC targets of hardware have one.
    pub(super) fn shared_receives(
        &self,
        opened: &Arc<Opened>,
    ) -> Result<(super::dv::Srq, u32), Error> {
        let srq = super::dv::Srq::new(opened, raw_pd(&self.open.pd)?)?;
        let number = srq.number()?;
        Ok((srq, number))
    }
}

fn raw_pd(pd: &ProtectionDomain) -> Result<NonNull<c_void>, Mlx5Error> {
    NonNull::new(pd.as_ptr().cast())
        .ok_or(Mlx5Error::Unsupported { what: "protection domain of its own" })
}
