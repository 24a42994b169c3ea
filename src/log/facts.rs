//! What a directory and the ends of its segments say, before anything is concluded from it.
//!
//! A few small reads a segment: header, slots, footer. Frames are [`super::scan`]'s matter.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use oncelog_format::limits::{self, ALIGNMENT, FRAMES_OFFSET};
use oncelog_format::lock::{LOCK_CONTENT_LEN, LOCK_UNFINISHED};
use oncelog_format::{
    DecodeError, DecodeErrorKind, Footer, FrameHeader, Owner, Place, SegmentHeader, Slot, Uuid,
    decode_lock, encode_lock, parse_segment_name,
};

use super::decision::{Head, HeaderFound};
use crate::error::{Error, Result};
use crate::io::{EntryKind, Io, IoFile, OpenHow};

/// Name of the file that is locked and holds the identity.
pub(crate) const LOCK_NAME: &str = "LOCK";
/// Name of the file that holds the cursors.
pub(crate) const CURSORS_NAME: &str = "CURSORS";
/// Why nothing is made in a directory.
pub(crate) const NOT_FREE: &str = "the directory holds something else";
/// Bytes at the begin of an identity that say whose it is.
const MAGIC_LEN: usize = 8;
/// What the name of a spare ends in.
pub(crate) const SPARE_SUFFIX: &str = ".spare";

/// Whether a name is that of the directory in which a file system keeps what a check of it has
/// found: a directory with nothing else, the root of a volume, is as good as empty.
pub(crate) fn is_lost_found(name: &OsStr) -> bool {
    name == "lost+found"
}

/// The names in a directory, by what they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub(crate) lock: bool,
    pub(crate) cursors: bool,
    /// Names of segments, in the order of their numbers.
    pub(crate) segments: Vec<String>,
    pub(crate) spares: Vec<OsString>,
    pub(crate) strays: Vec<OsString>,
}

impl Listing {
    pub(crate) fn read(io: &dyn Io, dir: &Path) -> io::Result<Self> {
        let mut listing = Self::default();
        for entry in io.list(dir)? {
            let file = entry.kind == EntryKind::File;
            match entry.name.to_str() {
                Some(LOCK_NAME) if file => listing.lock = true,
                Some(CURSORS_NAME) if file => listing.cursors = true,
                Some(name) if file && parse_segment_name(name).is_some() => {
                    listing.segments.push(name.to_owned());
                }
                Some(name) if file && name.ends_with(SPARE_SUFFIX) => {
                    listing.spares.push(entry.name);
                }
                _ => listing.strays.push(entry.name),
            }
        }
        listing.segments.sort_by_cached_key(|name| parse_segment_name(name));
        listing.spares.sort();
        listing.strays.sort();
        Ok(listing)
    }

    /// Whether nothing stands in the directory, or only what the making of a log may leave there
    /// before the first segment has its name.
    pub(crate) fn is_nothing(&self) -> bool {
        let is_empty = self.segments.is_empty() && !self.cursors;
        is_empty && self.strays.iter().all(|name| is_lost_found(name))
    }
}

/// What `LOCK` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockFacts {
    /// The file is not there, is too short, or holds zeros.
    NoIdentity,
    /// It is too short, and no making and no cut copy leaves these bytes: a log or a store may have
    /// lost its lock file to them, but beside nothing else the file is another program's.
    Foreign,
    Identity(Owner, Uuid),
    /// A backup into the directory was not finished.
    Unfinished,
    Damaged(DecodeError),
}

impl LockFacts {
    pub(crate) fn of(file: &dyn IoFile) -> io::Result<Self> {
        let mut content = [0; LOCK_CONTENT_LEN];
        let read = file.read_full_at(&mut content, 0)?;
        Ok(match decode_lock(content.get(..read).unwrap_or_default()) {
            Err(_) if content == LOCK_UNFINISHED => Self::Unfinished,
            Ok(None) if !is_left_of_lock(content.get(..read).unwrap_or_default()) => Self::Foreign,
            Ok(None) => Self::NoIdentity,
            Ok(Some((owner, uuid))) => Self::Identity(owner, uuid),
            Err(e) => Self::Damaged(e),
        })
    }

