//! Compiles device code for GPUs with NVRTC, which needs no GPU.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nvrtc::{result, sys};

use crate::source::HEADERS;

/// Directory in which NVRTC's libraries are looked for first.
pub const LIBRARY_DIR_VAR: &str = "GICBENCH_NVRTC_DIR";

/// Why there is no compiled kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// No NVRTC library was found.
    #[error(
        "NVRTC was not found (libnvrtc.so.13 of CUDA 13). Install a CUDA toolkit, or \
         `pip install nvidia-cuda-nvrtc==13.0.88` and set {LIBRARY_DIR_VAR} to the folder that holds \
         libnvrtc.so.13; looked in: {}", .looked.join(", ")
    )]
    NotFound {
        /// Places that were tried.
        looked: Vec<String>,
    },
    /// The library is of another CUDA.
    #[error(
        "the NVRTC that the loader finds is of CUDA {}.{}, and 13 is needed: is another CUDA first in \
         LD_LIBRARY_PATH?", .found.0, .found.1
    )]
    OtherVersion {
        /// What was found.
        found: (i32, i32),
    },
    /// The compiler refused the source.
    #[error("NVRTC can't compile for {arch}:\n{log}")]
    Compile {
        /// Architecture asked for.
        arch: String,
        /// The compiler's own words.
        log: String,
    },
    /// A call of the library failed.
    #[error("NVRTC failed in {call}: {code}")]
    Call {
        /// Which call.
        call: &'static str,
        /// Its answer.
        code: String,
    },
}

/// Architectures for which a kernel can be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch(pub u32);

impl Arch {
    /// Hopper.
    pub const SM_90: Self = Self(90);
    /// Blackwell.
    pub const SM_100: Self = Self(100);
    /// Blackwell Ultra.
    pub const SM_103: Self = Self(103);

    /// As the compiler spells it. A real architecture, not a virtual one: only then is inline PTX assembled.
    #[must_use]
    pub fn name(self) -> String {
        format!("sm_{}", self.0)
    }
}

/// Loads the library; once a process.
///
/// # Errors
/// [`NvrtcError::NotFound`] with the places looked in.
pub fn load() -> Result<(), NvrtcError> {
    static LOADED: OnceLock<Result<Vec<libloading::Library>, Vec<String>>> = OnceLock::new();
    match LOADED.get_or_init(find) {
        Ok(_) => match raw_version()? {
            (13, _) => Ok(()),
            found => Err(NvrtcError::OtherVersion { found }),
        },
        Err(looked) => Err(NvrtcError::NotFound { looked: looked.clone() }),
    }
}

fn find() -> Result<Vec<libloading::Library>, Vec<String>> {
    let mut looked = Vec::new();
    for dir in candidate_dirs() {
        looked.push(dir.display().to_string());
        if let Some(libraries) = open_in(&dir) {
            return Ok(libraries);
        }
    }
    looked.push("the system's library path".to_owned());
    // SAFETY: asks whether the dynamic loader finds the library; loading it runs its initialisers only.
    if unsafe { sys::is_culib_present() } { Ok(Vec::new()) } else { Err(looked) }
}

fn candidate_dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        std::env::var_os(LIBRARY_DIR_VAR).map(PathBuf::from).into_iter().collect();
    for root in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(root) {
            dirs.push(Path::new(&root).join("lib64"));
        }
    }
    dirs.push(PathBuf::from("/usr/local/cuda/lib64"));
    dirs
}

// The library opens its builtins by bare name: with both open by absolute path, the loader finds them by soname.
fn open_in(dir: &Path) -> Option<Vec<libloading::Library>> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let builtins = name.starts_with("libnvrtc-builtins.so.13");
            (builtins || name == "libnvrtc.so.13") && !name.contains("alt")
        })
        .collect();
    names.sort();
    if !names.iter().any(|n| n.ends_with("libnvrtc.so.13")) {
        return None;
    }
    names
        .iter()
        // SAFETY: NVIDIA's compiler library; its initialisers have no requirements.
        .map(|name| unsafe { libloading::Library::new(name) }.ok())
        .collect()
}

/// The compiler's version, such as (13, 0).
///
/// # Errors
/// No library.
pub fn version() -> Result<(i32, i32), NvrtcError> {
    load()?;
    raw_version()
}

fn raw_version() -> Result<(i32, i32), NvrtcError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two out parameters.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(|e| NvrtcError::Call { call: "nvrtcVersion", code: format!("{e:?}") })?;
    Ok((major, minor))
}

/// Compiles a translation unit of [`crate::source`] to a CUBIN for `arch`.
///
/// # Errors
/// No library, or a source that doesn't compile, with the compiler's log.
pub fn compile(source: &str, arch: Arch) -> Result<Vec<u8>, NvrtcError> {
    load()?;
    let call = |call: &'static str| {
        move |e: result::NvrtcError| NvrtcError::Call { call, code: format!("{e:?}") }
    };
    let source = c_string(source);
    let headers: Vec<(CString, CString)> =
        HEADERS.iter().map(|(name, text)| (c_string(name), c_string(text))).collect();
    let texts: Vec<_> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
    let mut program: sys::nvrtcProgram = std::ptr::null_mut();
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call, and the counts are right.
    unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            c"gic_kernel.cu".as_ptr(),
            names.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    }
    .result()
    .map_err(call("nvrtcCreateProgram"))?;
    let program = Program(program);

    let options = [
        format!("--gpu-architecture={}", arch.name()),
        "--std=c++17".to_owned(),
        "-lineinfo".to_owned(),
    ];
    // SAFETY: `program` is live.
    if let Err(error) = unsafe { result::compile_program(program.0, &options) } {
        // SAFETY: `program` is live; the log belongs to it.
        let log = unsafe { result::get_program_log(program.0) }
            .map(|raw| {
                let bytes: Vec<u8> = raw.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            })
            .unwrap_or_else(|_| format!("{error:?}"));
        return Err(NvrtcError::Compile { arch: arch.name(), log });
    }
    let mut size = 0usize;
    // SAFETY: `program` was compiled for a real architecture, so it holds a CUBIN.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }
        .result()
        .map_err(call("nvrtcGetCUBINSize"))?;
    let mut cubin = vec![0u8; size];
    // SAFETY: the buffer has the size that the library asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) }
        .result()
        .map_err(call("nvrtcGetCUBIN"))?;
    Ok(cubin)
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram and destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn c_string(text: &str) -> CString {
    // A NUL in a source would end it early; the headers have none.
    let bytes: Vec<u8> = text.bytes().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}
