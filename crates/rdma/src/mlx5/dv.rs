//! libmlx5, loaded when it is needed: its functions, and the objects that they make.
//!
//! Layouts and signatures are those of rdma-core's public header `mlx5dv.h`.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use wire::devx::{Opcode, SHORT};

use super::error::Mlx5Error;
use crate::ibv::{Context, Library, LoadError};

/// `struct mlx5dv_devx_umem_in`.
#[repr(C)]
struct UmemIn {
    addr: *mut c_void,
    size: usize,
    access: u32,
    pgsz_bitmap: u64,
    comp_mask: u64,
    dmabuf_fd: c_int,
}

/// `struct mlx5dv_devx_umem`.
#[repr(C)]
struct RawUmem {
    umem_id: u32,
}

/// `struct mlx5dv_devx_uar`.
#[repr(C)]
struct RawUar {
    reg_addr: *mut u8,
    base_addr: *mut u8,
    page_id: u32,
    mmap_off: i64,
    comp_mask: u64,
}

/// `struct mlx5dv_obj`: pairs of what is asked about and where the answer goes.
#[repr(C)]
#[derive(Default)]
struct Ask {
    qp: Pair,
    cq: Pair,
    srq: Pair,
    rwq: Pair,
    dm: Pair,
    ah: Pair,
    pd: Pair,
}

#[repr(C)]
struct Pair {
    asked: *mut c_void,
    answer: *mut c_void,
}

impl Default for Pair {
    fn default() -> Self {
        Self { asked: std::ptr::null_mut(), answer: std::ptr::null_mut() }
    }
}

