//! `ordering`: what does each ordering cost, and is it safe?

use super::gda::{self, Spec};
use super::peer;
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::choice::{Choice, CqKind};
use device::view::{Op, QuietScope};
use peers::PeerOp;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Submitter, Transport};

pub(super) struct Ordering;

/// This project's own.
const OWN: &[Transport] = &[Transport::MiniGda, Transport::Bare, Transport::Inlined];

impl Experiment for Ordering {
    fn name(&self) -> &'static str {
        "ordering"
    }

    fn question(&self) -> &'static str {
        "what does each ordering cost, and is it safe?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[
            Transport::MiniGda,
            Transport::Bare,
            Transport::Inlined,
            Transport::Nvshmem,
            Transport::Gdaki,
            Transport::DeepEp,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Variant, "own", "own").only(Transport::GPU_SUBMITTED_PEERS),
            AxisUse::new(AxisId::Payload, "8", "8,64"),
            AxisUse::new(
                AxisId::Order,
                "none,gpu-release,gpu-fence,release-fence-mmio,system-fence",
                "none,gpu-release,gpu-fence,release-fence-mmio,system-fence,async-mmio",
            )
            .only(OWN),
            AxisUse::new(AxisId::CqLoad, "plain,acquire", "plain,acquire").only(OWN),
            AxisUse::new(AxisId::Cq, "collapsed", "collapsed,ring").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Queues, "auto", "auto"),
            AxisUse::new(AxisId::DoorbellMemory, "auto", "auto"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(20_000, 500, 250),
            Suite::Full => Limits::new(1_000_000, 5_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        if point.transport.is_peer() { peer::has_put(point, None) } else { Ok(()) }
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        if point.transport.is_peer() {
            // A library's orderings are its variants'.
            let spec = peer::Spec::one(point.number_as(AxisId::Payload)?);
            return peer::issue_and_completion(ctx, point, spec, PeerOp::Put);
        }
        let choice = Choice {
            order: gda::order(point)?,
            cq_kind: match point.transport {
                Transport::Bare | Transport::Inlined => CqKind::Collapsed,
                _ => point.word(AxisId::Cq)?.parse().map_err(|e| PointError::from_error(&e))?,
            },
            cq_load: point.word(AxisId::CqLoad)?.parse().map_err(|e| PointError::from_error(&e))?,
            checked: (point.transport == Transport::Inlined).into(),
            ..Choice::default()
        };
        let spec = Spec::one(choice, point.number_as(AxisId::Payload)?);
        let measured = gda::issue_and_completion(ctx, point, spec, Op::Put, QuietScope::One)?;
        if cfg!(target_arch = "x86_64") && point.submitter == Submitter::Host {
            let note =
                "x86 orders plain stores by itself: every mode is the same instructions there";
            return Ok(measured.into_iter().map(|m| m.detail("host_modes", note)).collect());
        }
        Ok(measured)
    }
}
