//! Libraries that are loaded when they are first needed, so that a machine without them runs everything else.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::ffi;

/// Why a library can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It isn't there.
    #[error(
        "{name} can't be loaded ({why}): install rdma-core (Debian: libibverbs1 and ibverbs-providers)"
    )]
    Missing {
        /// Which library.
        name: String,
        /// The loader's words.
        why: String,
    },
    /// It is there, and older than what is needed.
    #[error("{name} has no {symbol}: it is too old, rdma-core 44 has it")]
    Symbol {
        /// Which library.
        name: String,
        /// What it lacks.
        symbol: String,
    },
}

/// A loaded library. It stays loaded: providers of libibverbs have threads and exit handlers of their own.
#[derive(Debug)]
pub struct Library {
    name: String,
    handle: *mut c_void,
}

// SAFETY: the handle is only given back to the loader, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads it by its file's name, such as `libibverbs.so.1`.
    ///
    /// # Errors
    /// [`LoadError::Missing`].
    pub fn open(name: &str) -> Result<Self, LoadError> {
        let missing = |why: &str| LoadError::Missing { name: name.to_owned(), why: why.to_owned() };
        let file = CString::new(name).map_err(|_| missing("a zero byte in its name"))?;
        // SAFETY: a zero-terminated name. What the library's constructors do is the system's libraries' affair.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: null, or a zero-terminated text of the loader that is valid until this thread calls it again.
            let why = unsafe {
                let said = libc::dlerror();
                if said.is_null() {
                    "no reason given".to_owned()
                } else {
                    CStr::from_ptr(said).to_string_lossy().into_owned()
                }
            };
            return Err(missing(&why));
        }
        Ok(Self { name: name.to_owned(), handle })
    }

    /// The address of a symbol of this version.
    ///
    /// # Errors
    /// [`LoadError::Symbol`].
    pub fn symbol(&self, symbol: &CStr, version: &CStr) -> Result<*mut c_void, LoadError> {
        // SAFETY: an open library, zero-terminated names.
        let found = unsafe { libc::dlvsym(self.handle, symbol.as_ptr(), version.as_ptr()) };
        if found.is_null() {
            return Err(LoadError::Symbol {
                name: self.name.clone(),
                symbol: format!("{}@{}", symbol.to_string_lossy(), version.to_string_lossy()),
            });
        }
        Ok(found)
    }
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $field:ident = $name:literal @ $version:literal:
        fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// libibverbs' functions that are called by name.
        #[allow(missing_debug_implementations, reason = "function pointers")]
        pub struct Verbs {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// Since rdma-core 34.
            pub reg_dmabuf_mr: Option<
                unsafe extern "C" fn(*mut ffi::Pd, u64, usize, u64, c_int, c_int) -> *mut ffi::Mr,
            >,
            /// Since rdma-core 32.
            pub query_gid_ex: Option<
                unsafe extern "C" fn(*mut ffi::Context, u32, u32, *mut ffi::GidEntry, u32, usize) -> c_int,
            >,
        }

        impl Verbs {
            fn load() -> Result<Self, LoadError> {
                let library = Library::open("libibverbs.so.1")?;
                // SAFETY, of all: these are the library's functions of those names and versions, and their types are
                // those that its header declares.
                Ok(Self {
                    $($field: {
                        let found = library.symbol($name, $version)?;
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(found)
                        }
                    },)*
                    reg_dmabuf_mr: library.symbol(c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12").ok().map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, _>(found) }
                    }),
                    query_gid_ex: library.symbol(c"_ibv_query_gid_ex", c"IBVERBS_1.11").ok().map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, _>(found) }
                    }),
                })
            }
        }
    };
}

