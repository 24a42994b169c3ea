//! Messages of a vchannel that belongs to no collection, as rows: LSN, time tick, type, payload.
//!
//! A payload that is UTF-8 is told as text, any other as hexadecimal digits in a column of its own.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt64Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use oncelog_format::message::{Message, MessageType, TimeTick, Vchannel};

use super::output::Output;
use super::sink::Sink;
use super::visible::{Channels, damaged, decoded};
use super::{ReplayReport, undecoded};
use crate::error::Result;
use crate::io::Io;
use crate::lsn::Lsn;

/// Messages that are collected before they are written.
const STEP_MESSAGES: usize = 1024;

/// Writes the messages of a vchannel, in the order of its pchannel.
pub(crate) fn replay(
    channels: &super::ViewChannels,
    vchannel: &str,
    io: &Arc<dyn Io>,
    target: &Path,
) -> Result<ReplayReport> {
    let format = Sink::format_of(target)?;
    let output = Output::create(io, target)?;
    let mut rows = Rows::new();
    let mut sink = Sink::open(format, output, &rows.schema)?;
    let mut report = ReplayReport::default();
    for pchannel in channels.names() {
        let mut messages = channels.read(pchannel, None)?;
        while let Some((lsn, record)) = messages.next()? {
            let message = decoded(&record, lsn)?;
            let name = message.property::<Vchannel>().map_err(|e| damaged(lsn, e))?;
            if name.is_none_or(|name| name.0 != vchannel) {
                continue;
            }
            rows.push(lsn, &message)?;
            report.rows += 1;
            if rows.count == STEP_MESSAGES {
                sink.write(&rows.take()?)?;
            }
        }
        report.lost_messages += messages.lost_count(vchannel);
    }
    sink.write(&rows.take()?)?;
    sink.finish()?;
    Ok(report)
}

struct Rows {
    schema: SchemaRef,
    count: usize,
    lsn: UInt64Builder,
    time_tick: UInt64Builder,
    kind: StringBuilder,
    text: StringBuilder,
    hex: StringBuilder,
}

impl Rows {
    fn new() -> Self {
        let field = |name: &str, kind: DataType| Field::new(name, kind, true);
        let schema = Schema::new(vec![
            field("lsn", DataType::UInt64),
            field("time_tick", DataType::UInt64),
            field("type", DataType::Utf8),
            field("payload", DataType::Utf8),
            field("payload_hex", DataType::Utf8),
        ]);
        Self {
            schema: Arc::new(schema),
            count: 0,
            lsn: UInt64Builder::new(),
            time_tick: UInt64Builder::new(),
            kind: StringBuilder::new(),
            text: StringBuilder::new(),
            hex: StringBuilder::new(),
        }
    }

    fn push(&mut self, lsn: Lsn, message: &Message<'_>) -> Result<()> {
        let tick = message.property::<TimeTick>().map_err(|e| damaged(lsn, e))?;
        let kind = message.property::<MessageType>().map_err(|e| damaged(lsn, e))?;
        self.lsn.append_value(lsn.get());
        self.time_tick.append_option(tick.map(|tick| tick.0));
        self.kind.append_option(kind.map(|kind| kind.0));
        match std::str::from_utf8(message.payload()) {
            Ok(text) => {
                self.text.append_value(text);
                self.hex.append_null();
            }
            Err(_) => {
                self.text.append_null();
                self.hex.append_value(hex(message.payload()));
            }
        }
        self.count += 1;
        Ok(())
    }

    fn take(&mut self) -> Result<RecordBatch> {
        self.count = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.lsn.finish()),
            Arc::new(self.time_tick.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.text.finish()),
            Arc::new(self.hex.finish()),
        ];
        RecordBatch::try_new(self.schema.clone(), columns).map_err(undecoded)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}