    /// Where the content is neither zeros nor valid, and what it is.
    pub(crate) fn damage(&self) -> Option<(u64, String)> {
        match self {
            Self::NoIdentity | Self::Foreign | Self::Identity(..) => None,
            Self::Unfinished => Some((0, "the mark of a backup that was not finished".to_owned())),
            Self::Damaged(e) => Some((u64::try_from(e.at).unwrap_or(u64::MAX), e.to_string())),
        }
    }

    pub(crate) fn read(io: &dyn Io, dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK_NAME);
        let facts = io.open(&path, OpenHow::Read).and_then(|file| Self::of(&*file));
        facts.map_err(|e| Error::io("cannot read the lock file", &path, e))
    }
}

/// Whether bytes without an identity are zeros, or what one begins with.
fn is_left_of_lock(bytes: &[u8]) -> bool {
    let begins = |owner| {
        let magic = encode_lock(owner, Uuid([0; 16])).into_iter().take(MAGIC_LEN);
        magic.zip(bytes).all(|(stated, byte)| stated == *byte)
    };
    bytes.iter().all(|byte| *byte == 0) || begins(Owner::Log) || begins(Owner::Store)
}

/// What stands in the place of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotFacts {
    Zeros,
    Valid(Slot),
    /// A valid slot of another segment.
    Foreign,
    Damaged(DecodeError),
}

/// What stands at the end of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FooterFacts {
    Absent,
    /// Consistent in itself. [`SegmentFacts`] leave its entries out, so that memory does not grow
    /// with the log.
    Valid(Footer),
    Damaged(DecodeError),
}

/// The first and last bytes of a segment, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFacts {
    pub(crate) path: PathBuf,
    /// Number and first LSN in the name.
    pub(crate) named: Option<(u64, u64)>,
    /// The header, or a slot's copy of it.
    pub(crate) header: std::result::Result<SegmentHeader, DecodeError>,
    /// Why the header itself is not valid, where a copy stands in.
    pub(crate) header_damage: Option<DecodeError>,
    pub(crate) slots: [SlotFacts; 2],
    /// The header of its first frame is valid: it has held a record.
    pub(crate) begun: bool,
    pub(crate) size: u64,
    pub(crate) footer: FooterFacts,
}

impl SegmentFacts {
    pub(crate) fn read(io: &dyn Io, path: &Path) -> Result<Self> {
        Self::read_from(io, path).map_err(|e| Error::io("cannot read the segment", path, e))
    }

    fn read_from(io: &dyn Io, path: &Path) -> io::Result<Self> {
        let file = io.open(path, OpenHow::Read)?;
        // One read for header and slots, and one for the footer: a log has many segments.
        let mut head = [0; HEAD_LEN];
        let read = file.read_full_at(&mut head, 0)?;
        let head = head.get(..read).unwrap_or_default();
        let mut header = SegmentHeader::decode(head.get(..SegmentHeader::LEN).unwrap_or(head));
        let mut slots = [slot_in(head, 0), slot_in(head, 1)];
        let mut header_damage = None;
        if let Err(e) = header
            && !is_unsupported(&e)
            && let Some(slot) = newest(&slots)
        {
            (header, header_damage) = (Ok(slot.header), Some(e));
        }
        if let Ok(header) = &header {
            for slot in &mut slots {
                if matches!(slot, SlotFacts::Valid(slot) if slot.header != *header) {
                    *slot = SlotFacts::Foreign;
                }
            }
        }
        let size = file.len()?;
        let begun = header.is_ok_and(|header| is_begun(head, &header, size));
        let mut footer = match &header {
            Ok(header) => footer_of(&*file, header, size)?,
            Err(_) => FooterFacts::Absent,
        };
        if let FooterFacts::Valid(footer) = &mut footer {
            footer.entries = Vec::new();
        }
        let named = path.file_name().and_then(|name| parse_segment_name(name.to_str()?));
        Ok(Self { path: path.to_owned(), named, header, header_damage, slots, begun, size, footer })
    }

