//! `gicbench nic exec`: runs a program with software ConnectXs for devices.
//!
//! The program and what it starts are left as they are: a library that is loaded before theirs shows them the devices.
//! The library is inside this binary, so that nothing else has to be installed; `GICBENCH_PRELOAD` names another.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand, ValueEnum};
use softnic::Profile;
use uverbs::{
    DeviceConfig, DeviceFault, LinkLayer, Mtu, PortConfig, Rate, Run, RunError, Settings,
};

/// The preload library, as it was built with this binary.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libgicbench_nic.so"));

/// What to do with software NICs.
#[derive(Debug, Clone, Subcommand)]
pub enum NicAction {
    /// Run a program that uses libibverbs on software ConnectXs
    Exec(ExecArgs),
}

/// What a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layer {
    /// LIDs.
    Infiniband,
    /// RoCE.
    Ethernet,
}

/// Arguments of `gicbench nic exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Devices: mlx5_0, mlx5_1, …
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DeviceConfig::MOST)))]
    pub devices: u16,
    /// What their ports speak
    #[arg(long, value_name = "LAYER", default_value = "infiniband")]
    pub link_layer: Layer,
    /// How long things take: none, or a NIC that is modelled
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = profile)]
    pub profile: Profile,
    /// What goes wrong, on one device or on all; may be given more than once
    ///
    /// fail=SYNDROME[,nth=N][,qp=NUMBER][,vendor=BYTE], drop-every=N, drop-random=N[,seed=S], delay=TIME,
    /// pause=FROM..UNTIL, port-down[=FROM..UNTIL], out-of-order[=SEED]; mlx5_1: before it for that device alone.
    /// Times count from when a process opens the device.
    #[arg(long, value_name = "FAULT")]
    pub fault: Vec<DeviceFault>,
    /// Write there what the NICs did: a line of JSON for each WQE and each receive
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The ports' active MTU: 256, 512, 1024, 2048 or 4096; no packet carries more
    #[arg(long, value_name = "BYTES", default_value = "4096")]
    pub mtu: Mtu,
    /// The rate that the ports tell, in Gb/s: 25, 50, 100, 200 or 400; nothing is slower for it
    #[arg(long, value_name = "GBPS", default_value = "400")]
    pub rate: Rate,
    /// The first device's LID, on InfiniBand (1 if it isn't given); the others have those behind it
    #[arg(long, value_name = "LID",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DeviceConfig::LAST_LID)))]
    pub lid: Option<u16>,
    /// An IP address of the first device's port, on Ethernet (192.168.130.1 if none is given); the others have those
    /// behind it. May be given up to 7 times; each gives two GIDs, RoCE v1 and v2
    #[arg(long, value_name = "ADDRESS")]
    pub gid: Vec<IpAddr>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

fn profile(name: &str) -> Result<Profile, String> {
    let known: Vec<_> = Profile::ALL.iter().map(|profile| profile.name).collect();
    Profile::by_name(name).ok_or_else(|| format!("known are {}", known.join(", ")))
}

/// The program can't be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// No such program.
    #[error("there is no program {0}")]
    NotFound(String),
    /// Nothing can be loaded into it.
    #[error(
        "{0} is a static program: no library can be loaded into it, so it can't be shown a software NIC; build it \
         dynamically linked"
    )]
    Static(String),
    /// The loader heeds nobody's wishes.
    #[error(
        "{0} runs with another user's rights, for which the loader ignores libraries that are to be preloaded; run it as \
         the user that it would become"
    )]
    SetId(String),
    /// An attribute of the other link layer's ports.
    #[error("{flag} is of {of} ports: give --link-layer {of} with it")]
    LinkLayer {
        /// What was given.
        flag: &'static str,
        /// Whose it is.
        of: &'static str,
    },
    /// Too many addresses.
    #[error("--gid is given {0} times: a port has room for {most} addresses", most = DeviceConfig::ADDRESSES)]
    Addresses(usize),
    /// The devices.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system refused it.
    #[error("{program} can't be run: {error}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Runs the program to its end. Gives its exit status, or 128 and the signal that ended it.
///
/// # Errors
/// The program can't be run.
pub fn exec(args: &ExecArgs) -> Result<u8, ExecError> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(ExecError::NotFound(String::new()));
    };
    check_program(&find(program)?)?;
    let settings = settings(args)?;
    let library = match std::env::var_os("GICBENCH_PRELOAD") {
        Some(path) => Err(PathBuf::from(path)),
        None => Ok(LIBRARY),
    };
    let run = Run::new(&settings, library)?;
    let mut command = Command::new(program);
    command.args(arguments);
    run.adopt(&mut command);
    let child = command.spawn().map_err(|error| spawn_error(program, error))?;
    let status = wait(child).map_err(|error| spawn_error(program, error))?;
    let mut shown = std::collections::BTreeSet::new();
    for finding in run.findings().lines().filter(|line| shown.insert((*line).to_owned())) {
        // Nobody may be there to read it.
        let _ = writeln!(std::io::stderr(), "# {finding}");
    }
    Ok(code(status))
}

