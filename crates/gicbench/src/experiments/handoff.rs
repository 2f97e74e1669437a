//! `handoff`: what does each GPU-CPU hand-off cost to enqueue?

use super::peer;
use super::proxy::{self, Spec};
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::proxy::{self as ring, ProxyChoice};
use peers::PeerOp;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Handoff;

/// This project's own.
const OWN: &[Transport] = &[Transport::MiniProxy];

impl Experiment for Handoff {
    fn name(&self) -> &'static str {
        "handoff"
    }

    fn question(&self) -> &'static str {
        "what does each GPU-CPU hand-off cost to enqueue?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[
            Transport::MiniProxy,
            Transport::NvshmemProxy,
            Transport::GinProxy,
            Transport::Mscclpp,
            Transport::UcclEp,
            Transport::FabricLib,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Enqueue, Metric::Consumed, Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Variant, "own", "own").only(Transport::PROXIED_PEERS),
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Handoff, HANDOFFS, HANDOFFS).only(OWN),
            AxisUse::new(AxisId::Producers, "1", "1,2,4,8"),
            AxisUse::new(AxisId::Reserve, "atomic,owned", "atomic,owned").only(OWN),
            AxisUse::new(AxisId::Progress, "read,cached", "read,cached").only(OWN),
            AxisUse::new(AxisId::Publish, "release,posted", "release,posted").only(OWN),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(50_000, 1_000, 250),
            Suite::Full => Limits::new(500_000, 5_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        if point.transport.is_peer() {
            return peer::has_put(point, None);
        }
        let is = |axis, word| point.word(axis).is_ok_and(|is| is == word);
        if is(AxisId::Reserve, "owned") && point.number(AxisId::Producers).is_ok_and(|n| n > 1) {
            return Err(Impossible {
                axis: AxisId::Reserve,
                with: AxisId::Producers,
                why: "a producer without atomics has the ring for itself".to_owned(),
                nearest: vec!["atomic".to_owned()],
            });
        }
        if is(AxisId::Publish, "posted") {
            let release = vec!["release".to_owned()];
            if !is(AxisId::Handoff, "lap-parity") {
                return Err(Impossible {
                    axis: AxisId::Publish,
                    with: AxisId::Handoff,
                    why: "only lap-parity is built with a store that orders nothing".to_owned(),
                    nearest: release,
                });
            }
            if is(AxisId::Progress, "read") {
                return Err(Impossible {
                    axis: AxisId::Publish,
                    with: AxisId::Progress,
                    why: "a store that nothing waits for behind a reading that is waited for"
                        .to_owned(),
                    nearest: release,
                });
            }
        }
        Ok(())
    }

    /// The suites go from the baseline to the posted store, one choice a step; other hand-offs as they are tuned.
    fn in_suite(&self, point: &Point, given: &dyn Fn(AxisId) -> bool) -> bool {
        if point.transport.is_peer() {
            return true;
        }
        let is = |axis, word| point.word(axis).is_ok_and(|is| is == word);
        let atomic = is(AxisId::Reserve, "atomic");
        let read = is(AxisId::Progress, "read");
        let several = point.number(AxisId::Producers).is_ok_and(|n| n > 1);
        if is(AxisId::Handoff, "valid-byte") {
            let ladder = read || !atomic || several;
            return ladder || given(AxisId::Reserve) || given(AxisId::Progress);
        }
        (!atomic || several || given(AxisId::Reserve)) && (!read || given(AxisId::Progress))
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let producers: u32 = point.number_as(AxisId::Producers)?;
        if point.transport.is_peer() {
            let bytes = point.number_as(AxisId::Payload)?;
            let spec = peer::Spec { threads: producers, ..peer::Spec::one(bytes) };
            return peer::issue_and_completion(ctx, point, spec, PeerOp::Put);
        }
        let choice = ProxyChoice {
            handoff: proxy::tuned(point.word(AxisId::Handoff)?, 1)?.handoff,
            producers: proxy::reservation(point.word(AxisId::Reserve)? == "atomic"),
            progress: word(point, AxisId::Progress)?,
            publish: word(point, AxisId::Publish)?,
        };
        if producers > 1 && choice.handoff == ring::Handoff::MappedCounter {
            return Err(PointError::not_run(
                "mapped-counter asks for known requests in their order: with several producers nobody knows whose \
                 payload goes",
            ));
        }
        let spec =
            Spec { threads: producers, ..Spec::one(choice, point.number_as(AxisId::Payload)?) };
        proxy::handing_over(ctx, point, spec)
    }
}

const HANDOFFS: &str = "valid-byte,lap-parity,nonzero-word,producer-counter,mapped-counter";

fn word<T>(point: &Point, axis: AxisId) -> Result<T, PointError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + 'static,
{
    point.word(axis)?.parse().map_err(|error| PointError::from_error(&error))
}
