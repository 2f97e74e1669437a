//! PMIx, loaded when a launcher offers it: who this process is, and a place to leave rank 0's card.
//!
//! The calls and structures are those of the PMIx standard, version 3 and later, whose layouts no release has changed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libloading::Library;

/// PMIx can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmixError {
    /// It isn't installed.
    #[error(
        "the launcher offers PMIx, but {library} can't be loaded: {source}. Install it (Debian: libpmix2), or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
    )]
    Missing {
        /// The library.
        library: &'static str,
        /// What the loader said.
        source: libloading::Error,
    },
    /// It refused.
    #[error("{call}: {said} (PMIx status {status})")]
    Call {
        /// Which call.
        call: &'static str,
        /// Its answer.
        status: i32,
        /// In PMIx's words.
        said: String,
    },
    /// It took too long.
    #[error("{call} took longer than {} s", after.as_secs_f64())]
    Late {
        /// Which call.
        call: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// An answer of another type.
    #[error("PMIx says {key} is of type {found}")]
    Type {
        /// What was asked for.
        key: &'static str,
        /// `pmix_data_type_t`.
        found: u16,
    },
}

const LIBRARY: &str = "libpmix.so.2";

type Status = c_int;
const SUCCESS: Status = 0;
/// `PMIX_RANK_WILDCARD`: of the job as a whole.
const WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_STRING`, `PMIX_UINT32`.
const STRING: u16 = 3;
const UINT32: u16 = 14;
/// `PMIX_GLOBAL`: to ranks of this node and of others.
const GLOBAL: u8 = 3;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    namespace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`: a type, and a union of 24 bytes at most.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    string: *const c_char,
    uint32: u32,
    _all: [u64; 3],
}

/// The calls that are used.
#[derive(Clone, Copy)]
struct Calls {
    finalize: unsafe extern "C" fn(*const c_void, usize) -> Status,
    put: unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status,
    commit: unsafe extern "C" fn() -> Status,
    get: unsafe extern "C" fn(
        *const Proc,
        *const c_char,
        *const c_void,
        usize,
        *mut *mut Value,
    ) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
}

/// This process as a client of its launcher's PMIx server.
pub struct Pmix {
    calls: Calls,
    me: Proc,
    size: u32,
    // The library has threads of its own: it is never unloaded.
    _library: std::mem::ManuallyDrop<Library>,
}

impl Pmix {
    /// Connects to the server.
    ///
    /// # Errors
    /// No library, or a server that doesn't answer.
    pub fn connect() -> Result<Self, PmixError> {
        type Init = unsafe extern "C" fn(*mut Proc, *const c_void, usize) -> Status;
        let missing = |source| PmixError::Missing { library: LIBRARY, source };
        // SAFETY: loading runs the library's constructors, which ask nothing of the caller.
        let library = unsafe { Library::new(LIBRARY) }.map_err(missing)?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the types are those that the PMIx standard gives the call.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(missing)?
            };
        }
        let init: Init = symbol!("PMIx_Init");
        let calls = Calls {
            finalize: symbol!("PMIx_Finalize"),
            put: symbol!("PMIx_Put"),
            commit: symbol!("PMIx_Commit"),
            get: symbol!("PMIx_Get"),
            error: symbol!("PMIx_Error_string"),
        };
        let mut me = Proc { namespace: [0; 256], rank: 0 };
        // SAFETY: a place for the answer, and no directives.
        let status = unsafe { init(&raw mut me, std::ptr::null(), 0) };
        calls.check("PMIx_Init", status)?;
        let library = std::mem::ManuallyDrop::new(library);
        let mut pmix = Self { calls, me, size: 0, _library: library };
        let job = Proc { rank: WILDCARD, ..me };
        pmix.size = match pmix.calls.get(&job, c"pmix.job.size", "PMIx_Get of the job's size")? {
            Found::Number(size) => size,
            Found::Text(_) => return Err(PmixError::Type { key: "the job's size", found: STRING }),
        };
        Ok(pmix)
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// Ranks of the job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Leaves a text for the other ranks.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn publish(&self, text: &str) -> Result<(), PmixError> {
        let text = CString::new(text.replace('\0', "")).unwrap_or_default();
        let mut value = Value { kind: STRING, data: Data { string: text.as_ptr() } };
        // SAFETY: key and text end with a zero byte, and are copied.
        let status = unsafe { (self.calls.put)(GLOBAL, KEY.as_ptr(), &raw mut value) };
        self.calls.check("PMIx_Put", status)?;
        // SAFETY: takes nothing.
        let status = unsafe { (self.calls.commit)() };
        self.calls.check("PMIx_Commit", status)
    }

    /// The text that rank 0 has left, once it has.
    ///
    /// # Errors
    /// It didn't within `patience`, or the server refuses.
    pub fn read(&self, patience: Duration) -> Result<String, PmixError> {
        let call = "PMIx_Get of rank 0's card";
        let (calls, of) = (self.calls, Proc { rank: 0, ..self.me });
        let (tell, told) = mpsc::channel();
        let until = Instant::now() + patience;
        // Some servers wait until the card is there, others say that it isn't. The call has no deadline that every server
        // heeds; one that never returns keeps its thread.
        std::thread::spawn(move || {
            loop {
                let found = calls.get(&of, KEY, call);
                if found.is_ok() || Instant::now() >= until {
                    let _ = tell.send(found);
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        match told.recv_timeout(patience + Duration::from_secs(1)) {
            Ok(Ok(Found::Text(text))) => Ok(text),
            Ok(Ok(Found::Number(_))) => {
                Err(PmixError::Type { key: "rank 0's card", found: UINT32 })
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(PmixError::Late { call, after: patience }),
        }
    }
}

impl std::fmt::Debug for Pmix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pmix({} of {})", self.me.rank, self.size)
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        // SAFETY: initialized once, and finalized once. A server that is gone has nothing to be told.
        let _ = unsafe { (self.calls.finalize)(std::ptr::null(), 0) };
    }
}

const KEY: &CStr = c"gicbench.card";

enum Found {
    Number(u32),
    Text(String),
}

impl Calls {
    fn check(&self, call: &'static str, status: Status) -> Result<(), PmixError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: a text that the library keeps, or null.
        let said = unsafe {
            let said = (self.error)(status);
            if said.is_null() { c"unknown" } else { CStr::from_ptr(said) }
        };
        Err(PmixError::Call { call, status, said: said.to_string_lossy().into_owned() })
    }

    fn get(&self, of: &Proc, key: &CStr, call: &'static str) -> Result<Found, PmixError> {
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: a process, a key that ends with a zero byte, no directives, and a place for the answer.
        let status = unsafe { (self.get)(of, key.as_ptr(), std::ptr::null(), 0, &raw mut value) };
        self.check(call, status)?;
        // SAFETY: a successful call leaves a value, which is not freed: a few bytes, once.
        match unsafe { value.as_ref() } {
            Some(value) if value.kind == UINT32 => {
                // SAFETY: the type says which member is set.
                Ok(Found::Number(unsafe { value.data.uint32 }))
            }
            Some(value) if value.kind == STRING => {
                // SAFETY: as above; a text that ends with a zero byte.
                let text = unsafe { CStr::from_ptr(value.data.string) };
                Ok(Found::Text(text.to_string_lossy().into_owned()))
            }
            other => Err(PmixError::Type { key: call, found: other.map_or(0, |value| value.kind) }),
        }
    }
}
