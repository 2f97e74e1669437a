//! A side's device-side state: built by the adapter's C++, copied to where its kernels follow it.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::cuda::Place;
use device::shared::Shared;
use libloading::{Library, Symbol};

use crate::abi::{ABI, Built, Info, Queue, Request, Rig, SYMBOLS};
use crate::error::PeerError;

type InfoFn = unsafe extern "C" fn() -> *const Info;
type SizesFn = unsafe extern "C" fn(u32, u32, u32, *mut u64, *mut u64);
type QueuesFn = unsafe extern "C" fn(u32, u32, *mut u32) -> u32;
type BuildFn = unsafe extern "C" fn(*const Rig, *mut Built, *mut c_char, usize) -> c_int;
type TakeFn = unsafe extern "C" fn(*const Rig, *mut Request) -> c_int;
type DoneFn = unsafe extern "C" fn(*const Rig, u64);
type ConsumerFn = unsafe extern "C" fn() -> *const c_char;

/// The shared library of an adapter's `state.cpp`.
pub struct StateLibrary {
    title: &'static str,
    version: String,
    layouts: Vec<(String, u64)>,
    consumer: Option<String>,
    sizes: SizesFn,
    queues: Option<QueuesFn>,
    build: BuildFn,
    work: Option<(TakeFn, DoneFn)>,
    // What the pointers lead into.
    _library: Library,
}

impl StateLibrary {
    /// Loads it.
    ///
    /// # Errors
    /// It can't be loaded, or was compiled for another version of gicbench.
    pub fn load(title: &'static str, path: &Path) -> Result<Arc<Self>, PeerError> {
        let failed = |why: String| PeerError::Load { title, why };
        // SAFETY: compiled by this room from an adapter; it has no initialisers but the library's own constants'.
        let library = unsafe { Library::new(path) }.map_err(|error| failed(error.to_string()))?;
        // SAFETY: the types are those of `gic_peer.h`, which the library was compiled with; the pointers are kept
        // no longer than the library.
        unsafe {
            let info: Symbol<'_, InfoFn> =
                library.get(b"gic_peer_info").map_err(|error| failed(error.to_string()))?;
            let info =
                info().as_ref().ok_or_else(|| failed("it says nothing of itself".to_owned()))?;
            if info.abi != ABI {
                return Err(failed(format!(
                    "its ABI is {}, and this program's is {ABI}",
                    info.abi
                )));
            }
            let version = text(info.version);
            let layouts = (0..info.layouts as usize)
                .map(|index| &*info.layout.add(index))
                .map(|layout| (text(layout.name), layout.size))
                .collect();
            let sizes: Symbol<'_, SizesFn> =
                library.get(b"gic_peer_sizes").map_err(|error| failed(error.to_string()))?;
            let build: Symbol<'_, BuildFn> =
                library.get(b"gic_peer_build").map_err(|error| failed(error.to_string()))?;
            let (sizes, build) = (*sizes, *build);
            let take = library.get::<TakeFn>(b"gic_peer_take").map(|take| *take);
            let done = library.get::<DoneFn>(b"gic_peer_done").map(|done| *done);
            let consumer = library.get::<ConsumerFn>(b"gic_peer_consumer").map(|who| text(who()));
            Ok(Arc::new(Self {
                title,
                version,
                layouts,
                consumer: consumer.ok(),
                sizes,
                queues: library.get::<QueuesFn>(b"gic_peer_queues").map(|queues| *queues).ok(),
                build,
                work: take.ok().zip(done.ok()),
                _library: library,
            }))
        }
    }

    /// The library's version, as its headers say when they are compiled.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Names and bytes of the structures that are filled in.
    #[must_use]
    pub fn layouts(&self) -> &[(String, u64)] {
        &self.layouts
    }

    /// The queues that a variant needs for `qps` a peer: for each, whether it leads to the side itself.
    #[must_use]
    pub fn queues(&self, variant: u32, qps: u32) -> Vec<bool> {
        let Some(queues) = self.queues else { return vec![false; qps as usize] };
        // SAFETY: it gives a number.
        let count = unsafe { queues(variant, qps, std::ptr::null_mut()) };
        if count > MOST_QUEUES {
            return Vec::new();
        }
        let mut to_self = vec![0u32; count as usize];
        // SAFETY: as many words as it has just said.
        unsafe { queues(variant, qps, to_self.as_mut_ptr()) };
        to_self.into_iter().map(|own| own != 0).collect()
    }

    /// Who the CPU side is, where there is one.
    #[must_use]
    pub fn consumer(&self) -> Option<&str> {
        self.consumer.as_deref()
    }
}

/// # Safety
/// Null, or a string with an end that lives on.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// More than any variant asks for.
const MOST_QUEUES: u32 = 1 << 16;

/// What a side is built from; `include/gic_peer.h` says what each is.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Side {
    pub variant: u32,
    pub me: u32,
    pub queues: Vec<Queue>,
    pub local: u64,
    pub bytes: u64,
    pub remote: u64,
    pub lkey: u32,
    pub rkey: u32,
    pub own_rkey: u32,
    pub producers: u32,
    pub address_vector: [u8; 48],
}

/// A side's state. It stays where it is until this is dropped: after the last launch that uses it.
pub struct State {
    library: Arc<StateLibrary>,
    rig: Box<Rig>,
    // What the rig's pointers lead into.
    _queues: Box<[Queue]>,
    image: Shared<u64>,
    shadow: Vec<u64>,
    _host: Shared<u64>,
    state: u64,
    symbols: Vec<(String, Vec<u8>)>,
    consumed: AtomicBool,
}

