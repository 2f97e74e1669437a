//! The steps of `--nic mlx5`: what device code needs of a ConnectX.

use std::sync::Arc;

use device::cuda::Gpu;
use rdma::ibv::{Asked, Context, PortOf};
use rdma::mlx5::Mlx5Nic;
use rdma::{Access, ConnectAttr, Destination, Nic, Place, Places, QueuePairAttr, Transport};

use super::{Steps, said, traffic};

const OPEN: &str = "libmlx5 and DevX";
const HOST: &str = "register host memory";
const GPU: &str = "register GPU memory";
const QUEUES: &str = "UAR, QP and CQ by DevX";
const GPU_QUEUES: &str = "queues in GPU memory";
const GPU_UAR: &str = "UAR mapped for the GPU";
const CONNECT: &str = "connect";
const DC: &str = "DC initiator and target";

/// Vendors of the devices that libmlx5 drives, as verbs tell it: of the GUID, and of PCI.
const MELLANOX: [u32; 2] = [0x02c9, 0x15b3];

/// The steps.
pub(super) fn run(
    steps: &mut Steps<'_>,
    asked: &Asked,
    port: Option<&PortOf>,
    gpu: &Result<Arc<Gpu>, String>,
    gpu_memory: &Result<Arc<Gpu>, String>,
) {
    let all = [OPEN, HOST, GPU, QUEUES, GPU_QUEUES, GPU_UAR, CONNECT];
    let skip = |steps: &mut Steps<'_>, from: usize, why: &str| {
        steps.skip(&all[from..], why);
        steps.skip(&traffic::STEPS, why);
        steps.skip(&[DC], why);
    };
    let Some(port) = port else { return skip(steps, 0, "no port is open") };
    let vendor = Context::open(&port.device).and_then(|context| Ok(context.attr()?.vendor_id));
    if vendor.as_ref().is_ok_and(|vendor| !MELLANOX.contains(vendor)) {
        return skip(steps, 0, "the device isn't an mlx5: mini-proxy runs on it by --nic verbs");
    }
    // The same port as the verbs' steps.
    let mut asked = asked.clone();
    asked.port.device = Some(port.device.clone());
    asked.port.port = Some(port.port);
    let devx = "DevX needs a kernel of 5.0 or newer with CONFIG_INFINIBAND_USER_ACCESS, and the right to it: CAP_NET_RAW \
                (in a container: --cap-add=NET_RAW, or docker --privileged)";
    let opened = steps.step(OPEN, devx, || {
        let nic = Mlx5Nic::open(&asked).map_err(|error| said(&error))?;
        let seen = nic.name();
        Ok((nic, seen))
    });
    let Some(nic) = opened else { return skip(steps, 1, "the device isn't open for DevX") };
    let latest = |nic: &Mlx5Nic, before: usize, otherwise: &str| {
        let notes = nic.notes();
        let new = notes.get(before..).unwrap_or_default();
        if new.is_empty() { otherwise.to_owned() } else { new.join("; ") }
    };
    let allocate = |place: &Place| {
        let before = nic.notes().len();
        nic.allocate(place, 2 << 20, Access::all())
            .map(|region| {
                let keys = format!("{} bytes, key {:#x}", region.length, region.rkey);
                ((), latest(&nic, before, &keys))
            })
            .map_err(|error| said(&error))
    };
    let locked = "raise what this user may lock: ulimit -l unlimited";
    steps.step(HOST, locked, || allocate(&Place::Host));
    match gpu_memory {
        Err(why) => steps.skip(&[GPU], why),
        Ok(gpu) => {
            let advice = "dmabuf needs the open kernel modules of driver 515 or newer and kernel 5.12; otherwise modprobe \
                          nvidia-peermem";
            steps.step(GPU, advice, || allocate(&Place::Gpu(Arc::clone(gpu))));
        }
    }
    let make = |attr: &QueuePairAttr| {
        let before = nic.notes().len();
        let qp = nic.create_queue_pair(attr).map_err(|error| said(&error))?;
        let seen = latest(&nic, before, &format!("queue pair {:#x}", qp.qpn));
        Ok((qp, seen))
    };
    let made = steps.step(QUEUES, devx, || {
        let (qp, seen) = make(&traffic::attr())?;
        let (peer, _) = make(&traffic::attr())?;
        Ok(((qp, peer), seen))
    });
    match gpu_memory {
        Err(why) => steps.skip(&[GPU_QUEUES], why),
        Ok(gpu) => {
            let queues = Place::Gpu(Arc::clone(gpu));
            let in_gpu = Places {
                sq: queues.clone(),
                cq: queues.clone(),
                record: queues,
                ..Places::default()
            };
            let attr = QueuePairAttr { places: in_gpu, log_receives: None, ..traffic::attr() };
            let advice =
                "device code can have its queues in pinned host memory instead: --queues host";
            steps.step(GPU_QUEUES, advice, || make(&attr).map(|(_, seen)| ((), seen)));
        }
    }
    match gpu {
        Err(why) => steps.skip(&[GPU_UAR], why),
        Ok(gpu) => {
            let mapped = Places { doorbell: Place::Pinned(Arc::clone(gpu)), ..Places::default() };
            let attr = QueuePairAttr { places: mapped, log_receives: None, ..traffic::attr() };
            let advice = "the NVIDIA driver maps registers for a GPU with PeerMappingOverride=1 \
                          (options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\"); without it a CPU has to ring";
            steps.step(GPU_UAR, advice, || make(&attr).map(|(_, seen)| ((), seen)));
        }
    }
    match made {
        None => {
            steps.skip(&[CONNECT], "there are no queue pairs");
            steps.skip(&traffic::STEPS, "there are no queue pairs");
        }
        Some((qp, peer)) => {
            let advice =
                "is the port active, and, on Ethernet, is the GID of an interface that is up?";
            let pair = steps
                .step(CONNECT, advice, || traffic::connect(nic.as_ref(), nic.as_ref(), qp, peer));
            match pair {
                Some(mut pair) => pair.steps(
                    steps,
                    "the verbs steps do the same by the system's libmlx5: if they pass, it is this program; please report it",
                ),
                None => steps.skip(&traffic::STEPS, "the queue pairs aren't connected"),
            }
        }
    }
    steps.step(DC, "RC serves everything but --conn dc", || {
        let made = || -> Result<String, rdma::Error> {
            let target = nic.create_dc_target(0x6769_6362, Access::all())?;
            let attr =
                QueuePairAttr { transport: Transport::Dci, log_receives: None, ..traffic::attr() };
            let dci = nic.create_queue_pair(&attr)?;
            let to = Destination { nic: nic.address(), qpn: 0 };
            nic.connect(&dci, to, &ConnectAttr::default())?;
            nic.address_vector(&target)?;
            Ok(format!("initiator {:#x}, target {:#x}", dci.qpn, target.number))
        };
        made().map(|seen| ((), seen)).map_err(|error| said(&error))
    });
}
