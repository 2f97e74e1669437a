//! Compiles an adapter's two pieces against the headers that were found, and keeps them on disk by what they were
//! compiled from.

use std::env;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use device::nvrtc::Arch;
use sha2::{Digest, Sha256};

use crate::adapter::Adapter;
use crate::error::PeerError;
use crate::find::{Found, Paths, find, site_packages};

/// Names the nvcc to use.
const NVCC_VAR: &str = "GICBENCH_NVCC";
/// Names the C++ compiler, as for other builds.
const CXX_VAR: &str = "CXX";
/// For kernels: what the libraries' own builds, and PyTorch's of extensions, give nvcc.
const KERNEL_FLAGS: [&str; 2] = ["-O3", "--expt-relaxed-constexpr"];
/// What one compilation may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The files that every adapter may include.
const COMMON: &[(&str, &str)] = &[
    ("gic_peer.h", include_str!("../include/gic_peer.h")),
    ("gic_peer.cuh", include_str!("../include/gic_peer.cuh")),
    ("infiniband/mlx5dv.h", include_str!("../include/infiniband/mlx5dv.h")),
    ("infiniband/verbs.h", include_str!("../include/infiniband/verbs.h")),
];

/// The compilers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    nvcc: PathBuf,
    /// Folders of CUDA's headers.
    includes: Vec<PathBuf>,
    /// The C++ compiler, with arguments that come first.
    cxx: Vec<String>,
    /// What `nvcc --version` says last.
    version: String,
    /// What the C++ compiler says first.
    cxx_version: String,
}

impl Toolchain {
    /// The nvcc that `GICBENCH_NVCC` names, that of `GICBENCH_PEERS` or the active Python environment, one in PATH, or
    /// CUDA's own; the C++ compiler of `CXX`, or `c++`.
    ///
    /// # Errors
    /// There is none, or it can't be run.
    pub fn find() -> Result<Self, PeerError> {
        let named = env::var_os(NVCC_VAR).filter(|path| !path.is_empty()).map(PathBuf::from);
        let packaged = || site_packages().into_iter().map(|site| site.join("nvidia/cu13/bin/nvcc"));
        let path = env::var_os("PATH").unwrap_or_default();
        let in_path = || env::split_paths(&path).map(|bin| bin.join("nvcc")).collect::<Vec<_>>();
        let nvcc = match named {
            Some(path) => path,
            None => packaged()
                .chain(in_path())
                .chain([PathBuf::from("/usr/local/cuda/bin/nvcc")])
                .find(|nvcc| nvcc.is_file())
                .ok_or(PeerError::NoNvcc)?,
        };
        let name = format!("{} ({NVCC_VAR} names another nvcc)", nvcc.display());
        let said = run(Command::new(&nvcc).arg("--version"), &name, PATIENCE)?;
        let version =
            said.text.lines().rev().find(|line| !line.is_empty()).unwrap_or("").to_owned();
        if !said.text.contains("Cuda compilation tools") {
            let reason = "what it says of its version isn't nvcc's".to_owned();
            return Err(PeerError::Compiler { program: name, reason });
        }
        let root = nvcc.canonicalize().unwrap_or(nvcc.clone());
        let root = root.parent().and_then(Path::parent).unwrap_or(Path::new("/usr/local/cuda"));
        let includes = ["include", "include/cccl"].map(|part| root.join(part));
        // The C++ compiler knows the system's own, and in their order.
        let is_own = |path: &PathBuf| path.is_dir() && !path.starts_with("/usr/include");
        let includes = includes.into_iter().filter(is_own).collect();
        let cxx = env::var(CXX_VAR).ok().filter(|cxx| !cxx.trim().is_empty());
        let cxx = cxx.unwrap_or("c++".to_owned());
        let cxx: Vec<String> = cxx.split_whitespace().map(str::to_owned).collect();
        let name = format!("{} ({CXX_VAR} names another C++ compiler)", cxx.join(" "));
        let said = run(cxx_command(&cxx).arg("--version"), &name, PATIENCE)?;
        let cxx_version = said.text.lines().next().unwrap_or("").to_owned();
        Ok(Self { nvcc, includes, cxx, version, cxx_version })
    }

