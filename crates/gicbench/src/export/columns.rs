//! How a point's parameters and a row's numbers are written, alike in table and CSV.

use serde_json::Value as Json;

use crate::axes::{AXES, AxisId, Domain};
use crate::quantity::Bytes;
use crate::record::PointId;

/// Names of the axes, in the order of columns.
pub(super) fn axis_names() -> impl Iterator<Item = &'static str> {
    AXES.iter().map(|axis| axis.name)
}

/// A parameter as plain text; none where the point doesn't have it.
pub(super) fn plain(point: &PointId, name: &str) -> Option<String> {
    match point.parameters.get(name)? {
        Json::Null => None,
        Json::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// A parameter for people: sizes with K, M and G.
pub(super) fn pretty(point: &PointId, name: &str) -> Option<String> {
    let sized = AxisId::by_name(name)
        .is_some_and(|axis| matches!(axis.spec().domain, Domain::Bytes { .. }));
    match point.parameters.get(name)?.as_u64() {
        Some(bytes) if sized => Some(Bytes(bytes).to_string()),
        _ => plain(point, name),
    }
}
