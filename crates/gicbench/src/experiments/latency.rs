//! `latency`: what does one operation cost on each path?

use super::gda::{self, Spec};
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use super::{like, peer, proxy};
use device::choice::{self, Choice};
use device::proxy::ProxyOp;
use device::view::{Op, QuietScope};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Latency;

impl Experiment for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn question(&self) -> &'static str {
        "what does one operation cost on each path?"
    }

    fn transports(&self) -> &'static [Transport] {
        const WITH_NIC: &[Transport] = &[
            Transport::MiniGda,
            Transport::Bare,
            Transport::Inlined,
            Transport::MiniProxy,
            Transport::Nvshmem,
            Transport::NvshmemProxy,
            Transport::Gdaki,
            Transport::GinProxy,
            Transport::DeepEp,
            Transport::Mscclpp,
            Transport::UcclEp,
            Transport::FabricLib,
        ];
        WITH_NIC
    }

    fn metrics(&self) -> &'static [Metric] {
        &[
            Metric::Issue,
            Metric::Enqueue,
            Metric::Consumed,
            Metric::PutCompletion,
            Metric::RoundTrip,
        ]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Variant, "own", "own").only(Transport::PEERS),
            AxisUse::new(AxisId::Like, "none", like::GDA)
                .only(&[Transport::MiniGda])
                .takes(like::GDA_WORDS),
            AxisUse::new(AxisId::Like, "none", like::PROXY)
                .only(&[Transport::MiniProxy])
                .takes(like::PROXY_WORDS),
            AxisUse::new(AxisId::Without, "none", "none")
                .only(&[Transport::MiniGda, Transport::MiniProxy]),
            AxisUse::new(AxisId::Op, "put,get,atomic,put-signal", "put,get,atomic,put-signal"),
            AxisUse::new(AxisId::Payload, "8", "8,64,512,4K,32K,256K,1M"),
            AxisUse::new(AxisId::Conn, "rc", "rc,dc").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release").only(GPU_SUBMITTED),
            AxisUse::new(AxisId::Sharing, "exclusive", "exclusive,thread")
                .only(&[Transport::MiniGda])
                .takes(&["exclusive", "thread"]),
            AxisUse::new(AxisId::Cq, "collapsed", "collapsed,ring").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Queues, "auto", "auto").only(RINGING),
            AxisUse::new(AxisId::DoorbellMemory, "auto", "auto").only(RINGING),
            AxisUse::new(AxisId::Handoff, "lap-parity", "lap-parity").only(&[Transport::MiniProxy]),
            AxisUse::new(AxisId::Reserve, "owned", "owned").only(&[Transport::MiniProxy]),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(20_000, 500, 250),
            Suite::Full => Limits::new(200_000, 5_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        let is = |axis, word| point.get(axis).and_then(|value| value.word()) == Some(word);
        if point.transport.is_peer() && !peer::has_operation(point) {
            return Err(Impossible {
                axis: AxisId::Op,
                with: AxisId::Variant,
                why: format!("{} has no such call", point.transport),
                nearest: vec!["put".to_owned()],
            });
        }
        like::possible(point)?;
        if is(AxisId::Op, "atomic") && point.number(AxisId::Payload) != Ok(8) {
            return Err(Impossible {
                axis: AxisId::Payload,
                with: AxisId::Op,
                why: "an atomic has 8 B".to_owned(),
                nearest: vec!["8".to_owned()],
            });
        }
        if WRITTEN_OUT.contains(&point.transport) && !is(AxisId::Op, "put") {
            return Err(Impossible {
                axis: AxisId::Op,
                with: AxisId::Payload,
                why: "the sequence that is written out is a put".to_owned(),
                nearest: vec!["put".to_owned()],
            });
        }
        if is(AxisId::Conn, "dc") && is(AxisId::Cq, "ring") {
            return Err(Impossible {
                axis: AxisId::Cq,
                with: AxisId::Conn,
                why: "DC queue pairs are measured with collapsed CQs".to_owned(),
                nearest: vec!["collapsed".to_owned()],
            });
        }
        Ok(())
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        if point.transport.is_peer() {
            return peer::latency(ctx, point);
        }
        if let Some(like) = like::of(point)? {
            return like::issue_and_completion(ctx, point, like);
        }
        if point.transport == Transport::MiniProxy {
            return proxied(ctx, point);
        }
        if WRITTEN_OUT.contains(&point.transport) {
            let checked = (point.transport == Transport::Inlined).into();
            let choice = Choice { order: gda::order(point)?, checked, ..Choice::default() };
            let spec = Spec::one(choice, point.number_as(AxisId::Payload)?);
            return gda::issue_and_completion(ctx, point, spec, Op::Put, QuietScope::One);
        }
        let transport: choice::Transport =
            point.word(AxisId::Conn)?.parse().map_err(|e| PointError::from_error(&e))?;
        let dc = transport == choice::Transport::Dc;
        let choice = Choice {
            order: gda::order(point)?,
            sharing: point
                .word(AxisId::Sharing)?
                .parse()
                .map_err(|e| PointError::from_error(&e))?,
            cq_kind: point.word(AxisId::Cq)?.parse().map_err(|e| PointError::from_error(&e))?,
            transport,
            max_blocks: if dc { 5 } else { 1 },
            ..Choice::default()
        };
        let bytes: u32 = point.number_as(AxisId::Payload)?;
        let op = match point.word(AxisId::Op)? {
            "get" => Op::Get,
            "atomic" => Op::FetchAdd,
            "put-signal" => Op::PutSignal,
            _ => Op::Put,
        };
        let mut measured = Vec::new();
        // The reply is a put of the same kind: its size is 8 B, its transport RC.
        if op == Op::Put && bytes == 8 && !dc {
            measured.push(gda::round_trip(ctx, point, choice)?);
        }
        let spec = Spec::one(choice, bytes);
        with_rest(measured, gda::issue_and_completion(ctx, point, spec, op, QuietScope::One))
    }
}

