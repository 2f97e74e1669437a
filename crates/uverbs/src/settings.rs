//! What the devices of a run are and do wrong, and the text by which each of its processes is told.

use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use softnic::{FaultError, Faults, Profile};

use crate::config::{DeviceConfig, LinkLayer, PortConfig, gid_of};

/// A fault of one device, or of all: `[mlx5_N:]FAULT`, a text of [`Faults::add`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    device: Option<u16>,
    fault: String,
}

/// A text that is no fault of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFaultError {
    /// What stands before the colon.
    #[error("`{0}` is no device: mlx5_0, mlx5_1, …")]
    Device(String),
    /// What stands behind it.
    #[error(transparent)]
    Fault(#[from] FaultError),
}

impl FromStr for DeviceFault {
    type Err = DeviceFaultError;

    fn from_str(text: &str) -> Result<Self, DeviceFaultError> {
        let (device, fault) = match text.split_once(':') {
            None => (None, text),
            Some((name, fault)) => {
                let known = (0..DeviceConfig::MOST).find(|index| format!("mlx5_{index}") == name);
                let unknown = || DeviceFaultError::Device(name.to_owned());
                (Some(known.ok_or_else(unknown)?), fault)
            }
        };
        fault.parse::<Faults>()?;
        Ok(Self { device, fault: fault.to_owned() })
    }
}

impl std::fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.device {
            Some(index) => write!(f, "mlx5_{index}:{}", self.fault),
            None => write!(f, "{}", self.fault),
        }
    }
}

/// What the devices of a run are, and do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The devices, all of one kind.
    pub devices: Vec<DeviceConfig>,
    /// How long things take.
    pub profile: Profile,
    /// What goes wrong. Times count from when a process opens the device.
    pub faults: Vec<DeviceFault>,
    /// Where what they did is written: a file that every process can open.
    pub trace: Option<PathBuf>,
}