    /// Which nvcc, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} ({})", self.nvcc.display(), self.version)
    }
}

fn cxx_command(cxx: &[String]) -> Command {
    let (program, arguments) = cxx.split_first().map_or(("c++", &[][..]), |(p, rest)| (p, rest));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// An adapter that is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// What it was compiled against.
    pub found: Found,
    /// The shared library of `state.cpp`.
    pub state: PathBuf,
    /// The CUBIN of `kernel.cu`; none where it wasn't asked for.
    pub cubin: Option<PathBuf>,
}

impl Compiled {
    /// Compiles an adapter, its kernel for `arch` if there is one, or finds it in the cache.
    ///
    /// # Errors
    /// The library isn't there, doesn't fit, or a compiler fails.
    pub fn new(
        adapter: &'static Adapter,
        paths: &Paths,
        arch: Option<Arch>,
        tools: &Toolchain,
    ) -> Result<Self, PeerError> {
        let found = find(adapter, paths)?;
        let other =
            adapter.needs.and_then(|name| crate::all().into_iter().find(|a| a.name == name));
        let other =
            other.map(|other| Ok::<_, PeerError>((other, find(other, paths)?))).transpose()?;
        let mut libraries = vec![(adapter, &found)];
        libraries.extend(other.as_ref().map(|(other, found)| (*other, found)));
        let job = Job { adapter, found: &found, libraries, tools };
        let folder = match device::cuda::cache_folder() {
            Some(folder) => folder,
            None => own_folder()?,
        };
        let folder = folder.join("peers");
        fs::create_dir_all(&folder).map_err(PeerError::io(format!("{}", folder.display())))?;
        let key = job.key()?;
        let state = folder.join(format!("{}-{key}.so", adapter.name));
        let cubin =
            arch.map(|arch| folder.join(format!("{}-{key}-{}.cubin", adapter.name, arch.name())));
        // A version that doesn't fit is refused by the quick compilation.
        if !state.is_file() {
            job.state(&state)?;
        }
        if let (Some(cubin), Some(arch)) = (&cubin, arch)
            && !cubin.is_file()
        {
            job.kernel(cubin, arch)?;
        }
        Ok(Self { found, state, cubin })
    }
}

/// Where there is no folder for a cache: one among the temporary files that is this user's alone, since what lies in it
/// is loaded as code.
fn own_folder() -> Result<PathBuf, PeerError> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
    let failed = |path: &Path| PeerError::io(format!("{}", path.display()));
    let me = fs::metadata("/proc/self").map_err(failed(Path::new("/proc/self")))?.uid();
    let folder = env::temp_dir().join(format!("gicbench-{me}"));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed(&folder)(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(failed(&folder))?;
    if !found.is_dir() || found.uid() != me || found.mode() & 0o022 != 0 {
        let why = "it is another's, or others may write to it: name a folder in GICBENCH_CACHE_DIR";
        return Err(failed(&folder)(std::io::Error::other(why)));
    }
    Ok(folder)
}

/// One adapter's compilation.
struct Job<'a> {
    adapter: &'static Adapter,
    found: &'a Found,
    /// The library, and those that it needs.
    libraries: Vec<(&'static Adapter, &'a Found)>,
    tools: &'a Toolchain,
}

