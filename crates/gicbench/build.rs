//! Notes what the program is built from, so that every record can say it, and builds the library that it loads into
//! others, which is embedded.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CXX");
    // A commit is only named as clean or not if any source that changes makes this run again.
    for path in ["../../.git/HEAD", "../../.git/index", ".."] {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    note("COMMIT", first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]));
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    note("RUSTC", first_line(&rustc, &["--version"]));
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    note("CXX", first_line(&cxx, &["--version"]));
    note("PROFILE", std::env::var("PROFILE").ok());
    let library = preload();
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(LIBRARY);
    if let Err(error) = std::fs::copy(&library, &out) {
        fail(&format!("{} can't be copied: {error}", library.display()));
    }
}

const LIBRARY: &str = "libgicbench_nic.so";

fn fail(what: &str) -> ! {
    println!("cargo::error=the library of `gicbench nic exec`: {what}");
    std::process::exit(0)
}

/// The preload library: `GICBENCH_PRELOAD`, or one that is built here, in a target directory of its own (the outer
/// one is locked), for the same target and profile.
fn preload() -> PathBuf {
    println!("cargo::rerun-if-env-changed=GICBENCH_PRELOAD");
    if let Some(given) = env::var_os("GICBENCH_PRELOAD") {
        return given.into();
    }
    let text = |name: &str| env::var(name).unwrap_or_default();
    let is_release = text("PROFILE") == "release";
    let directory = Path::new(&text("OUT_DIR")).join("preload");
    let mut arguments: Vec<String> =
        ["rustc", "--lib", "--crate-type", "cdylib", "--manifest-path"].map(Into::into).into();
    arguments.push("../preload/Cargo.toml".to_owned());
    arguments.extend(["--target-dir".to_owned(), directory.display().to_string()]);
    arguments.extend(is_release.then(|| "--release".to_owned()));
    let mut built = directory.clone();
    if text("TARGET") != text("HOST") {
        arguments.extend(["--target".to_owned(), text("TARGET")]);
        built.push(text("TARGET"));
    }
    built.push(if is_release { "release" } else { "debug" });
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // What it depends on, the outer build depends on too: it is here already, and locked.
    for more in [&["--offline", "--locked"] as &[&str], &["--locked"], &[]] {
        let mut command = Command::new(&cargo);
        command.args(&arguments).args(more);
        // A wrapper that lints, as clippy's, is of the outer build; so is what cargo tells its build scripts.
        command.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CARGO_TARGET_DIR");
        match command.output() {
            Ok(output) if output.status.success() => return built.join(LIBRARY),
            Ok(output) if more.is_empty() => {
                fail(&String::from_utf8_lossy(&output.stderr).replace('\n', "\ncargo::error="));
            }
            Ok(_) => {}
            Err(error) => fail(&format!("cargo can't be run: {error}")),
        }
    }
    unreachable!("the last try returned or failed")
}

fn note(name: &str, value: Option<String>) {
    println!("cargo::rustc-env=GICBENCH_{name}={}", value.unwrap_or_default());
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.lines().next().map(str::to_owned))?
}
