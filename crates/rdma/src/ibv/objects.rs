//! Protection domains, regions, completion queues and queue pairs. Each holds what it was made of.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use softnic::Access;

use super::device::{Context, mtu_code};
use super::library::words;
use super::{VerbError, ffi, verbs};
use crate::{Address, ConnectAttr, Error};

/// The library's access flags.
pub(crate) fn access_flags(access: Access) -> u32 {
    let mut flags = 0;
    for (one, flag) in [
        (Access::LOCAL_WRITE, ffi::access::LOCAL_WRITE),
        (Access::REMOTE_WRITE, ffi::access::REMOTE_WRITE),
        (Access::REMOTE_READ, ffi::access::REMOTE_READ),
        (Access::REMOTE_ATOMIC, ffi::access::REMOTE_ATOMIC),
    ] {
        if access.contains(one) {
            flags |= flag;
        }
    }
    flags
}

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $destroy:ident, holds $($held:ident: $of:ty),+) => {
        $(#[$doc])*
        pub struct $name {
            raw: NonNull<$raw>,
            $($held: $of,)+
        }

        // SAFETY: the library locks what its functions touch; which thread calls doesn't matter to it.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The library's own pointer, for calls that aren't here. It is valid as long as this value.
            #[must_use]
            pub fn as_ptr(&self) -> *mut $raw {
                self.raw.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made once, destroyed once, before what it was made of.
                unsafe { (self.context().verbs.$destroy)(self.raw.as_ptr()) };
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("raw", &self.raw).finish_non_exhaustive()
            }
        }
    };
}

owned! {
    /// A protection domain.
    ProtectionDomain, ffi::Pd, dealloc_pd, holds context: Arc<Context>
}

owned! {
    /// A registered region. It doesn't hold its memory.
    MemoryRegion, ffi::Mr, dereg_mr, holds pd: Arc<ProtectionDomain>
}

owned! {
    /// A completion queue.
    CompletionQueue, ffi::Cq, destroy_cq, holds context: Arc<Context>
}

owned! {
    /// A queue pair.
    QueuePairHandle, ffi::Qp, destroy_qp,
    holds pd: Arc<ProtectionDomain>, send_cq: Arc<CompletionQueue>, recv_cq: Arc<CompletionQueue>
}