/// `struct mlx5dv_pd`.
#[repr(C)]
#[derive(Default)]
struct DvPd {
    pdn: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_ah`.
#[repr(C)]
struct DvAh {
    av: *const [u8; 48],
    comp_mask: u64,
}

/// `struct mlx5dv_srq`.
#[repr(C)]
struct DvSrq {
    buf: *mut c_void,
    dbrec: *mut u32,
    stride: u32,
    head: u32,
    tail: u32,
    comp_mask: u64,
    srqn: u32,
}

/// Kinds of `mlx5dv_init_obj`.
mod kind {
    pub(super) const SRQ: u64 = 1 << 2;
    pub(super) const AH: u64 = 1 << 5;
    pub(super) const PD: u64 = 1 << 6;
}

/// `MLX5DV_SRQ_MASK_SRQN`.
const SRQ_MASK_SRQN: u64 = 1;
/// `MLX5DV_UMEM_MASK_DMABUF`.
const UMEM_MASK_DMABUF: u64 = 1;
/// `IBV_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;

macro_rules! functions {
    ($($field:ident = $name:literal @ $version:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions.
        pub(super) struct Dv {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            shared: SharedReceives,
        }
        impl Dv {
            /// Loads the library, for as long as the process lives.
            pub(super) fn load() -> Result<Arc<Self>, LoadError> {
                let library = Library::open("libmlx5.so.1")?;
                Ok(Arc::new(Self {
                    $($field: {
                        let found = library.symbol($name, $version)?;
                        // SAFETY: the function of this name and version has the public header's type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                    shared: SharedReceives::load()?,
                }))
            }
        }
    };
}

functions! {
    is_supported = c"mlx5dv_is_supported" @ c"MLX5_1.8": fn(*mut c_void) -> bool;
    init_obj = c"mlx5dv_init_obj" @ c"MLX5_1.2": fn(*mut Ask, u64) -> c_int;
    general_cmd = c"mlx5dv_devx_general_cmd" @ c"MLX5_1.7":
        fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;
    query_eqn = c"mlx5dv_devx_query_eqn" @ c"MLX5_1.7": fn(*mut c_void, u32, *mut u32) -> c_int;
    alloc_uar = c"mlx5dv_devx_alloc_uar" @ c"MLX5_1.7": fn(*mut c_void, u32) -> *mut RawUar;
    free_uar = c"mlx5dv_devx_free_uar" @ c"MLX5_1.7": fn(*mut RawUar);
    umem_reg = c"mlx5dv_devx_umem_reg" @ c"MLX5_1.7":
        fn(*mut c_void, *mut c_void, usize, u32) -> *mut RawUmem;
    umem_reg_ex = c"mlx5dv_devx_umem_reg_ex" @ c"MLX5_1.19":
        fn(*mut c_void, *mut UmemIn) -> *mut RawUmem;
    umem_dereg = c"mlx5dv_devx_umem_dereg" @ c"MLX5_1.7": fn(*mut RawUmem) -> c_int;
    obj_create = c"mlx5dv_devx_obj_create" @ c"MLX5_1.7":
        fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> *mut c_void;
    obj_query = c"mlx5dv_devx_obj_query" @ c"MLX5_1.7":
        fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;
    obj_modify = c"mlx5dv_devx_obj_modify" @ c"MLX5_1.7":
        fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;
    obj_destroy = c"mlx5dv_devx_obj_destroy" @ c"MLX5_1.7": fn(*mut c_void) -> c_int;
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
struct SrqAttr {
    context: *mut c_void,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
}

/// Functions of libibverbs for shared receive queues.
struct SharedReceives {
    create: unsafe extern "C" fn(*mut c_void, *mut SrqAttr) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl SharedReceives {
    fn load() -> Result<Self, LoadError> {
        let library = Library::open("libibverbs.so.1")?;
        let create = library.symbol(c"ibv_create_srq", c"IBVERBS_1.1")?;
        let destroy = library.symbol(c"ibv_destroy_srq", c"IBVERBS_1.1")?;
        // SAFETY: the functions of these names and versions have the public header's types.
        unsafe {
            Ok(Self {
                create: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, *mut SrqAttr) -> *mut c_void,
                >(create),
                destroy: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void) -> c_int,
                >(destroy),
            })
        }
    }
}

/// A shared receive queue that nobody posts to.
pub(super) struct Srq {
    raw: NonNull<c_void>,
    opened: Arc<Opened>,
}

// SAFETY: the library's calls may be made from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// In `pd`, a `struct ibv_pd *` of this context that lives longer.
    pub(super) fn new(opened: &Arc<Opened>, pd: NonNull<c_void>) -> Result<Self, Mlx5Error> {
        let mut attr = SrqAttr { context: std::ptr::null_mut(), max_wr: 1, max_sge: 1, limit: 0 };
        // SAFETY: a domain that lives, and the public header's layout.
        let raw = unsafe { (opened.dv.shared.create)(pd.as_ptr(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Mlx5Error::call("ibv_create_srq"))?;
        Ok(Self { raw, opened: Arc::clone(opened) })
    }

    /// What commands call it.
    pub(super) fn number(&self) -> Result<u32, Mlx5Error> {
        // SAFETY: it lives.
        unsafe { self.opened.srq_number(self.raw) }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: made once; what used it is gone.
        unsafe { (self.opened.dv.shared.destroy)(self.raw.as_ptr()) };
    }
}

fn result(step: &'static str, returned: c_int) -> Result<(), Mlx5Error> {
    match returned {
        0 => Ok(()),
        // Some return the number, some leave it in `errno`.
        number if number > 0 => Err(Mlx5Error::Call { step, errno: number }),
        _ => Err(Mlx5Error::call(step)),
    }
}

/// An opened device, for this library's calls.
///
/// Everything that is made through it keeps it.
pub(super) struct Opened {
    dv: Arc<Dv>,
    /// `struct ibv_context *`.
    context: NonNull<c_void>,
    /// Closes it.
    _keep: Arc<Context>,
}

// SAFETY: the library's calls may be made from any thread; the context is open while `_keep` lives.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// A device that `keep` holds open.
    ///
    /// # Safety
    /// `context` is a `struct ibv_context *` that is open as long as `keep` lives.
    pub(super) unsafe fn new(
        dv: Arc<Dv>,
        context: NonNull<c_void>,
        keep: Arc<Context>,
    ) -> Arc<Self> {
        Arc::new(Self { dv, context, _keep: keep })
    }

    /// Sends a command that is about no object.
    pub(super) fn general(
        &self,
        name: &'static str,
        command: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, Mlx5Error> {
        let mut answer = vec![0; room];
        // SAFETY: an open context; both buffers are as long as is said.
        let returned = unsafe {
            (self.dv.general_cmd)(
                self.context.as_ptr(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                room,
            )
        };
        told(name, returned, &answer)?;
        Ok(answer)
    }

    /// The event queue of a completion vector.
    pub(super) fn eqn(&self, vector: u32) -> Result<u32, Mlx5Error> {
        let mut eqn = 0;
        // SAFETY: an open context, and room for the number.
        let returned = unsafe { (self.dv.query_eqn)(self.context.as_ptr(), vector, &raw mut eqn) };
        result("mlx5dv_devx_query_eqn", returned).map(|()| eqn)
    }

    fn ask(&self, mut ask: Ask, kind: u64) -> Result<(), Mlx5Error> {
        // SAFETY: the callers' objects live, and the answers have the layouts that the kind asks for.
        result("mlx5dv_init_obj", unsafe { (self.dv.init_obj)(&raw mut ask, kind) })
    }

    /// The number of a protection domain.
    ///
    /// # Safety
    /// `pd` is a `struct ibv_pd *` of this context.
    pub(super) unsafe fn pd_number(&self, pd: NonNull<c_void>) -> Result<u32, Mlx5Error> {
        let mut answer = DvPd::default();
        let pd = Pair { asked: pd.as_ptr(), answer: (&raw mut answer).cast() };
        self.ask(Ask { pd, ..Ask::default() }, kind::PD)?;
        Ok(answer.pdn)
    }

    /// The number of a shared receive queue.
    ///
    /// # Safety
    /// `srq` is a `struct ibv_srq *` of this context.
    pub(super) unsafe fn srq_number(&self, srq: NonNull<c_void>) -> Result<u32, Mlx5Error> {
        let mut answer = DvSrq {
            buf: std::ptr::null_mut(),
            dbrec: std::ptr::null_mut(),
            stride: 0,
            head: 0,
            tail: 0,
            comp_mask: SRQ_MASK_SRQN,
            srqn: 0,
        };
        let srq = Pair { asked: srq.as_ptr(), answer: (&raw mut answer).cast() };
        self.ask(Ask { srq, ..Ask::default() }, kind::SRQ)?;
        // Otherwise the library is too old to tell.
        if answer.comp_mask & SRQ_MASK_SRQN == 0 {
            return Err(Mlx5Error::Unsupported {
                what: "number of a shared receive queue to tell",
            });
        }
        Ok(answer.srqn)
    }

    /// The address vector of an address handle.
    ///
    /// # Safety
    /// `ah` is a `struct ibv_ah *` of this context.
    pub(super) unsafe fn address_vector(&self, ah: NonNull<c_void>) -> Result<[u8; 48], Mlx5Error> {
        let mut answer = DvAh { av: std::ptr::null(), comp_mask: 0 };
        let ah = Pair { asked: ah.as_ptr(), answer: (&raw mut answer).cast() };
        self.ask(Ask { ah, ..Ask::default() }, kind::AH)?;
        if answer.av.is_null() {
            return Err(Mlx5Error::Unsupported { what: "address vector to tell" });
        }
        // SAFETY: the handle's own, which lives; 48 bytes, by the public header.
        Ok(unsafe { *answer.av })
    }

    /// Whether the library drives a device.
    ///
    /// # Safety
    /// `device` is a `struct ibv_device *`.
    pub(super) unsafe fn drives(dv: &Dv, device: NonNull<c_void>) -> bool {
        // SAFETY: as promised.
        unsafe { (dv.is_supported)(device.as_ptr()) }
    }
}

/// What became of a command.
fn told(name: &'static str, returned: c_int, answer: &[u8]) -> Result<(), Mlx5Error> {
    if returned == 0 {
        return Ok(());
    }
    let last = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Err(Mlx5Error::command(name, answer, if returned > 0 { returned } else { last }))
}

/// A doorbell page.
pub(super) struct Uar {
    raw: NonNull<RawUar>,
    opened: Arc<Opened>,
}

// SAFETY: the library's calls may be made from any thread; the page is mapped while this lives.
unsafe impl Send for Uar {}
// SAFETY: as above.
unsafe impl Sync for Uar {}

impl Uar {
    /// A page of a type: `MLX5DV_UAR_ALLOC_TYPE_*`.
    pub(super) fn new(opened: &Arc<Opened>, kind: u32) -> Result<Self, Mlx5Error> {
        // SAFETY: an open context.
        let raw = unsafe { (opened.dv.alloc_uar)(opened.context.as_ptr(), kind) };
        let raw = NonNull::new(raw).ok_or_else(|| Mlx5Error::call("mlx5dv_devx_alloc_uar"))?;
        Ok(Self { raw, opened: Arc::clone(opened) })
    }

    /// Its number in commands.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the library's own, until it is freed.
        unsafe { self.raw.as_ref() }.page_id
    }

    /// The page, and the register in it that sends are rung at.
    pub(super) fn registers(&self) -> Option<(NonNull<u8>, NonNull<u8>)> {
        // SAFETY: as above.
        let raw = unsafe { self.raw.as_ref() };
        NonNull::new(raw.base_addr).zip(NonNull::new(raw.reg_addr))
    }
}

impl Drop for Uar {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and nobody has it any more.
        unsafe { (self.opened.dv.free_uar)(self.raw.as_ptr()) }
    }
}

/// Registered memory. Whoever makes it keeps the memory until it is dropped.
pub(super) struct Umem {
    raw: NonNull<RawUmem>,
    opened: Arc<Opened>,
}

// SAFETY: the library's calls may be made from any thread.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Memory by its address: this process's, or a GPU's where the kernel has a way to it.
    pub(super) fn by_address(
        opened: &Arc<Opened>,
        address: *mut u8,
        bytes: usize,
    ) -> Result<Self, Mlx5Error> {
        // SAFETY: an open context. The kernel checks the address; the memory is kept by the caller.
        let raw = unsafe {
            (opened.dv.umem_reg)(opened.context.as_ptr(), address.cast(), bytes, LOCAL_WRITE)
        };
        Self::made(opened, raw, "mlx5dv_devx_umem_reg")
    }

    /// Memory behind a dmabuf, from its beginning.
    pub(super) fn by_dmabuf(
        opened: &Arc<Opened>,
        dmabuf: std::os::fd::BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Self, Mlx5Error> {
        use std::os::fd::AsRawFd;
        let mut asked = UmemIn {
            // The offset in the dmabuf.
            addr: std::ptr::null_mut(),
            size: bytes,
            access: LOCAL_WRITE,
            // Any page from 4 KiB on.
            pgsz_bitmap: !0xfff,
            comp_mask: UMEM_MASK_DMABUF,
            dmabuf_fd: dmabuf.as_raw_fd(),
        };
        // SAFETY: an open context, and the public header's layout.
        let raw = unsafe { (opened.dv.umem_reg_ex)(opened.context.as_ptr(), &raw mut asked) };
        Self::made(opened, raw, "mlx5dv_devx_umem_reg_ex")
    }

    fn made(
        opened: &Arc<Opened>,
        raw: *mut RawUmem,
        step: &'static str,
    ) -> Result<Self, Mlx5Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Mlx5Error::call(step))?;
        Ok(Self { raw, opened: Arc::clone(opened) })
    }

    /// Its number in commands.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the library's own, until it is deregistered.
        unsafe { self.raw.as_ref() }.umem_id
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: registered in `made`, and what lies in it is gone.
        unsafe { (self.opened.dv.umem_dereg)(self.raw.as_ptr()) };
    }
}

/// An object of the device's.
pub(super) struct Object {
    raw: NonNull<c_void>,
    opened: Arc<Opened>,
    /// What commands call it.
    pub(super) number: u32,
}

// SAFETY: the library's calls may be made from any thread.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// What a command makes.
    pub(super) fn create(
        opened: &Arc<Opened>,
        opcode: Opcode,
        command: &[u8],
    ) -> Result<Self, Mlx5Error> {
        let mut answer = [0; SHORT];
        // SAFETY: an open context; both buffers are as long as is said.
        let raw = unsafe {
            (opened.dv.obj_create)(
                opened.context.as_ptr(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            told(opcode.name(), -1, &answer)?;
            return Err(Mlx5Error::call(opcode.name()));
        };
        let number = wire::devx::NUMBER.get32(&answer);
        Ok(Self { raw, opened: Arc::clone(opened), number })
    }

    /// Changes it.
    pub(super) fn modify(&self, opcode: Opcode, command: &[u8]) -> Result<(), Mlx5Error> {
        let mut answer = [0; SHORT];
        // SAFETY: an object that lives; both buffers are as long as is said.
        let returned = unsafe {
            (self.opened.dv.obj_modify)(
                self.raw.as_ptr(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        told(opcode.name(), returned, &answer)
    }

    /// Asks about it.
    pub(super) fn query(
        &self,
        opcode: Opcode,
        command: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, Mlx5Error> {
        let mut answer = vec![0; room];
        // SAFETY: as above.
        let returned = unsafe {
            (self.opened.dv.obj_query)(
                self.raw.as_ptr(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                room,
            )
        };
        told(opcode.name(), returned, &answer)?;
        Ok(answer)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: made in `create`, and what uses it is gone.
        unsafe { (self.opened.dv.obj_destroy)(self.raw.as_ptr()) };
    }
}
