//! What a library's variant has, said before a run.

use peers::{PeerOp, RateLanes};

use crate::axes::AxisId;
use crate::experiments::Impossible;
use crate::point::Point;

use super::{operation, variant};

/// Whether a variant has the operation of the axis.
pub(in crate::experiments) fn has_operation(point: &Point) -> bool {
    let op = point.word(AxisId::Op).ok().and_then(operation);
    op.is_some_and(|op| has(point, op))
}

fn has(point: &Point, op: PeerOp) -> bool {
    variant(point).is_ok_and(|(_, variant)| variant.ops.contains(&op))
}

/// That a library's variant has a put; one of a value where there are bytes.
///
/// # Errors
/// What it lacks.
pub(in crate::experiments) fn has_put(point: &Point, value: Option<u64>) -> Result<(), Impossible> {
    let (op, sizes) = match value {
        None => (PeerOp::Put, &[] as &[u32]),
        Some(_) => {
            (PeerOp::PutValue, variant(point).map_or(&[] as &[u32], |(path, _)| path.value_bytes))
        }
    };
    let axis = if value.is_some() { AxisId::Inline } else { AxisId::Payload };
    if !has(point, op) {
        return Err(Impossible {
            axis,
            with: AxisId::Variant,
            why: format!("{} has no {} there", point.transport, op.name().replace('_', "-")),
            nearest: Vec::new(),
        });
    }
    match value {
        Some(bytes) if !sizes.iter().any(|size| u64::from(*size) == bytes) => Err(Impossible {
            axis: AxisId::Payload,
            with: AxisId::Inline,
            why: format!("{}'s put of a value has another size", point.transport),
            nearest: sizes.iter().map(ToString::to_string).collect(),
        }),
        _ => Ok(()),
    }
}

/// That a library's variant posts many, and a warp whole batches.
///
/// # Errors
/// What it lacks.
pub(in crate::experiments) fn has_rate(point: &Point) -> Result<(), Impossible> {
    let warp = point.word(AxisId::Sharing).is_ok_and(|word| word == "warp");
    let lanes = variant(point).ok().and_then(|(_, variant)| variant.rate);
    if lanes.is_none() || (warp && lanes != Some(RateLanes::Both)) {
        return Err(Impossible {
            axis: AxisId::Sharing,
            with: AxisId::Variant,
            why: format!("{} has no such batches there", point.transport),
            nearest: vec!["thread".to_owned()],
        });
    }
    if warp && !point.number(AxisId::Batch).is_ok_and(|batch| batch.is_multiple_of(32)) {
        return Err(Impossible {
            axis: AxisId::Batch,
            with: AxisId::Sharing,
            why: "a warp's batch is a multiple of 32".to_owned(),
            nearest: vec!["32".to_owned()],
        });
    }
    Ok(())
}
