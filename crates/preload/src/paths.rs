//! Which paths are the devices'.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::real::real;

/// Where a run keeps its files, if this process belongs to one.
pub(crate) fn run() -> Option<&'static Path> {
    static RUN: OnceLock<Option<PathBuf>> = OnceLock::new();
    RUN.get_or_init(|| std::env::var_os("GICBENCH_NIC_RUN").map(PathBuf::from)).as_deref()
}

/// What a path leads to.
pub(crate) enum Target {
    /// Not ours.
    Other,
    /// A file of the run's tree, in the place of one below `/sys`.
    Tree(CString),
    /// The uverbs file of this device.
    Uverbs(u16),
}

/// Directories that hold the devices' files beside many others: they stay what they are.
const SHARED: [&[u8]; 6] = [
    b"/sys",
    b"/sys/class",
    b"/sys/bus",
    b"/sys/bus/pci",
    b"/sys/bus/pci/devices",
    b"/sys/devices",
];

/// What a path of the program's leads to.
///
/// # Safety
/// `path` is null or ends with a zero.
pub(crate) unsafe fn target(path: *const c_char) -> Target {
    if path.is_null() {
        return Target::Other;
    }
    // SAFETY: by the contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if let Some(number) = bytes.strip_prefix(b"/dev/infiniband/uverbs") {
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
        let is_there = |number: &u16| {
            in_tree(format!("/sys/class/infiniband_verbs/uverbs{number}").as_bytes()).is_some()
        };
        return number.filter(is_there).map_or(Target::Other, Target::Uverbs);
    }
    if !bytes.starts_with(b"/sys/") {
        return Target::Other;
    }
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    if SHARED.contains(&&bytes[..end]) {
        return Target::Other;
    }
    in_tree(bytes).map_or(Target::Other, Target::Tree)
}

fn in_tree(bytes: &[u8]) -> Option<CString> {
    let mut path = tree()?.as_os_str().as_bytes().to_vec();
    path.extend_from_slice(bytes.strip_prefix(b"/sys")?);
    let path = CString::new(path).ok()?;
    let found = real!(c"access", fn(*const c_char, i32) -> i32, path.as_ptr(), libc::F_OK);
    (found == 0).then_some(path)
}

/// The tree that stands for `/sys`.
fn tree() -> Option<&'static Path> {
    static TREE: OnceLock<Option<PathBuf>> = OnceLock::new();
    TREE.get_or_init(|| run().and_then(|run| run.join("sys").canonicalize().ok())).as_deref()
}

/// The path below `/sys` that a path of the tree stands for.
pub(crate) fn outside(path: &[u8]) -> Option<CString> {
    let rest = path.strip_prefix(tree()?.as_os_str().as_bytes())?;
    CString::new([b"/sys", rest].concat()).ok()
}