impl Job<'_> {
    fn files(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let own = [("kernel.cu", self.adapter.kernel), ("state.cpp", self.adapter.state)];
        COMMON.iter().chain(self.adapter.files).copied().chain(own)
    }

    fn library_includes(&self) -> Vec<PathBuf> {
        let of = |(adapter, found): &(&'static Adapter, &Found)| {
            adapter.includes.iter().map(|part| found.root.join(part)).collect::<Vec<_>>()
        };
        self.libraries.iter().flat_map(of).collect()
    }

    fn device_library(&self) -> Option<PathBuf> {
        let of = |(adapter, found): &(&'static Adapter, &Found)| {
            adapter.device_library.map(|library| found.root.join(library))
        };
        self.libraries.iter().find_map(of)
    }

    /// A name for everything that the pieces depend on: the adapter's text, the library's headers, the compilers.
    fn key(&self) -> Result<String, PeerError> {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (name, text) in self.files() {
            part(name.as_bytes());
            part(text.as_bytes());
        }
        for flag in self.adapter.defines.iter().chain(&KERNEL_FLAGS) {
            part(flag.as_bytes());
        }
        part(self.tools.version.as_bytes());
        part(self.tools.cxx_version.as_bytes());
        part(self.found.version.as_bytes());
        let mut headers = Vec::new();
        for folder in self.library_includes() {
            gather(&folder, 0, &mut headers)?;
        }
        if let Some(library) = self.device_library() {
            headers.push(library);
        }
        headers.sort();
        headers.dedup();
        for header in headers {
            let bytes =
                fs::read(&header).map_err(PeerError::io(format!("{}", header.display())))?;
            // Where a library lies is not what it is.
            part(header.file_name().unwrap_or_default().as_encoded_bytes());
            part(&bytes);
        }
        Ok(hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect())
    }

    /// A folder with the adapter's files; it goes when it is dropped.
    fn folder(&self) -> Result<tempfile::TempDir, PeerError> {
        let folder = tempfile::tempdir().map_err(PeerError::io("a temporary folder"))?;
        for (name, text) in self.files() {
            let path = folder.path().join(name);
            let parent = path.parent().unwrap_or(folder.path());
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(&path, text))
                .map_err(PeerError::io(format!("{}", path.display())))?;
        }
        Ok(folder)
    }

    fn flags(&self, command: &mut Command, folder: &Path) {
        command.arg("-std=c++17").arg("-I").arg(folder);
        for include in self.library_includes() {
            command.arg("-I").arg(include);
        }
        for define in self.adapter.defines {
            command.arg(format!("-D{define}"));
        }
    }

    fn state(&self, to: &Path) -> Result<(), PeerError> {
        let folder = self.folder()?;
        let mut command = cxx_command(&self.tools.cxx);
        self.flags(&mut command, folder.path());
        for include in &self.tools.includes {
            command.arg("-isystem").arg(include);
        }
        let out = folder.path().join("state.so");
        command.args(["-O2", "-fPIC", "-shared", "-fvisibility=default"]);
        command.arg(folder.path().join("state.cpp")).arg("-o").arg(&out);
        self.compile(&mut command, "state.cpp")?;
        keep(&out, to)
    }

    fn kernel(&self, to: &Path, arch: Arch) -> Result<(), PeerError> {
        let folder = self.folder()?;
        let out = folder.path().join("kernel.cubin");
        let arch = format!("-arch={}", arch.name());
        let nvcc = || {
            let mut command = Command::new(&self.tools.nvcc);
            // The program itself: nvcc takes no arguments with it.
            let program = self.tools.cxx.iter().rev().find(|word| !word.starts_with('-'));
            command.arg(&arch).arg("-ccbin").arg(program.map_or("c++", String::as_str));
            command
        };
        let mut command = nvcc();
        self.flags(&mut command, folder.path());
        for include in &self.tools.includes {
            command.arg("-isystem").arg(include);
        }
        command.args(KERNEL_FLAGS).arg(folder.path().join("kernel.cu"));
        match self.device_library() {
            None => {
                command.arg("-cubin").arg("-o").arg(&out);
                self.compile(&mut command, "kernel.cu")?;
            }
            Some(library) => {
                let object = folder.path().join("kernel.o");
                command.args(["-rdc=true", "-dc"]).arg("-o").arg(&object);
                self.compile(&mut command, "kernel.cu")?;
                let mut link = nvcc();
                link.args(["-dlink", "-cubin"]).arg(&object).arg(library).arg("-o").arg(&out);
                self.compile(&mut link, "kernel.cu")?;
            }
        }
        keep(&out, to)
    }

    fn compile(&self, command: &mut Command, piece: &'static str) -> Result<(), PeerError> {
        let said = run(command, piece, PATIENCE)?;
        if said.succeeded {
            return Ok(());
        }
        let (title, version) = (self.adapter.title, self.found.version.clone());
        // The adapter's checks of a version: their messages say structure and size.
        if let Some(why) = failed_assertion(&said.text) {
            return Err(PeerError::Unfit { title, version, known: self.adapter.known, why });
        }
        Err(PeerError::Compile { title, version, piece, why: first_error(&said.text) })
    }
}