// SAFETY: what isn't Send by itself are addresses: of memory that this value keeps, and that only the library's
// functions follow, each by one thread (`Consumer` is not cloned).
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl State {
    /// Builds a side: structures for kernels alone in `device`, those that both sides follow in `host`.
    ///
    /// # Errors
    /// The adapter refuses what it was given, or there is no memory.
    pub fn build(
        library: &Arc<StateLibrary>,
        side: &Side,
        device: &Place,
        host: &Place,
    ) -> Result<Arc<Self>, PeerError> {
        let title = library.title;
        let refused = |why: String| PeerError::Refused { title, why };
        let qps =
            u32::try_from(side.queues.len()).map_err(|_| refused("too many queues".to_owned()))?;
        let (mut device_bytes, mut host_bytes) = (0, 0);
        // SAFETY: two numbers are written.
        unsafe {
            (library.sizes)(
                side.variant,
                qps,
                side.producers,
                &raw mut device_bytes,
                &raw mut host_bytes,
            );
        }
        const MOST: u64 = 1 << 30;
        if device_bytes > MOST || host_bytes > MOST {
            return Err(refused(format!(
                "{device_bytes} and {host_bytes} bytes of state are asked for"
            )));
        }
        let zeros = |bytes: u64| vec![0u64; (bytes as usize).div_ceil(8).max(1)];
        let memory = |place: &Place, bytes| {
            Shared::at(place, &zeros(bytes)).map_err(|source| PeerError::Memory { title, source })
        };
        let (image, host) = (memory(device, device_bytes)?, memory(host, host_bytes)?);
        let mut shadow = zeros(device_bytes);
        let queues: Box<[Queue]> = side.queues.clone().into();
        let rig = Box::new(Rig {
            abi: ABI,
            variant: side.variant,
            me: side.me,
            qps,
            queue: queues.as_ptr(),
            local: side.local,
            bytes: side.bytes,
            remote: side.remote,
            lkey: side.lkey,
            rkey: side.rkey,
            own_rkey: side.own_rkey,
            producers: side.producers,
            av: side.address_vector,
            device: shadow.as_mut_ptr().cast(),
            device_at: image.as_ptr() as u64,
            host: host.as_ptr().cast(),
        });
        let none = crate::abi::Symbol { name: std::ptr::null(), offset: 0, bytes: 0 };
        let mut built = Built { state: 0, symbols: 0, symbol: [none; SYMBOLS] };
        let mut why: [c_char; 256] = [0; 256];
        // SAFETY: the rig says where its memories are and how long; the sentence has room and, by the last byte, an
        // end.
        let status = unsafe {
            (library.build)(&raw const *rig, &raw mut built, why.as_mut_ptr(), why.len() - 1)
        };
        if status != 0 {
            // SAFETY: written by the library, or zeros.
            return Err(refused(unsafe { text(why.as_ptr()) }));
        }
        image.write(&shadow).map_err(|source| PeerError::Memory { title, source })?;
        let mut symbols = Vec::new();
        for symbol in built.symbol.iter().take(built.symbols as usize) {
            // SAFETY: shadow memory as bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(shadow.as_ptr().cast::<u8>(), shadow.len() * 8)
            };
            let range = symbol.offset as usize..symbol.offset.saturating_add(symbol.bytes) as usize;
            let value = bytes.get(range).ok_or_else(|| {
                refused(
                    "a variable's value lies outside of the memory that was asked for".to_owned(),
                )
            })?;
            // SAFETY: a constant of the library.
            symbols.push((unsafe { text(symbol.name) }, value.to_vec()));
        }
        Ok(Arc::new(Self {
            library: Arc::clone(library),
            rig,
            _queues: queues,
            image,
            shadow,
            _host: host,
            state: built.state,
            symbols,
            consumed: AtomicBool::new(false),
        }))
    }

    /// What kernels are handed.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.state
    }

    /// Variables of the module, and their values.
    #[must_use]
    pub fn symbols(&self) -> &[(String, Vec<u8>)] {
        &self.symbols
    }

    /// The image as it was built, for tests.
    #[must_use]
    pub fn built(&self) -> &[u64] {
        &self.shadow
    }

    /// Where kernels see the image.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.image.as_ptr() as u64
    }

    /// The CPU side, for the one thread that is it; none where the adapter has no such side, or it was taken.
    #[must_use]
    pub fn consume(self: &Arc<Self>) -> Option<Consumer> {
        let work = self.library.work?;
        let first = !self.consumed.swap(true, Ordering::AcqRel);
        first.then(|| Consumer { state: Arc::clone(self), take: work.0, done: work.1 })
    }
}

/// The CPU side of a state.
pub struct Consumer {
    state: Arc<State>,
    take: TakeFn,
    done: DoneFn,
}

impl Consumer {
    /// The next request, if there is one. Never blocks.
    pub fn take(&mut self) -> Option<Request> {
        let mut request = Request::default();
        // SAFETY: the rig that the state was built from, whose memory the state keeps; `self` is the only consumer.
        let taken = unsafe { (self.take)(&raw const *self.state.rig, &raw mut request) };
        (taken != 0).then_some(request)
    }

    /// Requests up to this ticket are completed.
    pub fn done(&mut self, ticket: u64) {
        // SAFETY: as above.
        unsafe { (self.done)(&raw const *self.state.rig, ticket) }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.state.consumed.store(false, Ordering::Release);
    }
}
