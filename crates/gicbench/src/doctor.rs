//! `gicbench doctor`: what there is on this machine, what it means for a measurement, and what to do.

mod devices;
mod links;

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdma::sysfs::Sysfs;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::cpus::{Cpus, EngineChoice};
use crate::gpu;
use crate::machine::{field, kibibytes};
use crate::platform::{Platform, names};
use crate::point::Submitter;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Distorts measurements, or keeps something from running.
    Warn,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub name: Cow<'static, str>,
    /// How much it matters.
    pub level: Level,
    /// What was seen.
    pub seen: String,
    /// What that means for a measurement.
    pub meaning: String,
    /// What to do about it; null where nothing need be done.
    pub advice: Option<String>,
}

/// Looks at everything.
pub fn examine(platform: &Platform, paths: &peers::Paths) -> Vec<Finding> {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let mut findings = vec![cores(), quota(read("/sys/fs/cgroup/cpu.max").as_deref())];
    findings.push(hypervisor(&cpuinfo, read("/proc/stat").as_deref()));
    findings.push(load(read("/proc/loadavg").as_deref()));
    findings.extend(frequency());
    findings.push(smt(read("/sys/devices/system/cpu/smt/active").as_deref()));
    findings.push(numa());
    findings.push(memlock());
    findings.push(huge_pages(&meminfo));
    findings.push(clock());
    findings.push(gpus(platform));
    findings.extend(gpu_clock(platform));
    findings.extend(links::links());
    findings.push(libraries(
        "libcuda",
        "libcuda.so.1",
        "the CUDA submitter runs device code through it",
        "install the NVIDIA driver",
    ));
    findings.push(nvrtc(device::nvrtc::load().map_err(|error| error.to_string())));
    findings.push(nvcc());
    findings.extend(peers::all().map(|adapter| library(adapter, paths)));
    findings.push(rdma(platform));
    findings.extend(devices::examine(
        &Sysfs::system(),
        &devices::Real { gpu: platform.submitter(Submitter::Cuda).and_then(|()| gpu::open()).ok() },
        read("/proc/driver/nvidia/version").as_deref(),
    ));
    findings.push(libraries(
        "libibverbs",
        "libibverbs.so.1",
        "a real NIC is opened through it",
        "install rdma-core (libibverbs1)",
    ));
    findings.push(libraries(
        "libmlx5",
        "libmlx5.so.1",
        "queues of a ConnectX are reached through it",
        "install rdma-core (ibverbs-providers)",
    ));
    findings
}

/// Prints findings for people.
///
/// # Errors
/// The writer's.
pub fn print(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Note => "note",
            Level::Warn => "WARN",
        };
        writeln!(out, "{mark} {:<width$}  {}", finding.name, finding.seen)?;
        writeln!(out, "     {:width$}  {}", "", finding.meaning)?;
        if let Some(advice) = &finding.advice {
            writeln!(out, "     {:width$}  -> {advice}", "")?;
        }
    }
    Ok(())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn finding(
    name: impl Into<Cow<'static, str>>,
    level: Level,
    seen: impl Into<String>,
    meaning: &str,
) -> Finding {
    Finding {
        name: name.into(),
        level,
        seen: seen.into(),
        meaning: meaning.to_owned(),
        advice: None,
    }
}

impl Finding {
    fn advise(mut self, advice: &str) -> Self {
        self.advice = Some(advice.to_owned());
        self
    }
}

fn unknown(name: &'static str, what: &str) -> Finding {
    finding(name, Level::Note, format!("{what}: not said by the system"), "can't be judged")
}

fn cores() -> Finding {
    match Cpus::detect(EngineChoice::Auto) {
        Err(error) => finding(
            "cores",
            Level::Warn,
            format!("the affinity mask can't be read: {error}"),
            "nothing can be pinned, and nothing is run",
        ),
        Ok(cpus) => {
            let count = cpus.allowed().len();
            let seen = format!("{count} that this process may use: {:?}", cpus.allowed());
            match count {
                1 => finding(
                    "cores",
                    Level::Warn,
                    seen,
                    "submitter and software NIC share one core: the engine is stepped by whoever \
                     waits, and times hold both sides' work",
                )
                .advise("widen the affinity mask (taskset, cpuset) to two cores or more"),
                2 => finding(
                    "cores",
                    Level::Note,
                    seen,
                    "one for the submitter, one for the software NIC or a proxy worker: mini-proxy's \
                     worker steps the engine, and scaling over workers can't be seen",
                ),
                _ => finding(
                    "cores",
                    Level::Ok,
                    seen,
                    "submitter, engine and workers get one each as far as they reach",
                ),
            }
        }
    }
}