/// Settings that don't fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A fault of a device that isn't there.
    #[error("--fault {fault}: there is no such device; the last is {last}")]
    NoDevice {
        /// The fault.
        fault: String,
        /// The last device's name.
        last: String,
    },
    /// A fault that doesn't go with another.
    #[error("--fault {fault}: {error}")]
    Fault {
        /// The fault.
        fault: String,
        /// Why not.
        error: FaultError,
    },
    /// Too high a LID.
    #[error("--lid {first}: LIDs are from 1 to {last}, and {devices} devices have one each", last = DeviceConfig::LAST_LID)]
    Lid {
        /// The first device's.
        first: u16,
        /// How many there are.
        devices: usize,
    },
    /// An address that has no others behind it.
    #[error("--gid {address}: {why}")]
    Address {
        /// The first device's.
        address: std::net::IpAddr,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl Settings {
    /// Devices without faults, and without a trace.
    #[must_use]
    pub fn of(devices: Vec<DeviceConfig>) -> Self {
        Self { devices, profile: Profile::NONE, faults: Vec::new(), trace: None }
    }

    /// Whether all of it fits together.
    ///
    /// # Errors
    /// What doesn't.
    pub fn check(&self) -> Result<(), SettingsError> {
        for fault in &self.faults {
            if let (Some(of), Some(last)) = (fault.device, self.devices.last())
                && of > last.index
            {
                let fault = fault.to_string();
                return Err(SettingsError::NoDevice { fault, last: last.name() });
            }
        }
        for device in &self.devices {
            self.gather(device.index)?;
        }
        let Some(first) = self.devices.first() else { return Ok(()) };
        let (port, devices) = (&first.port, self.devices.len());
        let room = usize::from(DeviceConfig::LAST_LID) + 1;
        if port.first_lid == 0 || usize::from(port.first_lid) + devices > room {
            return Err(SettingsError::Lid { first: port.first_lid, devices });
        }
        let given: Vec<_> = port.addresses.iter().flatten().collect();
        let mut seen = std::collections::HashSet::new();
        for &&address in &given {
            let refused = |why| Err(SettingsError::Address { address, why });
            if address.is_unspecified() || address.is_multicast() {
                return refused("no port has this address");
            }
            for device in &self.devices {
                match gid_of(address, device.index) {
                    None => return refused("the devices count up from it, past the last address"),
                    Some(gid) if !seen.insert(gid) => {
                        return refused(
                            "the devices count up from it, to an address that is taken",
                        );
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn gather(&self, device: u16) -> Result<Faults, SettingsError> {
        let mut faults = Faults::default();
        for fault in self.faults.iter().filter(|fault| fault.device.is_none_or(|of| of == device)) {
            let wrong = |error| SettingsError::Fault { fault: fault.to_string(), error };
            faults.add(&fault.fault).map_err(wrong)?;
        }
        Ok(faults)
    }

    /// The faults of a device.
    pub(crate) fn faults_of(&self, device: u16) -> Faults {
        // They were checked when the run was made.
        self.gather(device).unwrap_or_default()
    }

    /// Whether a device's port is down from the beginning.
    pub(crate) fn is_down(&self, device: &DeviceConfig) -> bool {
        self.faults_of(device.index).is_down(0)
    }

    /// As text, a line each.
    #[must_use]
    pub fn text(&self) -> String {
        let first = self.devices.first();
        let link_layer = match first.map(|device| device.link_layer) {
            Some(LinkLayer::Ethernet) => "ethernet",
            _ => "infiniband",
        };
        let port = first.map(|device| device.port).unwrap_or_default();
        let mut text = format!(
            "devices {}\nlink-layer {link_layer}\nprofile {}\nmtu {}\nrate {}\nlid {}\n",
            self.devices.len(),
            self.profile.name,
            port.mtu.bytes(),
            port.rate.gigabits(),
            port.first_lid,
        );
        let addresses = port.addresses.iter().flatten().map(|address| ("gid", address.to_string()));
        let faults = self.faults.iter().map(|fault| ("fault", fault.to_string()));
        let trace = self.trace.iter().map(|path| ("trace", path.display().to_string()));
        for (key, value) in addresses.chain(faults).chain(trace) {
            // A string takes all.
            let _ = writeln!(text, "{key} {value}");
        }
        text
    }

    /// From [`text`](Self::text), among lines of other keys.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let values = |key: &'static str| {
            text.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix(' '))
        };
        let value = |key| values(key).next();
        let link_layer = match value("link-layer")? {
            "ethernet" => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        };
        let mut port = PortConfig {
            mtu: value("mtu")?.parse().ok()?,
            rate: value("rate")?.parse().ok()?,
            first_lid: value("lid")?.parse().ok()?,
            addresses: Default::default(),
        };
        for (slot, address) in port.addresses.iter_mut().zip(values("gid")) {
            *slot = Some(address.parse().ok()?);
        }
        let settings = Self {
            devices: DeviceConfig::several_with(value("devices")?.parse().ok()?, link_layer, port),
            profile: Profile::by_name(value("profile")?)?,
            faults: values("fault").map(str::parse).collect::<Result<_, _>>().ok()?,
            trace: value("trace").map(PathBuf::from),
        };
        settings.check().ok()?;
        Some(settings)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Mtu, Rate};

    fn settings(layer: LinkLayer, count: u16, port: PortConfig, faults: &[&str]) -> Settings {
        let devices = DeviceConfig::several_with(count, layer, port);
        let faults = faults.iter().map(|text| text.parse().unwrap()).collect();
        Settings { faults, ..Settings::of(devices) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut port = PortConfig { first_lid: 40, ..PortConfig::default() };
        (port.mtu, port.rate) = ("512".parse::<Mtu>().unwrap(), "100".parse::<Rate>().unwrap());
        port.addresses[1] = Some("fd00::5".parse().unwrap());
        let faults = ["mlx5_1:fail=remote-access,nth=3", "drop-every=7", "mlx5_0:port-down"];
        let mut written = settings(LinkLayer::Ethernet, 2, port, &faults);
        written.profile = Profile::CX7_NDR200;
        written.trace = Some("/proc/1/fd/7".into());
        let read = Settings::read(&format!("fabric /x\n{}", written.text())).unwrap();
        assert_eq!((&read.devices, &read.faults), (&written.devices, &written.faults));
        assert_eq!((read.profile, read.trace.clone()), (written.profile, written.trace.clone()));
        assert_eq!(read.faults_of(0).drop_every, Some(7));
        assert_eq!((read.faults_of(0).fail.len(), read.faults_of(1).fail.len()), (0, 1));
        let down = read.devices.iter().map(|device| read.is_down(device)).collect::<Vec<_>>();
        assert_eq!(down, [true, false]);
        for part in ["devices", "mtu", "rate", "lid", "link-layer", "profile"] {
            let cut = written.text().replace(&format!("{part} "), "x ");
            assert!(Settings::read(&cut).is_none(), "{part}");
        }
    }

    #[test]
    fn settings_that_do_not_fit_together_are_refused() {
        let plain = PortConfig::default();
        let lid = |first_lid| {
            let mut port = plain;
            port.first_lid = first_lid;
            port
        };
        let addresses = |given: &[&str]| {
            let mut port = plain;
            port.addresses = Default::default();
            for (slot, text) in port.addresses.iter_mut().zip(given) {
                *slot = Some(text.parse().unwrap());
            }
            port
        };
        for (count, port, faults, words) in [
            (
                1,
                plain,
                &["drop-every=2", "mlx5_0:drop-every=3"] as &[&str],
                "`drop-every` is given twice",
            ),
            (2, plain, &["mlx5_2:drop-every=2"], "the last is mlx5_1"),
            (1, lid(0), &[], "--lid 0"),
            (2, lid(0xbfff), &[], "--lid 49151"),
            (2, addresses(&["255.255.255.255"]), &[], "past the last address"),
            (2, addresses(&["10.0.0.1", "10.0.0.2"]), &[], "--gid 10.0.0.2: the devices count up"),
            (1, addresses(&["::"]), &[], "no port has this address"),
            (1, addresses(&["10.0.0.1", "::ffff:10.0.0.1"]), &[], "taken"),
        ] {
            let refused = settings(LinkLayer::Ethernet, count, port, faults).check().unwrap_err();
            assert!(refused.to_string().contains(words), "{words}: {refused}");
        }
        let fits = ["mlx5_0:drop-every=2", "mlx5_1:drop-every=3"];
        assert_eq!(settings(LinkLayer::InfiniBand, 2, lid(0xbffe), &fits).check(), Ok(()));
        for text in ["mlx5_16:port-down", "mlx4_0:port-down", ":port-down", "mlx5_01:port-down"] {
            let refused = text.parse::<DeviceFault>();
            assert!(matches!(refused, Err(DeviceFaultError::Device(_))), "{text}: {refused:?}");
        }
    }
}