    /// The number in the header, or in the name where the header is damaged.
    pub(crate) fn number(&self) -> u64 {
        self.header.map_or_else(|_| self.named.map_or(0, |(number, _)| number), |h| h.number)
    }

    /// What the begin of the segment says; `uuid` is that of the log where one is known, and
    /// `trimmed` what the name and the segments after it say.
    pub(crate) fn head(&self, uuid: Option<Uuid>, trimmed: bool) -> Head {
        let header = match self.header {
            _ if self.is_unsupported() => HeaderFound::Unsupported,
            Ok(_) if self.header_damage.is_none() => HeaderFound::Valid,
            Ok(_) | Err(_) => HeaderFound::Invalid,
        };
        Head {
            header,
            // Its copy stands in.
            slot: self.header_damage.is_some(),
            trimmed,
            named: self.header.is_ok_and(|header| self.is_named_as(&header)),
            ours: self.is_of(uuid),
        }
    }

    /// Whether the name of the segment, where it has one, agrees with a header.
    pub(crate) fn is_named_as(&self, header: &SegmentHeader) -> bool {
        self.named.is_none_or(|named| named == (header.number, header.first_lsn))
    }

    fn is_of(&self, uuid: Option<Uuid>) -> bool {
        self.header.is_ok_and(|header| uuid.is_none_or(|uuid| uuid == header.uuid))
    }

    /// Whether somebody moved the file to where its name says that it was trimmed, which no crash
    /// does: it has held records, of another log or of a segment above `last`, the greatest number
    /// of the log. Of every file with a header, where the log's UUID is not known for sure
    /// (`None`).
    pub(crate) fn is_moved_here(&self, uuid: Option<Uuid>, last: u64) -> bool {
        let Ok(header) = self.header else { return false };
        let has_held = |slot: &Slot| slot.counter > 1 || slot.durable_lsn >= header.first_lsn;
        let has_held = self.begun || self.valid_slots().any(has_held);
        uuid.is_none_or(|uuid| has_held && (uuid != header.uuid || header.number > last))
    }

    /// The valid slot with the greatest counter.
    pub(crate) fn newest_slot(&self) -> Option<Slot> {
        newest(&self.slots)
    }

    /// Whether the newest slot alone states the oldest LSN. That is so between the two writes of a
    /// trim, and when the first of them failed: it may be in the cache and not on the disk, and
    /// nothing was removed for it.
    pub(crate) fn is_trim_unproven(&self) -> bool {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::TrimTakenAsFound) {
            return false;
        }
        self.newest_slot().is_some_and(|newest| {
            let is_other = |slot: &&Slot| slot.counter != newest.counter;
            let other = self.valid_slots().find(is_other).map_or(1, |slot| slot.oldest_lsn);
            newest.counter > 1 && other < newest.oldest_lsn
        })
    }

    pub(crate) fn valid_slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter_map(|slot| match slot {
            SlotFacts::Valid(slot) => Some(slot),
            _ => None,
        })
    }

    pub(crate) fn is_unsupported(&self) -> bool {
        self.header.is_err_and(|e| is_unsupported(&e))
    }
}

/// The oldest LSN that the segments of a log state at this moment. Files that go meanwhile, and
/// what cannot be read, say nothing.
pub(crate) fn oldest_stated(io: &dyn Io, dir: &Path, uuid: Option<Uuid>) -> u64 {
    let names = Listing::read(io, dir).unwrap_or_default().segments;
    let read = |name: &String| SegmentFacts::read(io, &dir.join(name)).ok();
    // A removed file whose name came back may hold anything.
    let ours = |facts: &SegmentFacts| {
        facts.is_of(uuid) && facts.header.is_ok_and(|h| facts.is_named_as(&h))
    };
    let oldest = |facts: SegmentFacts| facts.valid_slots().map(|slot| slot.oldest_lsn).max();
    names.iter().filter_map(read).filter(ours).filter_map(oldest).max().unwrap_or(1)
}

