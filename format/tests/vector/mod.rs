//! The files of `vectors/`, taken apart: bytes, annotated fields, and what is expected of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use oncelog_format::control::ControlRecord;
use oncelog_format::{
    CursorCopy, DecodeError, DecodeErrorKind, Footer, FrameHeader, Message, Place, SegmentHeader,
    Slot, Uuid, decode_frame, decode_lock,
};

/// Identity of the log that the vectors are of.
pub(crate) const UUID: Uuid =
    Uuid([16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]);

/// One file.
#[derive(Debug)]
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) spec: String,
    /// `ok`, or the kind and the offset of an error.
    pub(crate) expect: String,
    pub(crate) what: What,
    pub(crate) fields: Vec<Field>,
    pub(crate) bytes: Vec<u8>,
}

/// An annotated field; `value` is empty where it follows from others.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) value: String,
}

/// The structure, and what its decoder needs besides the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Lock,
    Header,
    Slot(u32),
    Frame(Place),
    FrameHeader(Place, u64),
    Footer(Place),
    Message,
    Control,
    Cursor(u32, u64),
}

pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// Read once: that takes Miri longer than most tests of them.
static ALL: LazyLock<Vec<Vector>> = LazyLock::new(read);

pub(crate) fn all() -> &'static [Vector] {
    &ALL
}

#[expect(clippy::disallowed_methods, reason = "the size of a proof is told by the environment")]
fn read() -> Vec<Vector> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .collect();
    paths.sort();
    assert!(paths.len() > 100, "the vectors are there");
    // Half of each structure's, where reading them takes a minute; a release reads all.
    let is_release = std::env::var("ONCELOG_PROOF").is_ok_and(|size| size == "release");
    let step = if cfg!(miri) && !is_release { 2 } else { 1 };
    paths.iter().step_by(step).map(|path| parse(path)).collect()
}

pub(crate) fn valid() -> Vec<&'static Vector> {
    all().iter().filter(|vector| vector.expect == "ok").collect()
}

fn parse(path: &Path) -> Vector {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let head = lines.next().unwrap().strip_prefix("# SPEC ").unwrap();
    let (spec, expect) = head.split_once(" | expect: ").unwrap();
    let what = what(lines.next().unwrap().strip_prefix("# ").unwrap());
    let (mut fields, mut bytes) = (Vec::new(), Vec::new());
    for line in lines.filter(|line| !line.starts_with('#')) {
        let mut columns = line.splitn(4, "  ");
        let at = usize::from_str_radix(columns.next().unwrap(), 16).unwrap();
        assert_eq!(at, bytes.len(), "{}: offsets follow each other", path.display());
        for byte in columns.next().unwrap().split(' ') {
            bytes.push(u8::from_str_radix(byte, 16).unwrap());
        }
        if let Some(name) = columns.next() {
            let value = columns.next().unwrap_or_default().to_owned();
            fields.push(Field { at, name: name.to_owned(), value });
        }
    }
    Vector {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        spec: spec.to_owned(),
        expect: expect.to_owned(),
        what,
        fields,
        bytes,
    }
}

fn what(line: &str) -> What {
    let mut parts = line.split(" | ");
    let structure = parts.next().unwrap();
    let mut number = |name: &str| -> u64 {
        parts.next().unwrap().strip_prefix(name).unwrap().trim().parse().unwrap()
    };
    let place = |number: &mut dyn FnMut(&str) -> u64| Place {
        salt: number("salt"),
        offset: number("offset"),
    };
    match structure {
        "lock" => What::Lock,
        "header" => What::Header,
        "slot" => What::Slot(u32::from(number("offset") != 4096)),
        "frame" => What::Frame(place(&mut number)),
        "frame-header" => What::FrameHeader(place(&mut number), number("room")),
        "footer" => What::Footer(place(&mut number)),
        "message" => What::Message,
        "control" => What::Control,
        "cursor" => {
            let index = u32::try_from(number("index")).unwrap();
            What::Cursor(index, number("copy"))
        }
        other => panic!("{other}"),
    }
}

/// Decodes everything that `bytes` hold, typed properties of a message included.
pub(crate) fn decode(what: What, bytes: &[u8]) -> Result<(), DecodeError> {
    match what {
        What::Lock => decode_lock(bytes).map(drop),
        What::Header => SegmentHeader::decode(bytes).map(drop),
        What::Slot(index) => Slot::decode(bytes, index).map(drop),
        What::Frame(place) => decode_frame(bytes, place).map(drop),
        What::FrameHeader(place, room) => FrameHeader::decode(bytes, place, room).map(drop),
        What::Footer(place) => Footer::decode(bytes, place).map(drop),
        What::Message => Message::decode(bytes)?.check_known(),
        What::Control => ControlRecord::decode(bytes).map(drop),
        What::Cursor(index, copy) => CursorCopy::decode(bytes, UUID, index, copy).map(drop),
    }
}

/// The word of SPEC 17 for an error.
pub(crate) fn word(kind: DecodeErrorKind) -> &'static str {
    match kind {
        DecodeErrorKind::Truncated { .. } => "truncated",
        DecodeErrorKind::Checksum { .. } => "checksum",
        DecodeErrorKind::Unsupported { .. } => "unsupported",
        DecodeErrorKind::Limit { .. } => "limit",
        DecodeErrorKind::Magic => "magic",
        DecodeErrorKind::Field { .. } => "field",
        DecodeErrorKind::Text { .. } => "text",
        DecodeErrorKind::Trailing { .. } => "trailing",
        other => panic!("{other:?}"),
    }
}
