//! Notes what the program is built from, so that every record can say it.

use std::path::Path;
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
}

fn note(name: &str, value: Option<String>) {
    println!("cargo::rustc-env=GICBENCH_{name}={}", value.unwrap_or_default());
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.lines().next().map(str::to_owned))?
}
