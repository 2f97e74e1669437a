//! Which device and port.

/// What a port's link speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// InfiniBand: peers are reached by their LIDs.
    InfiniBand,
    /// RoCE: peers are reached by their GIDs.
    Ethernet,
}

impl LinkLayer {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// What lies between two PCI devices, the nearest first: the names are those of `nvidia-smi topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Distance {
    /// One PCIe switch at most.
    #[serde(rename = "PIX")]
    Switch,
    /// Several PCIe switches, and no host bridge.
    #[serde(rename = "PXB")]
    Switches,
    /// A PCIe host bridge, which is a part of a CPU.
    #[serde(rename = "PHB")]
    HostBridge,
    /// Host bridges of one NUMA node.
    #[serde(rename = "NODE")]
    Node,
    /// The link between NUMA nodes.
    #[serde(rename = "SYS")]
    System,
}

impl Distance {
    /// Its short name, and what it means.
    #[must_use]
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Switch => ("PIX", "behind one PCIe switch"),
            Self::Switches => ("PXB", "behind several PCIe switches"),
            Self::HostBridge => ("PHB", "behind one PCIe host bridge"),
            Self::Node => ("NODE", "behind host bridges of one NUMA node"),
            Self::System => ("SYS", "on two NUMA nodes"),
        }
    }
}

/// A port that could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its device's name.
    pub device: String,
    /// Its number, from 1.
    pub port: u8,
    /// Whether it is active; if not, what it is.
    pub state: Result<(), String>,
    /// Its rate in Gb/s, where it is known.
    pub rate: Option<u32>,
    /// To the GPU that submits, where there is one and it is known.
    pub distance: Option<Distance>,
}

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The device's name.
    pub device: Option<String>,
    /// The port.
    pub port: Option<u8>,
}

impl std::str::FromStr for Wanted {
    type Err = String;

    /// `NAME` or `NAME:PORT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (device, port) = match text.split_once(':') {
            None => (text, None),
            Some((device, port)) => {
                let number = port.parse().ok().filter(|port| *port > 0);
                let why = || format!("port '{port}' of '{text}': ports are counted from 1 to 255");
                (device, Some(number.ok_or_else(why)?))
            }
        };
        if device.is_empty() {
            return Err(format!(
                "'{text}' names no device: write NAME or NAME:PORT, such as mlx5_0:1"
            ));
        }
        Ok(Self { device: Some(device.to_owned()), port })
    }
}

/// Why there is no port to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPort {
    /// There are no devices.
    #[error("there is no RDMA device here")]
    NoDevice,
    /// None is called so.
    #[error("no port is called {asked}; there are: {}", there.join(", "))]
    Unknown {
        /// What was asked for.
        asked: String,
        /// What there is.
        there: Vec<String>,
    },
    /// None of them is active.
    #[error("no port is active: {}", states.join(", "))]
    Inactive {
        /// Ports and what they are.
        states: Vec<String>,
    },
}

/// The port to use, and why it is that one.
///
/// An active port, always; of those the one nearest to the GPU; then the fastest; then the first.
///
/// # Errors
/// What was asked for isn't there, or nothing that could be used is active.
pub fn port(candidates: &[Candidate], wanted: &Wanted) -> Result<(usize, String), NoPort> {
    let label = |one: &Candidate| format!("{}:{}", one.device, one.port);
    let asked_for = |one: &Candidate| {
        wanted.device.as_ref().is_none_or(|device| *device == one.device)
            && wanted.port.is_none_or(|port| port == one.port)
    };
    if candidates.is_empty() {
        return Err(NoPort::NoDevice);
    }
    let asked: Vec<usize> =
        (0..candidates.len()).filter(|index| asked_for(&candidates[*index])).collect();
    if asked.is_empty() {
        let port = wanted.port.map_or(String::new(), |port| format!(":{port}"));
        return Err(NoPort::Unknown {
            asked: format!("{}{port}", wanted.device.as_deref().unwrap_or("any device")),
            there: candidates.iter().map(label).collect(),
        });
    }
    let active = asked.iter().copied().filter(|index| candidates[*index].state.is_ok());
    let key = |index: &usize| {
        let one = &candidates[*index];
        // An unknown distance is as good as the farthest.
        let distance = one.distance.unwrap_or(Distance::System);
        (distance, std::cmp::Reverse(one.rate.unwrap_or(0)), *index)
    };
    let mut active: Vec<usize> = active.collect();
    active.sort_by_key(key);
    let Some(&chosen) = active.first() else {
        let state = |index: &usize| {
            let one = &candidates[*index];
            let why = one.state.as_ref().err().map_or("active", String::as_str);
            format!("{} is {why}", label(one))
        };
        return Err(NoPort::Inactive { states: asked.iter().map(state).collect() });
    };
    let one = &candidates[chosen];
    let why = match (&wanted.device, active.get(1)) {
        (Some(_), None) => "asked for".to_owned(),
        (None, None) if candidates.len() == 1 => "the only port".to_owned(),
        (None, None) => "the only active port".to_owned(),
        (_, Some(&second)) => {
            let second = &candidates[second];
            let what = if one.distance != second.distance {
                let (short, _) = one.distance.unwrap_or(Distance::System).words();
                format!("nearest to the GPU ({short})")
            } else if one.rate.unwrap_or(0) != second.rate.unwrap_or(0) {
                format!("fastest ({} Gb/s)", one.rate.unwrap_or(0))
            } else {
                "first".to_owned()
            };
            format!("{what} of {} active ports", active.len())
        }
    };
    Ok((chosen, why))
}