fn quota(cpu_max: Option<&str>) -> Finding {
    let name = "CPU quota";
    let mut parts = cpu_max.unwrap_or("max").split_whitespace();
    match (parts.next(), parts.next().and_then(|period| period.parse::<f64>().ok())) {
        (Some(quota), Some(period)) if quota != "max" => match quota.parse::<f64>() {
            Ok(quota) => finding(
                name,
                Level::Warn,
                format!("{:.2} CPUs by cgroup", quota / period),
                "busy threads are stopped for the rest of each period once the quota is used: tails \
                 of that length are not the mechanism's",
            )
            .advise("run without a CPU limit, or with one of whole cores for all busy threads"),
            Err(_) => unknown(name, "cgroup cpu.max"),
        },
        _ => finding(name, Level::Ok, "none", "busy threads aren't throttled"),
    }
}

fn hypervisor(cpuinfo: &str, stat: Option<&str>) -> Finding {
    let name = "hypervisor";
    let Some(flags) = field(cpuinfo, "flags") else {
        return unknown(name, "CPU flags");
    };
    if !flags.split(' ').any(|flag| flag == "hypervisor") {
        return finding(name, Level::Ok, "none", "cores are this system's own");
    }
    // The eighth number of the first line is the time that the host gave to others, in ticks.
    let stolen = stat
        .and_then(|stat| stat.lines().next()?.split_whitespace().nth(8)?.parse::<u64>().ok())
        .map_or(String::new(), |ticks| format!(", {ticks} ticks stolen since boot"));
    finding(
        name,
        Level::Note,
        format!("virtual machine{stolen}"),
        "the host may take a core away in the middle of a sample: read medians, not tails",
    )
    .advise("use dedicated (pinned) vCPUs where tails matter")
}

fn load(loadavg: Option<&str>) -> Finding {
    let first = loadavg.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    match first {
        None => unknown("load", "/proc/loadavg"),
        Some(load) if load > 0.5 => finding(
            "load",
            Level::Warn,
            format!("{load} busy threads in the last minute"),
            "other work takes cores and caches from the measurement",
        )
        .advise("wait until the machine is idle"),
        Some(load) => finding("load", Level::Ok, format!("{load}"), "the machine is idle"),
    }
}

fn frequency() -> Vec<Finding> {
    let governor = match read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        None => finding(
            "CPU clock",
            Level::Note,
            "no cpufreq",
            "the clock is the firmware's or the host's choice, and can't be read or held here",
        ),
        Some(governor) if governor == "performance" => {
            finding("CPU clock", Level::Ok, "governor performance", "held at its highest")
        }
        Some(governor) => finding(
            "CPU clock",
            Level::Warn,
            format!("governor {governor}"),
            "short samples may run at a low clock",
        )
        .advise("cpupower frequency-set -g performance"),
    };
    let no_turbo = read("/sys/devices/system/cpu/intel_pstate/no_turbo").map(|text| text == "0");
    let boost = read("/sys/devices/system/cpu/cpufreq/boost").map(|text| text == "1");
    let turbo = match no_turbo.or(boost) {
        None => unknown("turbo", "turbo state"),
        Some(true) => finding(
            "turbo",
            Level::Note,
            "on",
            "the clock depends on temperature and on the other cores: runs differ by some per cent",
        ),
        Some(false) => finding("turbo", Level::Ok, "off", "the clock doesn't vary with the load"),
    };
    vec![governor, turbo]
}

fn smt(active: Option<&str>) -> Finding {
    match active {
        Some("1") => finding(
            "SMT",
            Level::Note,
            "on",
            "two busy threads on the siblings of one core slow each other down",
        )
        .advise("leave one sibling of each core out of the affinity mask"),
        Some("0") => finding("SMT", Level::Ok, "off", "each CPU is a core"),
        _ => unknown("SMT", "SMT state"),
    }
}

fn numa() -> Finding {
    let nodes = names(Path::new("/sys/devices/system/node"));
    let nodes = nodes
        .iter()
        .filter(|name| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok()))
        .count();
    match nodes {
        0 => unknown("NUMA", "nodes"),
        1 => finding("NUMA", Level::Ok, "1 node", "all memory is equally near"),
        many => finding(
            "NUMA",
            Level::Note,
            format!("{many} nodes"),
            "queues on another node than their users cost a hop an access",
        )
        .advise("bind the run to the node of GPU and NIC: numactl --cpunodebind N --membind N"),
    }
}