verbs! {
    /// `ibv_get_device_list`
    get_device_list = c"ibv_get_device_list" @ c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ffi::Device;
    /// `ibv_free_device_list`
    free_device_list = c"ibv_free_device_list" @ c"IBVERBS_1.1": fn(*mut *mut ffi::Device);
    /// `ibv_get_device_name`
    get_device_name = c"ibv_get_device_name" @ c"IBVERBS_1.1": fn(*mut ffi::Device) -> *const c_char;
    /// `ibv_open_device`
    open_device = c"ibv_open_device" @ c"IBVERBS_1.1": fn(*mut ffi::Device) -> *mut ffi::Context;
    /// `ibv_close_device`
    close_device = c"ibv_close_device" @ c"IBVERBS_1.1": fn(*mut ffi::Context) -> c_int;
    /// `ibv_query_device`
    query_device = c"ibv_query_device" @ c"IBVERBS_1.1": fn(*mut ffi::Context, *mut ffi::DeviceAttr) -> c_int;
    /// `ibv_query_port`: fills all but `port_cap_flags2`
    query_port = c"ibv_query_port" @ c"IBVERBS_1.1": fn(*mut ffi::Context, u8, *mut ffi::PortAttr) -> c_int;
    /// `ibv_query_gid`
    query_gid = c"ibv_query_gid" @ c"IBVERBS_1.1": fn(*mut ffi::Context, u8, c_int, *mut [u8; 16]) -> c_int;
    /// `ibv_get_async_event`
    get_async_event = c"ibv_get_async_event" @ c"IBVERBS_1.1": fn(*mut ffi::Context, *mut ffi::AsyncEvent) -> c_int;
    /// `ibv_ack_async_event`
    ack_async_event = c"ibv_ack_async_event" @ c"IBVERBS_1.1": fn(*mut ffi::AsyncEvent);
    /// `ibv_event_type_str`
    event_type_str = c"ibv_event_type_str" @ c"IBVERBS_1.1": fn(c_int) -> *const c_char;
    /// `ibv_alloc_pd`
    alloc_pd = c"ibv_alloc_pd" @ c"IBVERBS_1.1": fn(*mut ffi::Context) -> *mut ffi::Pd;
    /// `ibv_dealloc_pd`
    dealloc_pd = c"ibv_dealloc_pd" @ c"IBVERBS_1.1": fn(*mut ffi::Pd) -> c_int;
    /// `ibv_reg_mr_iova2`: with optional access flags
    reg_mr = c"ibv_reg_mr_iova2" @ c"IBVERBS_1.8": fn(*mut ffi::Pd, *mut c_void, usize, u64, c_uint) -> *mut ffi::Mr;
    /// `ibv_dereg_mr`
    dereg_mr = c"ibv_dereg_mr" @ c"IBVERBS_1.1": fn(*mut ffi::Mr) -> c_int;
    /// `ibv_create_cq`
    create_cq = c"ibv_create_cq" @ c"IBVERBS_1.1":
        fn(*mut ffi::Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ffi::Cq;
    /// `ibv_destroy_cq`
    destroy_cq = c"ibv_destroy_cq" @ c"IBVERBS_1.1": fn(*mut ffi::Cq) -> c_int;
    /// `ibv_create_qp`
    create_qp = c"ibv_create_qp" @ c"IBVERBS_1.1": fn(*mut ffi::Pd, *mut ffi::QpInitAttr) -> *mut ffi::Qp;
    /// `ibv_modify_qp`
    modify_qp = c"ibv_modify_qp" @ c"IBVERBS_1.1": fn(*mut ffi::Qp, *mut ffi::QpAttr, c_int) -> c_int;
    /// `ibv_query_qp`
    query_qp = c"ibv_query_qp" @ c"IBVERBS_1.1":
        fn(*mut ffi::Qp, *mut ffi::QpAttr, c_int, *mut ffi::QpInitAttr) -> c_int;
    /// `ibv_destroy_qp`
    destroy_qp = c"ibv_destroy_qp" @ c"IBVERBS_1.1": fn(*mut ffi::Qp) -> c_int;
    /// `ibv_create_ah`
    create_ah = c"ibv_create_ah" @ c"IBVERBS_1.1": fn(*mut ffi::Pd, *mut ffi::AhAttr) -> *mut ffi::Ah;
    /// `ibv_destroy_ah`
    destroy_ah = c"ibv_destroy_ah" @ c"IBVERBS_1.1": fn(*mut ffi::Ah) -> c_int;
    /// `ibv_wc_status_str`
    wc_status_str = c"ibv_wc_status_str" @ c"IBVERBS_1.1": fn(c_uint) -> *const c_char;
}

/// libibverbs, loaded once a process.
///
/// # Errors
/// [`LoadError`].
pub fn verbs() -> Result<&'static Verbs, LoadError> {
    static LOADED: OnceLock<Result<Verbs, LoadError>> = OnceLock::new();
    LOADED.get_or_init(Verbs::load).as_ref().map_err(Clone::clone)
}

/// A static text of the library; empty where it has none.
pub(crate) fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts are zero-terminated, and static or alive as their object, which the callers hold.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