/// What the devices are to be.
fn settings(args: &ExecArgs) -> Result<Settings, ExecError> {
    let link_layer = match args.link_layer {
        Layer::Infiniband => LinkLayer::InfiniBand,
        Layer::Ethernet => LinkLayer::Ethernet,
    };
    if link_layer == LinkLayer::Ethernet && args.lid.is_some() {
        return Err(ExecError::LinkLayer { flag: "--lid", of: "infiniband" });
    }
    if link_layer == LinkLayer::InfiniBand && !args.gid.is_empty() {
        return Err(ExecError::LinkLayer { flag: "--gid", of: "ethernet" });
    }
    let mut port = PortConfig { mtu: args.mtu, rate: args.rate, ..PortConfig::default() };
    port.first_lid = args.lid.unwrap_or(port.first_lid);
    if args.gid.len() > port.addresses.len() {
        return Err(ExecError::Addresses(args.gid.len()));
    }
    for (slot, &address) in port.addresses.iter_mut().zip(&args.gid) {
        *slot = Some(address);
    }
    Ok(Settings {
        devices: DeviceConfig::several_with(args.devices, link_layer, port),
        profile: args.profile,
        faults: args.fault.clone(),
        trace: args.trace.clone(),
    })
}

fn spawn_error(program: &OsString, error: std::io::Error) -> ExecError {
    ExecError::Spawn { program: program.display().to_string(), error }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Waits for the program; a signal that is meant to end this process ends the program first.
fn wait(mut child: Child) -> std::io::Result<ExitStatus> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // A terminal tells the program itself; asked twice, it is told all the same.
        let told = AtomicBool::new(std::io::stdin().is_terminal());
        let forwarding = ctrlc::set_handler(move || {
            if !told.swap(false, Ordering::Relaxed) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        });
        // Somebody else heeds signals: the program ends when it does.
        drop(forwarding);
    }
    child.wait()
}

/// The file of a program, as the shell would find it.
fn find(program: &OsString) -> Result<PathBuf, ExecError> {
    let is_program = |path: &Path| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let named = Path::new(program);
    let found = if program.as_bytes().contains(&b'/') {
        Some(named.to_owned()).filter(|path| is_program(path))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(named)).find(|path| is_program(path))
    };
    found.ok_or_else(|| ExecError::NotFound(program.display().to_string()))
}

/// Refuses a program that no library can be loaded into.
fn check_program(path: &Path) -> Result<(), ExecError> {
    let name = path.display().to_string();
    let user = rustix::process::getuid().as_raw();
    if let Ok(found) = path.metadata()
        && found.mode() & 0o4000 != 0
        && found.uid() != user
    {
        return Err(ExecError::SetId(name));
    }
    let Ok(mut file) = File::open(path) else { return Ok(()) };
    if is_static(&mut file).unwrap_or(false) {
        return Err(ExecError::Static(name));
    }
    // A script is as good as what interprets it.
    if let Some(interpreter) = interpreter(&mut file) {
        return check_program(&interpreter);
    }
    Ok(())
}

fn interpreter(file: &mut File) -> Option<PathBuf> {
    let mut line = [0; 256];
    file.seek(SeekFrom::Start(0)).ok()?;
    let len = file.read(&mut line).ok()?;
    let line = line.get(..len)?.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(words.next()?));
    // Of a script of a script, the system asks no further either.
    (path.is_absolute() && path.is_file()).then_some(path)
}

/// Whether a file is a 64-bit ELF program without an interpreter; an error if it is no such file.
fn is_static(file: &mut File) -> std::io::Result<bool> {
    const INTERPRETER: u32 = 3;
    let mut head = [0; 64];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut head)?;
    if head[..5] != *b"\x7fELF\x02" {
        return Ok(false);
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let table = head[32..40].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    let (size, count) = (u64::from(half(54)), u64::from(half(56)));
    for nth in 0..count {
        let mut kind = [0; 4];
        file.seek(SeekFrom::Start(table.saturating_add(nth * size)))?;
        file.read_exact(&mut kind)?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// An ELF program with these kinds of program headers.
    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = kinds.len() as u8;
        for kind in kinds {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            bytes.extend(header);
        }
        bytes
    }

    #[test]
    fn static_programs_are_refused_by_name_and_nothing_else_is() {
        let script = |of: &Path| format!("#! {} -x\n", of.display()).into_bytes();
        let fixed = file(&elf(&[1, 1]));
        let linked = file(&elf(&[1, 3, 1]));
        let truncated = file(&elf(&[1, 1])[..100]);
        let of_fixed = file(&script(fixed.path()));
        let of_linked = file(&script(linked.path()));
        for (program, refused) in [
            (&fixed, true),
            (&linked, false),
            (&truncated, false),
            (&of_fixed, true),
            (&of_linked, false),
            (&file(b"#!"), false),
            (&file(b""), false),
        ] {
            let checked = check_program(program.path());
            assert_eq!(checked.is_err(), refused, "{:?}", program.path());
            if let Err(error) = checked {
                assert!(error.to_string().contains(&*fixed.path().to_string_lossy()), "{error}");
            }
        }
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find(&"sh".into()).unwrap().is_absolute());
        assert!(find(&"/bin/sh".into()).is_ok());
        for missing in ["no-such-program-anywhere", "/etc/passwd", "/", ""] {
            assert!(find(&missing.into()).is_err(), "{missing}");
        }
    }

    #[test]
    fn the_library_is_inside() {
        assert!(LIBRARY.starts_with(b"\x7fELF"));
    }
}
