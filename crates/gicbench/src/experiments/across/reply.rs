//! The answering half of a round trip, which is device code of the remote side.

use std::sync::Arc;

use device::choice::Choice;
use device::direct::{DirectKernel, DirectKind, DirectRoundTripArgs};
use device::host::Kernel;
use device::loaded::{Args, CONTROL_WORDS, Load, LoadedArgs, ProxyLoadedArgs};
use device::proxy::{ProxyChoice, ProxyKernel, ProxyRoundTripArgs};
use device::shared::Shared;
use device::source::KernelKind;
use device::view::{Local, Remote, RoundTripArgs};
use mini_gda::{Gda, GdaAttr};
use mini_proxy::{ChannelAttr, Drive, Proxy, ProxyAttr};
use rdma::Region;
use rdma::remote::Side;

use super::super::floor::arrived;
use super::super::loaded::launch;
use super::super::rig::{Rig, broke};
use super::far::patience;
use crate::context::RunContext;
use crate::measurement::MemoryKind;
use crate::point::PointError;
use crate::ranks::protocol::{Launch, LoadWords, RegionWords, Reply};

/// The transport of the answering half, made.
pub(super) enum Half {
    Gda {
        back: Box<Gda>,
        choice: Choice,
    },
    Proxy {
        back: Box<Proxy>,
        choice: ProxyChoice,
    },
    /// It needs none.
    Direct,
}

impl Half {
    pub(super) fn new(
        ctx: &RunContext,
        rig: &Rig,
        side: &Side,
        reply: &Reply,
    ) -> Result<Self, PointError> {
        let deadline = patience(ctx)?;
        match reply {
            &Reply::Gda { choice } => {
                let attr = GdaAttr {
                    choice,
                    deadline,
                    queues: rig.queues(),
                    peers: rig.peers(),
                    state: rig.own(),
                    clock: rig.clock,
                    ..GdaAttr::default()
                };
                let back = Gda::connect(rig.near.as_ref(), rig.far.as_ref(), &attr);
                Ok(Self::Gda { back: Box::new(back.map_err(broke)?), choice })
            }
            Reply::Direct => Ok(Self::Direct),
            Reply::Proxy { choice, outbox, inbox } => {
                let outbox = side.region_at(outbox.address).ok_or_else(|| {
                    PointError::failed("no memory lies where replies are to leave")
                })?;
                let drive = if rig.cpus.oversubscribed() {
                    Drive::Stepped
                } else {
                    Drive::Threads { cpus: rig.cpus.workers.clone() }
                };
                let attr = ProxyAttr {
                    choice: *choice,
                    channels: vec![ChannelAttr {
                        local: outbox,
                        remote: elsewhere(inbox)?,
                        signal: None,
                    }],
                    drive,
                    deadline,
                    rings_in: rig.place(MemoryKind::Host),
                    state: rig.own(),
                    clock: rig.clock,
                    ..ProxyAttr::default()
                };
                let back = Proxy::connect(Arc::clone(&rig.near), rig.far.as_ref(), &attr);
                Ok(Self::Proxy { back: Box::new(back.map_err(broke)?), choice: *choice })
            }
        }
    }

