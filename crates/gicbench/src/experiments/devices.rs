//! Devices of this machine under a rig.

use std::sync::Arc;

use device::cuda::Gpu;
use rdma::mlx5::Mlx5Nic;
use rdma::verbs::VerbsNic;

use super::rig::{Ends, Need, Nics, broke};
use crate::context::RunContext;
use crate::hardware::{Hardware, NicOptions};
use crate::point::{Point, PointError, Transport};

/// Both sides on one port of a device, or on one each, with an open device of their own.
pub(super) fn by_verbs(
    ctx: &RunContext,
    point: &Point,
    gpu: Option<&Arc<Gpu>>,
    need: &Need,
) -> Result<(Nics, Ends), PointError> {
    let near = open_verbs(ctx.nic_options(), point, gpu, need.virtual_time)?;
    let far = open_verbs(&ctx.nic_options().remote(), point, gpu, need.virtual_time)?;
    let told = Arc::clone(&near);
    let hardware = Hardware::new(near.port()).with_steps(move || told.notes());
    Ok((Nics::Device(hardware), [near, far]))
}

/// A device by libibverbs, for what posts by the CPU.
pub(super) fn open_verbs(
    options: &NicOptions,
    point: &Point,
    gpu: Option<&Arc<Gpu>>,
    virtual_time: bool,
) -> Result<Arc<VerbsNic>, PointError> {
    if point.transport != Transport::MiniProxy {
        return Err(PointError::not_run(format!(
            "NIC verbs serves mini-proxy: a device's queues are its driver's own there, and {} writes WQEs itself",
            point.transport
        )));
    }
    if virtual_time {
        return Err(PointError::not_run("NIC verbs has real time alone: use --profile none"));
    }
    let gpu = gpu.map(|gpu| gpu.info().pci.clone());
    VerbsNic::open(&options.asked(gpu)).map_err(|error| match error {
        rdma::Error::Load(_) | rdma::Error::NoPort(_) | rdma::Error::NoGid(_) => {
            PointError::not_run(error.to_string())
        }
        other => broke(other),
    })
}

/// A ConnectX, near to the GPU that submits.
pub(super) fn mlx5(
    options: &NicOptions,
    gpu: Option<&Arc<Gpu>>,
) -> Result<(Hardware, Arc<Mlx5Nic>), PointError> {
    let nic =
        Mlx5Nic::open(&options.asked(gpu.map(|gpu| gpu.info().pci.clone()))).map_err(broke)?;
    let told = Arc::clone(&nic);
    Ok((Hardware::new(nic.port()).with_steps(move || told.notes()), nic))
}