/// The message of the first static assertion that failed, as g++ and nvcc write it.
fn failed_assertion(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("static assertion failed"))?;
    let message = line.rsplit_once("static assertion failed")?.1;
    let message = message.trim_start_matches([':', ' ', 'w', 'i', 't', 'h']);
    Some(message.trim().trim_matches('"').to_owned())
}

fn first_error(text: &str) -> String {
    let line = text.lines().find(|line| line.contains("error") || line.contains("fatal"));
    line.or(text.lines().next()).unwrap_or("it says nothing").trim().chars().take(300).collect()
}

/// Under its name a file is whole, whoever writes it at the same time.
fn keep(from: &Path, to: &Path) -> Result<(), PeerError> {
    let folder = to.parent().unwrap_or(Path::new("."));
    let whole = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        std::io::copy(&mut fs::File::open(from)?, &mut file)?;
        file.persist(to)?;
        Ok(())
    };
    whole().map_err(PeerError::io(format!("{}", to.display())))
}

/// Source files below a folder, some of which an adapter may include. A library's own folder is small; a link in a circle isn't followed for ever.
const SOURCES: [&str; 8] = ["h", "hpp", "cuh", "inl", "c", "cc", "cpp", "cu"];
fn gather(folder: &Path, depth: u32, into: &mut Vec<PathBuf>) -> Result<(), PeerError> {
    const DEEPEST: u32 = 12;
    let entries = fs::read_dir(folder).map_err(PeerError::io(format!("{}", folder.display())))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        if path.is_dir() && depth < DEEPEST {
            gather(&path, depth + 1, into)?;
        } else if path.is_file() && SOURCES.contains(&extension) {
            into.push(path);
        }
    }
    Ok(())
}

struct Said {
    succeeded: bool,
    text: String,
}

/// Runs a compiler to its end, or kills it when it is late.
fn run(command: &mut Command, program: &str, patience: Duration) -> Result<Said, PeerError> {
    let failed = |reason: String| PeerError::Compiler { program: program.to_owned(), reason };
    let log = tempfile::tempfile().map_err(PeerError::io("a temporary file"))?;
    let copy = log.try_clone().map_err(PeerError::io("a temporary file"))?;
    let other = log.try_clone().map_err(PeerError::io("a temporary file"))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(copy)
        .stderr(other)
        .spawn()
        .map_err(|error| failed(format!("can't be run: {error}")))?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) => break status,
            None if began.elapsed() > patience => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("took more than {} s", patience.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut text = Vec::new();
    let mut log = log;
    std::io::Seek::rewind(&mut log)
        .and_then(|()| log.read_to_end(&mut text))
        .map_err(PeerError::io("a temporary file"))?;
    Ok(Said { succeeded: status.success(), text: String::from_utf8_lossy(&text).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_said_in_its_own_words() {
        let cases = [
            (
                "layout.h:9:1: error: static assertion failed: X 1.2: sizeof(x) is 8\n 9 | static_",
                Some("X 1.2: sizeof(x) is 8"),
            ),
            (
                "layout.h(9): error: static assertion failed with \"X 1.2: sizeof(x) is 8\"\n",
                Some("X 1.2: sizeof(x) is 8"),
            ),
            ("kernel.cu(3): error: identifier \"f\" is undefined", None),
        ];
        for (text, expected) in cases {
            assert_eq!(failed_assertion(text).as_deref(), expected);
        }
        assert!(first_error("note: x\nk.cu(3): error: no f\nmore").contains("no f"));
    }

    #[test]
    fn a_compiler_that_is_late_is_killed_and_one_that_is_not_there_is_named() {
        let late = run(Command::new("sleep").arg("60"), "sleep", Duration::from_millis(50));
        assert!(late.is_err_and(|error| error.to_string().contains("took more than")));
        let none = run(&mut Command::new("/no/such/compiler"), "nvcc", PATIENCE);
        assert!(none.is_err_and(|error| error.to_string().starts_with("nvcc: can't be run")));
    }
}
