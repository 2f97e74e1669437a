//! Explanations as JSON.

use std::fmt::{self, Arguments, Write};

use serde_json::{Map, Value, json};
use wire::explain::{Field, Remark, Sink};

use super::{Entry, What};

/// Version of the layout below.
const SCHEMA_VERSION: u32 = 1;

/// Collects one explanation.
#[derive(Default)]
struct Collector {
    title: String,
    segment: Option<String>,
    fields: Vec<Value>,
    remarks: Vec<Value>,
}

impl Sink for Collector {
    fn title(&mut self, text: Arguments<'_>) -> fmt::Result {
        self.title = text.to_string();
        Ok(())
    }
    fn segment(&mut self, _: usize, name: Arguments<'_>) -> fmt::Result {
        self.segment = Some(name.to_string());
        Ok(())
    }
    fn field(&mut self, field: Field<'_>) -> fmt::Result {
        let mut bytes = String::new();
        for byte in field.bytes {
            write!(bytes, "{byte:02x}")?;
        }
        self.fields.push(json!({
            "segment": self.segment,
            "offset": field.offset,
            "name": field.name,
            "bytes": bytes,
            "meaning": field.meaning.to_string(),
        }));
        Ok(())
    }
    fn remark(&mut self, kind: Remark, text: Arguments<'_>) -> fmt::Result {
        self.remarks.push(json!({ "kind": kind.name(), "text": text.to_string() }));
        Ok(())
    }
}

pub(super) fn write(entries: &[Entry], what: What, out: &mut String) -> fmt::Result {
    let mut list = Vec::new();
    for entry in entries {
        let mut collector = Collector::default();
        entry.thing.explain(&mut collector)?;
        for (kind, note) in &entry.notes {
            collector.remark(*kind, format_args!("{note}"))?;
        }
        let mut object = Map::new();
        object.insert("line".to_owned(), entry.line.into());
        object.insert("offset".to_owned(), entry.offset.into());
        object.insert("alternative".to_owned(), entry.alternative.into());
        object.insert("title".to_owned(), collector.title.into());
        object.insert("fields".to_owned(), collector.fields.into());
        object.insert("remarks".to_owned(), collector.remarks.into());
        list.push(Value::Object(object));
    }
    let whole =
        json!({ "schema_version": SCHEMA_VERSION, "what": what.to_string(), "entries": list });
    writeln!(out, "{whole:#}")
}