    /// Answers once through. `ready` is called when nothing is left to be made or loaded.
    pub(super) fn launch(
        &self,
        ctx: &RunContext,
        rig: &Rig,
        launch: &Launch,
        ready: &dyn Fn(),
    ) -> Result<(), PointError> {
        let deadline = rig.clock.ticks(patience(ctx)?);
        match (self, *launch) {
            (Self::Gda { back, choice }, Launch::Gda { inbox, to, warmup, samples }) => {
                let words = rig.words(3)?;
                // The asking side's is not looked at.
                let views = Shared::at(&rig.own(), &[back.views()[0]; 2]).map_err(broke)?;
                let (address, rkey) = to;
                let args = RoundTripArgs {
                    qp: views.as_ptr(),
                    inbox: [std::ptr::null_mut(), inbox as *mut u64],
                    remote: [Remote::default(), Remote { address, rkey }],
                    warmup,
                    samples,
                    deadline,
                    ticks: std::ptr::null_mut(),
                    failure: words.as_ptr(),
                    first_side: 1,
                    sides: 1,
                };
                let check = |word| back.check(rig.near.as_ref(), word).map_err(broke);
                let relax = back.relax(rig.near.as_ref());
                rig.load(KernelKind::RoundTrip, choice)?;
                ready();
                rig.launch(ctx, choice, Kernel::RoundTrip(&args), &relax, &words, &check).map(drop)
            }
            (Self::Proxy { back, choice }, Launch::Proxy { outbox, inbox, warmup, samples }) => {
                let words = rig.words(3)?;
                let rings = Shared::at(&rig.own(), &[back.views()[0]; 2]).map_err(broke)?;
                let nothing = std::ptr::null_mut();
                let args = ProxyRoundTripArgs {
                    ring: rings.as_ptr(),
                    outbox: [nothing, outbox as *mut u64],
                    inbox: [nothing, inbox as *mut u64],
                    warmup,
                    samples,
                    deadline,
                    ticks: nothing,
                    failure: words.as_ptr(),
                    first_side: 1,
                    sides: 1,
                };
                let check = |word| back.check(word).map_err(broke);
                let kernel = ProxyKernel::RoundTrip(&args);
                rig.load_proxy(kernel.kind(), choice)?;
                ready();
                rig.launch_proxy(ctx, choice, kernel, &back.relax(), &words, &check).map(drop)
            }
            (Self::Direct, Launch::Direct { inbox, to, warmup, samples }) => {
                let words = rig.words(2)?;
                let nothing = std::ptr::null_mut();
                let args = DirectRoundTripArgs {
                    inbox: [nothing, inbox as *mut u64],
                    outbox: [nothing, to as *mut u64],
                    warmup,
                    samples,
                    deadline,
                    ticks: nothing,
                    failure: words.as_ptr(),
                    first_side: 1,
                    sides: 1,
                };
                rig.load_direct(DirectKind::RoundTrip)?;
                ready();
                rig.launch_direct(ctx, DirectKernel::RoundTrip(&args), &words, &arrived).map(drop)
            }
            (_, Launch::Loaded(words)) => self.loaded(ctx, rig, &words, deadline, ready),
            _ => Err(PointError::failed("the answering half is another transport's")),
        }
    }

    fn loaded(
        &self,
        ctx: &RunContext,
        rig: &Rig,
        words: &LoadWords,
        deadline: u64,
        ready: &dyn Fn(),
    ) -> Result<(), PointError> {
        let failures = rig.words(2 + words.background as usize)?;
        let control = rig.words(CONTROL_WORDS)?;
        let nothing = std::ptr::null_mut();
        let load = Load {
            background: words.background,
            queues: words.queues,
            probe_queue: words.probe_queue,
            bytes: words.bytes,
            background_bytes: 0,
            window: 1,
            slots: words.slots,
            stride: words.stride,
            background_at: 0,
            background_slots: 1,
            background_stride: 0,
            interval: 0,
            hold: 0,
            warmup: words.warmup,
            samples: words.samples,
            first: words.first,
            deadline,
            control: control.as_ptr(),
            progress: nothing,
            target: words.target,
            // Somebody's: what is asked is whether replies are wanted.
            inbox: words.inbox.0 as *const u64,
            issue: nothing,
            total: nothing,
            carried: nothing,
            done: nothing,
            failure: failures.as_ptr(),
            first_thread: 1 + words.background,
            threads: 1,
        };
        if let Some(gpu) = rig.gpu() {
            device::loaded::prepare(gpu, &words.choices).map_err(broke)?;
        }
        ready();
        match self {
            Self::Gda { back, .. } => {
                let args = LoadedArgs {
                    qp: std::ptr::null(),
                    answer: back.device_views(),
                    local: Local::default(),
                    remote: Remote::default(),
                    answer_local: Local { address: words.outbox.0, lkey: words.outbox.1 },
                    answer_remote: Remote { address: words.inbox.0, rkey: words.inbox.1 },
                    load,
                };
                let check = |word| back.check(rig.near.as_ref(), word).map_err(broke);
                let relax = back.relax(rig.near.as_ref());
                launch(ctx, rig, &words.choices, Args::Gda(&args), &relax, (&failures, &check))
            }
            Self::Proxy { back, .. } => {
                let args = ProxyLoadedArgs {
                    ring: std::ptr::null(),
                    answer: back.device_views(),
                    local: 0,
                    answer_local: words.outbox.0,
                    load,
                };
                let check = |word| back.check(word).map_err(broke);
                let relax = back.relax();
                launch(ctx, rig, &words.choices, Args::Proxy(&args), &relax, (&failures, &check))
            }
            Self::Direct => Err(PointError::failed("plain stores have no background")),
        }
        .map(drop)
    }
}

/// Memory of rank 0, which is only named here.
fn elsewhere(words: &RegionWords) -> Result<Region, PointError> {
    Region::elsewhere(words.address, words.length, words.lkey, words.rkey).map_err(broke)
}
