//! Builds the device headers with their model-checking back end.

fn main() {
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-Werror")
        .opt_level(1)
        .define("GIC_MODEL", None)
        // The same templates are in the host build: under another name they can't be taken for each other.
        .define("gic", "gic_modelled")
        .include("../device/include")
        .include("../device/host")
        .file("cpp/queue.cpp")
        .file("cpp/ring.cpp")
        .compile("gic_modelled");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../device/include");
    println!("cargo:rerun-if-changed=../device/host/dispatch.hpp");
}
