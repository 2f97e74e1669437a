//! `bandwidth`: from which payload is the link full?

use super::gda::{Bench, Posting, Spec};
use super::proxy;
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::choice::{Choice, Ringing, Signalling};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Bandwidth;

impl Experiment for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn question(&self) -> &'static str {
        "from which payload is the link full?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Bandwidth]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Op, "put", "put,get").only(&[Transport::MiniGda]),
            AxisUse::new(
                AxisId::Payload,
                "8,1K,32K,1M",
                "8,16,32,64,128,256,512,1K,2K,4K,8K,16K,32K,64K,128K,256K,512K,1M",
            ),
            AxisUse::new(AxisId::Batch, "16", "16"),
            AxisUse::new(AxisId::Profile, "cx7-ndr200", "cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(10_000_000, 500, 300),
            Suite::Full => Limits::new(1_000_000, 5_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        if point.number(AxisId::Payload).is_ok_and(|bytes| bytes > MOST_PAYLOAD) {
            return Err(Impossible {
                axis: AxisId::Payload,
                with: AxisId::Batch,
                why: "a batch of larger payloads takes longer than a wait's deadline to copy"
                    .to_owned(),
                nearest: vec!["32M".to_owned()],
            });
        }
        Ok(())
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        if point.transport == Transport::MiniProxy {
            let choice = proxy::tuned("lap-parity", 1)?;
            let bytes = point.number_as(AxisId::Payload)?;
            let chain = point.number_as(AxisId::Batch)?;
            let virtual_time = has_profile(point)?;
            let spec = proxy::Spec { virtual_time, chain, ..proxy::Spec::one(choice, bytes) };
            let mut bench = proxy::Bench::new(ctx, point, spec)?;
            let (_, bandwidths) = bench.rate(ctx)?;
            let measured = with_share(Measurement::bandwidth(bandwidths), point);
            return Ok(vec![bench.finish(ctx, measured)?]);
        }
        let batch: u32 = point.number_as(AxisId::Batch)?;
        let choice = Choice {
            ringing: Ringing::Deferred,
            signalling: Signalling::OnRequest,
            ..Choice::default()
        };
        let mut spec = Spec::one(choice, point.number_as(AxisId::Payload)?);
        // No CPU moves bytes as fast as the link: the profile's time is computed, and says so. Without a profile what
        // is measured is how fast the engine copies.
        spec.virtual_time = has_profile(point)?;
        let mut bench = Bench::new(ctx, point, spec)?;
        let get = point.word(AxisId::Op)? == "get";
        let posting = Posting { batch, nth: 1, force: true, warp: false, inline: false, get };
        let (_, bandwidths) = bench.rate(ctx, posting)?;
        Ok(vec![bench.finish(ctx, with_share(Measurement::bandwidth(bandwidths), point))?])
    }
}

fn has_profile(point: &Point) -> Result<bool, PointError> {
    Ok(point.word(AxisId::Profile)? != "none")
}

/// Largest payload that the experiment moves.
const MOST_PAYLOAD: u64 = 32 << 20;

/// Adds the share of the profile's own link rate: the payload that fills the link is the first with 0.9.
fn with_share(measured: Measurement, point: &Point) -> Measurement {
    let link = point
        .word(AxisId::Profile)
        .ok()
        .and_then(softnic::Profile::by_name)
        .filter(|profile| profile.byte_ps > 0)
        .map(|profile| 1e3 / profile.byte_ps as f64);
    match (link, measured.best()) {
        (Some(link), Some(best)) => {
            measured.detail("share_of_profile_link", (best / link * 1e3).round() / 1e3)
        }
        _ => measured,
    }
}