fn is_unsupported(e: &DecodeError) -> bool {
    matches!(e.kind, DecodeErrorKind::Unsupported { .. })
}

fn newest(slots: &[SlotFacts; 2]) -> Option<Slot> {
    let valid = slots.iter().filter_map(|slot| match slot {
        SlotFacts::Valid(slot) => Some(*slot),
        _ => None,
    });
    valid.max_by_key(|slot| slot.counter)
}

/// Whether the first frame of a segment has a valid header.
fn is_begun(head: &[u8], header: &SegmentHeader, size: u64) -> bool {
    let at = usize::try_from(FRAMES_OFFSET).unwrap_or(usize::MAX);
    let place = Place { salt: header.salt, offset: FRAMES_OFFSET };
    let room = size.saturating_sub(FRAMES_OFFSET);
    let frame = FrameHeader::decode(head.get(at..).unwrap_or_default(), place, room);
    frame.is_ok_and(|frame| frame.lsn == header.first_lsn)
}

/// A slot of the first bytes of a segment.
fn slot_in(head: &[u8], index: u32) -> SlotFacts {
    let offset = usize::try_from(Slot::offset_of(index)).unwrap_or(usize::MAX);
    let bytes = head.get(offset..).unwrap_or_default();
    let bytes = bytes.get(..Slot::LEN).unwrap_or(bytes);
    // The second slot is written before the segment has its name.
    if index == 0 && bytes == [0; Slot::LEN] {
        return SlotFacts::Zeros;
    }
    match Slot::decode(bytes, index) {
        Ok(slot) => SlotFacts::Valid(slot),
        Err(e) => SlotFacts::Damaged(e),
    }
}

/// Bytes from the start of a segment to after the header of its first frame.
const HEAD_LEN: usize = 12_288 + FrameHeader::LEN;
/// Bytes at the end of a file that tell whether a footer may end there.
const END_LEN: usize = 16;

/// The footer that ends a segment of `size` bytes, if one does.
pub(crate) fn footer_of(
    file: &dyn IoFile,
    header: &SegmentHeader,
    size: u64,
) -> io::Result<FooterFacts> {
    // With as many entries as its writer makes, it is within this.
    let entries = (size / limits::FOOTER_STRIDE_BYTES).saturating_add(1).saturating_mul(24);
    let most = entries.saturating_add(96).min(u64::from(limits::FOOTER_LEN_MAX));
    let from = size.saturating_sub(most).max(FRAMES_OFFSET);
    let Some(most) = size.checked_sub(from) else { return Ok(FooterFacts::Absent) };
    let mut end = vec![0; usize::try_from(most).unwrap_or(0)];
    if file.read_full_at(&mut end, from)? < end.len() {
        return Ok(FooterFacts::Absent);
    }
    let Some(last) = end.last_chunk::<END_LEN>() else { return Ok(FooterFacts::Absent) };
    let Some(len) = Footer::len_from_tail(last) else { return Ok(FooterFacts::Absent) };
    let offset = size.checked_sub(u64::from(len));
    let offset = offset.filter(|&o| o >= FRAMES_OFFSET && o.is_multiple_of(ALIGNMENT));
    let Some(offset) = offset else { return Ok(FooterFacts::Absent) };
    // The length is within its limit and within the file.
    let len = usize::try_from(len).unwrap_or(0);
    let mut bytes = end.split_off(end.len().saturating_sub(len));
    if bytes.len() < len {
        bytes.resize(len, 0);
        let read = file.read_full_at(&mut bytes, offset)?;
        bytes.truncate(read);
    }
    Ok(match Footer::decode(&bytes, Place { salt: header.salt, offset }) {
        Ok(footer) => FooterFacts::Valid(footer),
        Err(e) => FooterFacts::Damaged(e),
    })
}