/// This project's transports whose posting threads ring the doorbell.
const GPU_SUBMITTED: &[Transport] = &[Transport::MiniGda, Transport::Bare, Transport::Inlined];

/// The same, with the libraries'.
const RINGING: &[Transport] = &[
    Transport::MiniGda,
    Transport::Bare,
    Transport::Inlined,
    Transport::Nvshmem,
    Transport::Gdaki,
    Transport::DeepEp,
];

/// Sequences that are written out by hand.
const WRITTEN_OUT: &[Transport] = &[Transport::Bare, Transport::Inlined];

fn proxied(ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
    let mut choice = proxy::tuned(point.word(AxisId::Handoff)?, 1)?;
    if point.word(AxisId::Reserve)? == "atomic" {
        choice.producers = proxy::reservation(true);
    }
    let bytes: u32 = point.number_as(AxisId::Payload)?;
    let op = match point.word(AxisId::Op)? {
        "get" => ProxyOp::Get,
        "atomic" => ProxyOp::FetchAdd,
        "put-signal" => ProxyOp::PutSignal,
        _ => ProxyOp::Put,
    };
    let mut measured = Vec::new();
    if op == ProxyOp::Put && bytes == 8 {
        measured.push(proxy::round_trip(ctx, point, choice)?);
    }
    let spec = proxy::Spec::one(choice, bytes);
    with_rest(measured, proxy::enqueue_and_completion(ctx, point, spec, op))
}

/// Ctrl-C during a point's second half keeps its first.
pub(super) fn with_rest(
    mut measured: Vec<Measurement>,
    rest: Result<Vec<Measurement>, PointError>,
) -> Result<Vec<Measurement>, PointError> {
    match rest {
        Ok(rest) => measured.extend(rest),
        Err(PointError::Interrupted) if !measured.is_empty() => {}
        Err(error) => return Err(error),
    }
    Ok(measured)
}
