//! The steps of `--nic verbs`: what any RDMA device can.

use std::sync::Arc;

use device::cuda::Gpu;
use rdma::ibv::{Asked, OpenPort};
use rdma::verbs::VerbsNic;
use rdma::{Access, Memory, Nic, Place};

use super::{Steps, said, traffic};

const HOST: &str = "register host memory";
const RELAXED: &str = "register with relaxed ordering";
const GPU: &str = "register GPU memory";
const QUEUES: &str = "QP and CQ";
const CONNECT: &str = "connect";

/// Opens the port, once a side.
pub(super) fn open(steps: &mut Steps<'_>, asked: &Asked) -> Option<[Arc<VerbsNic>; 2]> {
    let loaded = steps.step(
        "libibverbs",
        "install rdma-core (Debian: libibverbs1, ibverbs-providers)",
        || match rdma::ibv::verbs() {
            Ok(verbs) => {
                let dmabuf = if verbs.reg_dmabuf_mr.is_some() { "it has" } else { "it has no" };
                Ok(((), format!("loaded; {dmabuf} ibv_reg_dmabuf_mr")))
            }
            Err(error) => Err(error.to_string()),
        },
    );
    if loaded.is_none() {
        steps.skip(&["device and port"], "there is no libibverbs");
        return None;
    }
    steps.step(
        "device and port",
        "`gicbench doctor` says what each device and port is; name one by --device NAME:PORT and --gid-index N",
        || {
            let open = || OpenPort::open(asked).map(VerbsNic::of).map_err(|error| said(&error));
            let sides = [open()?, open()?];
            let of = sides[0].port();
            let seen = format!(
                "{}:{} ({}), {}, firmware {}, at {}",
                of.device,
                of.port,
                of.why,
                of.link.name(),
                of.firmware,
                of.address
            );
            Ok((sides, seen))
        },
    )
}

/// The rest of the steps.
pub(super) fn run(
    steps: &mut Steps<'_>,
    sides: Option<&[Arc<VerbsNic>; 2]>,
    gpu_memory: &Result<Arc<Gpu>, String>,
) {
    let Some([near, far]) = sides else {
        steps.skip(&[HOST, RELAXED, GPU, QUEUES, CONNECT], "no port is open");
        steps.skip(&traffic::STEPS, "no port is open");
        return;
    };
    let registered = |memory: Result<Arc<Memory>, rdma::Error>| {
        let region = memory.and_then(|memory| near.register(&memory, Access::all()));
        let keys = |region: rdma::Region| {
            let seen = format!("{} bytes, key {:#x}", region.length, region.rkey);
            ((), seen)
        };
        region.map(keys).map_err(|error| said(&error))
    };
    let locked = "raise what this user may lock: ulimit -l unlimited";
    steps.step(HOST, locked, || registered(rdma::memory(&Place::Host, 1 << 20)));
    steps.step(RELAXED, "kernel 5.10 or newer takes the flag, or ignores it", || {
        let memory = rdma::memory(&Place::Host, 1 << 20).map_err(|error| said(&error))?;
        near.register_relaxed(&memory, Access::all())
            .map(|_| ((), "the flag is taken; a device that can't ignores it".to_owned()))
            .map_err(|error| said(&error))
    });
    match gpu_memory {
        Err(why) => steps.skip(&[GPU], why),
        Ok(gpu) => {
            let advice = "a dmabuf needs the open kernel modules of driver 515 or newer and kernel 5.12; otherwise modprobe \
                          nvidia-peermem";
            let place = Place::Gpu(Arc::clone(gpu));
            steps.step(GPU, advice, || {
                near.allocate(&place, 2 << 20, Access::all())
                    .map(|_| ((), near.notes().join("; ")))
                    .map_err(|error| said(&error))
            });
        }
    }
    let made = steps.step(QUEUES, "is the device out of queue pairs? rdma resource show", || {
        let make = |nic: &VerbsNic| nic.create_queue_pair(&traffic::attr()).map_err(|e| said(&e));
        let (qp, peer) = (make(near)?, make(far)?);
        let seen = format!("queue pairs {:#x} and {:#x}", qp.qpn, peer.qpn);
        Ok(((qp, peer), seen))
    });
    let Some((qp, peer)) = made else {
        steps.skip(&[CONNECT], "there are no queue pairs");
        steps.skip(&traffic::STEPS, "there are no queue pairs");
        return;
    };
    let advice = "is the port active, and, on Ethernet, is the GID of an interface that is up?";
    let pair =
        steps.step(CONNECT, advice, || traffic::connect(near.as_ref(), far.as_ref(), qp, peer));
    match pair {
        Some(mut pair) => pair.steps(
            steps,
            "try the same with the system's own tools (ibv_rc_pingpong, ib_write_bw): if they fail, too, it is the fabric",
        ),
        None => steps.skip(&traffic::STEPS, "the queue pairs aren't connected"),
    }
}