impl ProtectionDomain {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: an open context.
        let raw = unsafe { (context.verbs.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_alloc_pd"))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers `bytes` bytes from `address` on, also to be named by it. `relaxed` lets the device reorder its writes on
    /// the bus, where kernel and device can.
    ///
    /// # Errors
    /// [`Error::Verbs`]: too much is locked already, or memory that can't be.
    ///
    /// # Safety
    /// The memory stays mapped as long as the region lives, and whoever shares it expects others' stores.
    pub unsafe fn register(
        self: &Arc<Self>,
        address: u64,
        bytes: usize,
        access: Access,
        relaxed: bool,
    ) -> Result<MemoryRegion, Error> {
        let optional = if relaxed { ffi::access::RELAXED_ORDERING } else { 0 };
        let flags = access_flags(access) | optional;
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: a live domain; the kernel checks the range, and the caller keeps it.
        let raw =
            unsafe { (self.context.verbs.reg_mr)(self.raw.as_ptr(), start, bytes, address, flags) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_reg_mr_iova2"))?;
        Ok(MemoryRegion { raw, pd: Arc::clone(self) })
    }

    /// Registers `bytes` bytes at `offset` of a dmabuf, to be named by `iova`: how a GPU's memory is reached without a
    /// kernel module of its own.
    ///
    /// # Errors
    /// [`Error::Verbs`]; `EOPNOTSUPP` where library, kernel or device can't.
    pub fn register_dmabuf(
        self: &Arc<Self>,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let verb = "ibv_reg_dmabuf_mr";
        let Some(register) = self.context.verbs.reg_dmabuf_mr else {
            return Err(VerbError { verb, errno: libc::EOPNOTSUPP }.into());
        };
        let flags = access_flags(access).cast_signed();
        // SAFETY: a live domain and an open file, which the kernel holds by itself from now on.
        let raw =
            unsafe { register(self.raw.as_ptr(), offset, bytes, iova, dmabuf.as_raw_fd(), flags) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last(verb))?;
        Ok(MemoryRegion { raw, pd: Arc::clone(self) })
    }
}

impl MemoryRegion {
    fn context(&self) -> &Context {
        &self.pd.context
    }

    /// Keys: local, remote.
    #[must_use]
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: a live region.
        let mr = unsafe { self.raw.as_ref() };
        (mr.lkey, mr.rkey)
    }
}

impl CompletionQueue {
    /// With room for `entries`, without events.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(context: &Arc<Context>, entries: usize) -> Result<Arc<Self>, Error> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let null = std::ptr::null_mut;
        // SAFETY: an open context; no channel.
        let raw =
            unsafe { (context.verbs.create_cq)(context.raw.as_ptr(), entries, null(), null(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_create_cq"))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    fn context(&self) -> &Context {
        &self.context
    }

    /// Takes completions; how many.
    ///
    /// # Errors
    /// [`Error::Verbs`]: the queue overran, or the device is gone.
    pub fn poll(&self, out: &mut [ffi::Wc]) -> Result<usize, Error> {
        let verb = "ibv_poll_cq";
        let most = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: a live queue of a live context, which fills in its calls when it is opened; room for `most` entries.
        let taken = unsafe {
            match self.context.raw.as_ref().ops.poll_cq {
                Some(poll) => poll(self.raw.as_ptr(), most, out.as_mut_ptr()),
                None => return Err(VerbError { verb, errno: libc::EOPNOTSUPP }.into()),
            }
        };
        // A negative number is no errno everywhere; nothing more is known.
        usize::try_from(taken).map_err(|_| VerbError { verb, errno: libc::EIO }.into())
    }
}

impl QueuePairHandle {
    /// An RC queue pair.
    ///
    /// # Errors
    /// [`Error::Verbs`]: more than the device can, or no room.
    pub fn new(
        pd: &Arc<ProtectionDomain>,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
        cap: ffi::QpCap,
    ) -> Result<Self, Error> {
        let mut attr = ffi::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            srq: std::ptr::null_mut(),
            cap,
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: live objects of one context, which the new one holds.
        let raw = unsafe { (pd.context.verbs.create_qp)(pd.as_ptr(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_create_qp"))?;
        Ok(Self {
            raw,
            pd: Arc::clone(pd),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
        })
    }

    fn context(&self) -> &Context {
        &self.pd.context
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// The CQ of its sends.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// The CQ of its receives.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    fn modify(&self, attr: &mut ffi::QpAttr, mask: c_int) -> Result<(), Error> {
        // SAFETY: a live queue pair.
        let returned = unsafe { (self.context().verbs.modify_qp)(self.raw.as_ptr(), attr, mask) };
        Ok(VerbError::check("ibv_modify_qp", returned)?)
    }

    /// From reset to ready to send, to `peer` and its queue pair `qpn`.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn connect(
        &self,
        route: &Route,
        peer: &Address,
        qpn: u32,
        attr: &ConnectAttr,
    ) -> Result<(), Error> {
        use ffi::{qp_mask as mask, qp_state};
        let mut init = ffi::QpAttr {
            qp_state: qp_state::INIT,
            port_num: route.port,
            qp_access_flags: access_flags(attr.access),
            ..ffi::QpAttr::default()
        };
        self.modify(&mut init, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)?;
        let mut ready = ffi::QpAttr {
            qp_state: qp_state::RTR,
            path_mtu: mtu_code(route.own.path_mtu(peer).unwrap_or(1024)),
            dest_qp_num: qpn,
            rq_psn: attr.rq_psn,
            max_dest_rd_atomic: route.reads,
            // 0.64 ms, by the specification's table.
            min_rnr_timer: 12,
            ah_attr: route.to(peer),
            ..ffi::QpAttr::default()
        };
        self.modify(
            &mut ready,
            mask::STATE
                | mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
        )?;
        let mut send = ffi::QpAttr {
            qp_state: qp_state::RTS,
            sq_psn: attr.sq_psn,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: route.reads,
            ..ffi::QpAttr::default()
        };
        self.modify(
            &mut send,
            mask::STATE
                | mask::SQ_PSN
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC,
        )
    }

    /// Its state (`enum ibv_qp_state`).
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn state(&self) -> Result<u32, Error> {
        let mut attr = ffi::QpAttr::default();
        // SAFETY: numbers and pointers that nobody follows, of which zeros are valid.
        let mut init: ffi::QpInitAttr = unsafe { std::mem::zeroed() };
        // SAFETY: a live queue pair, and room for both answers.
        let returned = unsafe {
            let query = self.context().verbs.query_qp;
            query(self.raw.as_ptr(), &raw mut attr, ffi::qp_mask::STATE, &raw mut init)
        };
        VerbError::check("ibv_query_qp", returned)?;
        Ok(attr.qp_state)
    }

    /// Posts a chain that begins at `first`. Where not all of it was taken: the errno and the first request that wasn't.
    ///
    /// # Safety
    /// `first` begins a chain of valid requests that ends in null; their lists are valid until this returns, and the
    /// memory that they name is registered until they complete.
    pub unsafe fn post_send(&self, first: *mut ffi::SendWr) -> Result<(), (i32, *mut ffi::SendWr)> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the chain is the caller's.
        let returned = unsafe {
            match self.context().raw.as_ref().ops.post_send {
                Some(post) => post(self.raw.as_ptr(), first, &raw mut bad),
                None => return Err((libc::EOPNOTSUPP, first)),
            }
        };
        if returned == 0 { Ok(()) } else { Err((returned.abs(), bad)) }
    }

    /// The same for receives.
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send).
    pub unsafe fn post_recv(&self, first: *mut ffi::RecvWr) -> Result<(), (i32, *mut ffi::RecvWr)> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the chain is the caller's.
        let returned = unsafe {
            match self.context().raw.as_ref().ops.post_recv {
                Some(post) => post(self.raw.as_ptr(), first, &raw mut bad),
                None => return Err((libc::EOPNOTSUPP, first)),
            }
        };
        if returned == 0 { Ok(()) } else { Err((returned.abs(), bad)) }
    }
}

/// How packets leave: what an address vector needs of this side.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The own port.
    pub port: u8,
    /// The own address.
    pub own: Address,
    /// Index of the own GID.
    pub gid_index: u8,
    /// Whether the subnet wants global routes in every packet.
    pub always_global: bool,
    /// Reads and atomics that may be outstanding, both ways.
    pub reads: u8,
}

impl Route {
    /// The address vector to a peer.
    #[must_use]
    pub fn to(&self, peer: &Address) -> ffi::AhAttr {
        let global = peer.is_global() || self.always_global;
        let grh = ffi::GlobalRoute {
            dgid: peer.gid,
            sgid_index: self.gid_index,
            hop_limit: 64,
            ..ffi::GlobalRoute::default()
        };
        ffi::AhAttr {
            grh: if global { grh } else { ffi::GlobalRoute::default() },
            dlid: peer.lid,
            is_global: global.into(),
            port_num: self.port,
            ..ffi::AhAttr::default()
        }
    }
}

/// The library's words for a completion's status.
#[must_use]
pub fn status_words(status: u32) -> String {
    match verbs() {
        // SAFETY: a function of a number that gives a static text.
        Ok(verbs) => words(unsafe { (verbs.wc_status_str)(status) }),
        Err(_) => format!("status {status}"),
    }
}
