//! `inline`: when does inlining pay?

use super::gda::{self, Bench, Posting, Spec};
use super::peer;
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::choice::{Choice, Ringing, Signalling};
use device::view::{Op, QuietScope};
use peers::PeerOp;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Inline;

/// This project's own.
const OWN: &[Transport] = &[Transport::MiniGda];

/// Libraries with a put of a value.
const PEERS: &[Transport] = &[
    Transport::Nvshmem,
    Transport::NvshmemProxy,
    Transport::Gdaki,
    Transport::GinProxy,
    Transport::DeepEp,
];

impl Experiment for Inline {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn question(&self) -> &'static str {
        "when does inlining pay?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[
            Transport::MiniGda,
            Transport::Nvshmem,
            Transport::NvshmemProxy,
            Transport::Gdaki,
            Transport::GinProxy,
            Transport::DeepEp,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::Enqueue, Metric::PutCompletion, Metric::Rate]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8,32,128", "4,8,12,16,28,32,64,92,128,192,256"),
            AxisUse::new(AxisId::Inline, "off,on", "off,on"),
            AxisUse::new(AxisId::Variant, "own", "own").only(PEERS),
            AxisUse::new(AxisId::Batch, "1,32", "1,32").only(OWN),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release").only(OWN),
            AxisUse::new(AxisId::PayloadMemory, "auto", "auto"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(10_000_000, 500, 150),
            Suite::Full => Limits::new(200_000, 5_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        let inline = point.get(AxisId::Inline).and_then(|value| value.word()) == Some("on");
        if point.transport.is_peer() {
            let bytes = point.number(AxisId::Payload).unwrap_or(0);
            return peer::has_put(point, inline.then_some(bytes));
        }
        if inline && point.number(AxisId::Payload).is_ok_and(|bytes| bytes > u64::from(MAX_INLINE))
        {
            return Err(Impossible {
                axis: AxisId::Payload,
                with: AxisId::Inline,
                why: format!("a WQE of {MAX_BLOCKS} blocks holds at most {MAX_INLINE} B"),
                nearest: vec![MAX_INLINE.to_string()],
            });
        }
        Ok(())
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let inline = point.word(AxisId::Inline)? == "on";
        if point.transport.is_peer() {
            let op = if inline { PeerOp::PutValue } else { PeerOp::Put };
            let spec = peer::Spec::one(point.number_as(AxisId::Payload)?);
            return peer::issue_and_completion(ctx, point, spec, op);
        }
        let batch: u32 = point.number_as(AxisId::Batch)?;
        let bytes: u32 = point.number_as(AxisId::Payload)?;
        let max_blocks = if inline { MAX_BLOCKS } else { 1 };
        let choice = Choice { order: gda::order(point)?, max_blocks, ..Choice::default() };
        if batch == 1 {
            let op = if inline { Op::PutInline } else { Op::Put };
            return gda::issue_and_completion(
                ctx,
                point,
                Spec::one(choice, bytes),
                op,
                QuietScope::One,
            );
        }
        let choice =
            Choice { ringing: Ringing::Deferred, signalling: Signalling::OnRequest, ..choice };
        let mut bench = Bench::new(ctx, point, Spec::one(choice, bytes))?;
        let posting = Posting { batch, nth: 1, force: true, warp: false, inline, get: false };
        let (rates, _) = bench.rate(ctx, posting)?;
        Ok(vec![bench.finish(ctx, Measurement::rate(rates))?])
    }
}

/// Blocks of the largest WQE that the experiment builds.
const MAX_BLOCKS: u32 = 5;
/// Inline bytes that fit it: control, remote address and the inline header take 36.
const MAX_INLINE: u32 = MAX_BLOCKS * 64 - 36;