fn memlock() -> Finding {
    match getrlimit(Resource::Memlock).current {
        None => finding("memlock", Level::Ok, "unlimited", "any memory can be registered"),
        Some(bytes) => finding(
            "memlock",
            Level::Note,
            format!("{} KiB", bytes / 1024),
            "a real NIC can't register more than that; the software NIC doesn't lock memory",
        )
        .advise("ulimit -l unlimited (limits.conf, or --ulimit memlock=-1 for a container)"),
    }
}

fn huge_pages(meminfo: &str) -> Finding {
    let Some(pages) = kibibytes(meminfo, "HugePages_Total") else {
        return unknown("huge pages", "HugePages_Total");
    };
    let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = transparent.split(['[', ']']).nth(1).unwrap_or("not there").to_owned();
    finding(
        "huge pages",
        Level::Note,
        format!("{pages} reserved, transparent: {chosen}"),
        "with small pages, queues and payloads of many megabytes cost TLB misses",
    )
}

fn clock() -> Finding {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "unknown".to_owned());
    let (resolution, overhead) = instant_clock();
    let seen = format!(
        "{source}; CLOCK_MONOTONIC steps by {} ns and costs {} ns a reading",
        resolution.as_nanos(),
        overhead.as_nanos()
    );
    if overhead > Duration::from_nanos(200) {
        finding(
            "clock",
            Level::Warn,
            seen,
            "a reading costs about as much as an issue: single operations can't be timed with it",
        )
        .advise("have the kernel use its fastest clock source (clocksource=tsc on x86)")
    } else {
        finding("clock", Level::Ok, seen, "each record names the clock of its samples beside this")
    }
}

/// Least step and cost of a reading of the system's monotonic clock.
fn instant_clock() -> (Duration, Duration) {
    const READINGS: u32 = 10_000;
    let start = Instant::now();
    let (mut last, mut least) = (start, Duration::MAX);
    for _ in 0..READINGS {
        let now = Instant::now();
        let step = now - last;
        if !step.is_zero() {
            least = least.min(step);
        }
        last = now;
    }
    (least, (last - start) / READINGS)
}

fn gpus(platform: &Platform) -> Finding {
    if platform.gpus.is_empty() {
        return finding(
            "GPU",
            Level::Note,
            "no /dev/nvidia0",
            "device code runs on CPU threads in a GPU's place: its times are a stand-in's",
        )
        .advise("run on a machine with an NVIDIA GPU and its driver; in a container, pass it in");
    }
    let shown = platform.describe_gpus().join(", ");
    match platform.submitter(Submitter::Cuda) {
        Ok(()) => finding("GPU", Level::Ok, shown, "GPU-side times are real ones"),
        Err(reason) => finding(
            "GPU",
            Level::Warn,
            shown,
            "it is there, but kernels can't be compiled or run: CPU threads would stand in for it",
        )
        .advise(&reason),
    }
}

/// What the GPU's clocks are worth; nothing without a GPU.
fn gpu_clock(platform: &Platform) -> Option<Finding> {
    platform.submitter(Submitter::Cuda).ok()?;
    let clock = match gpu::open().ok()?.clock() {
        Ok(clock) => clock,
        Err(error) => {
            let means = "no kernel can be measured";
            let found = "can't be measured".to_owned();
            return Some(
                finding("GPU clock", Level::Warn, found, means).advise(&error.to_string()),
            );
        }
    };
    let ns = 1e3 / clock.ticks_per_us;
    let found = format!(
        "{:.0} MHz as found, a reading costs {:.1} ns, its timer steps by {} ns",
        clock.ticks_per_us,
        clock.overhead as f64 * ns,
        clock.timer_step_ns.unwrap_or(0),
    );
    let stable = clock.uncertainty < 0.001;
    let means = if stable {
        "each launch measures its clock's rate again"
    } else {
        "the clock moved between launches: times of different launches are of different clocks"
    };
    Some(finding("GPU clock", if stable { Level::Ok } else { Level::Note }, found, means))
}

fn rdma(platform: &Platform) -> Finding {
    if platform.rdma_devices.is_empty() {
        finding(
            "RDMA devices",
            Level::Note,
            "none in /sys/class/infiniband",
            "the software ConnectX stands in: completions, rates and bandwidths aren't hardware's",
        )
        .advise("run on a machine with a ConnectX; in a container, pass /dev/infiniband in")
    } else {
        let devices = platform.rdma_devices.join(", ");
        if crate::hardware::is_nic_exec() {
            let meaning =
                "software ConnectXs of `nic exec`: what follows is theirs, and no hardware's";
            return finding("RDMA devices", Level::Note, devices, meaning);
        }
        finding("RDMA devices", Level::Ok, devices, "RDMA devices are here")
    }
}

