//! Builds the host build of the device code.

fn main() {
    let mut kernels = vec![
        "bare",
        "direct",
        "latency",
        "like",
        "loaded",
        "nic",
        "proxy",
        "rate",
        "round_trip",
        "support",
    ];
    if std::env::var_os("CARGO_FEATURE_PROGRAM").is_some() {
        kernels.push("program");
    }
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-Werror")
        // The code's speed is what is measured, also when the rest is built for debugging.
        .opt_level(2)
        // Hundreds of instantiations: their debug information takes longer than their code.
        .debug(false)
        .include("include")
        .include("host");
    for kernel in kernels {
        build.file(format!("host/{kernel}.cpp"));
    }
    build.compile("gic_host");
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=host");
}