/// Looks for a shared library where the loader would.
fn nvrtc(loaded: Result<(), String>) -> Finding {
    let meaning = "device code is compiled for the GPU with it at run time";
    match loaded {
        Ok(()) => finding("NVRTC", Level::Ok, "loads", meaning),
        Err(why) => finding("NVRTC", Level::Note, "not found", meaning).advise(&why),
    }
}

fn nvcc() -> Finding {
    let meaning =
        "adapters of the libraries that are measured beside are compiled with it at run time";
    match peers::Toolchain::find() {
        Ok(tools) => finding("nvcc", Level::Ok, tools.describe(), meaning),
        Err(error) => finding("nvcc", Level::Note, "not found", meaning).advise(&error.to_string()),
    }
}

fn library(adapter: &'static peers::Adapter, paths: &peers::Paths) -> Finding {
    let meaning = "it is measured beside, by its own device code";
    match peers::find(adapter, paths) {
        Ok(found) => {
            let level = if found.known { Level::Ok } else { Level::Note };
            finding(adapter.title, level, found.to_string(), meaning)
        }
        Err(error) => {
            finding(adapter.title, Level::Note, "not found", meaning).advise(&error.to_string())
        }
    }
}

fn libraries(name: &'static str, file: &str, meaning: &str, advice: &str) -> Finding {
    match loaded(file).or_else(|| installed(file)) {
        Some(path) => finding(name, Level::Ok, path.display().to_string(), meaning),
        None => {
            let seen = format!("no {file} in the loader's usual folders");
            finding(name, Level::Note, seen, meaning).advise(advice)
        }
    }
}

/// Where the loader had a library from that this process uses by now.
fn loaded(file: &str) -> Option<PathBuf> {
    let maps = read("/proc/self/maps")?;
    let paths = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    // A file may have more of its version behind the name that it is asked for by.
    let is_it = |path: &&Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(file))
    };
    paths.map(Path::new).find(is_it).map(Path::to_owned)
}

fn installed(file: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os("LD_LIBRARY_PATH")
        .map(|paths| std::env::split_paths(&paths).collect())
        .unwrap_or_default();
    let architecture = std::env::consts::ARCH;
    folders.extend(
        [
            format!("/usr/lib/{architecture}-linux-gnu"),
            format!("/lib/{architecture}-linux-gnu"),
            "/usr/lib64".to_owned(),
            "/lib64".to_owned(),
            "/usr/local/cuda/lib64".to_owned(),
            "/usr/local/lib".to_owned(),
        ]
        .map(PathBuf::from),
    );
    folders.iter().map(|folder| folder.join(file)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_distorts_a_measurement_warns_and_says_what_to_do() {
        for (finding, level) in [
            (quota(Some("150000 100000")), Level::Warn),
            (quota(Some("max 100000")), Level::Ok),
            (quota(None), Level::Ok),
            (quota(Some("x 100000")), Level::Note),
            (load(Some("1.50 1.0 1.0 1/2 3")), Level::Warn),
            (load(Some("0.01 0.0 0.0 1/2 3")), Level::Ok),
            (load(None), Level::Note),
            (hypervisor("flags : fpu hypervisor", Some("cpu 1 2 3 4 5 6 7 88 9")), Level::Note),
            (hypervisor("flags : fpu", None), Level::Ok),
            (hypervisor("", None), Level::Note),
            (smt(Some("1")), Level::Note),
            (smt(Some("0")), Level::Ok),
        ] {
            assert_eq!(finding.level, level, "{finding:?}");
            if level == Level::Warn {
                assert!(finding.advice.is_some(), "{finding:?}");
            }
        }
        assert!(quota(Some("150000 100000")).seen.contains("1.50"));
        assert!(
            hypervisor("flags : hypervisor", Some("cpu 1 2 3 4 5 6 7 88 9")).seen.contains("88")
        );
    }

    #[test]
    fn every_finding_says_what_it_means_and_a_missing_device_what_to_do() {
        let findings = examine(&Platform::default(), &peers::Paths::default());
        for finding in &findings {
            assert!(!finding.seen.is_empty() && !finding.meaning.is_empty(), "{finding:?}");
        }
        let about = |name| findings.iter().find(|finding| finding.name == name).unwrap();
        assert!(about("GPU").advice.is_some() && about("RDMA devices").advice.is_some());
        let mut text = Vec::new();
        print(&mut text, &findings).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("-> "));
    }
}
