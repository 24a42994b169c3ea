//! A second reader of the log's bytes, written from SPEC.md alone.
//!
//! It is simple and slow: it holds every file in memory, trusts no footer, and tries the rows of
//! SPEC 12 in their order. It shares no code with the crate, so what the two agree on is what the
//! document says. It never panics, whatever the bytes are. It does not watch a live writer: what
//! it is given stands still.

pub(crate) mod bytes;
mod cursors;
pub(crate) mod forge;
mod rows;
mod tail;

use std::collections::{BTreeMap, BTreeSet};

use tail::Around;

use bytes::{
    Footer, Frame, Header, HeaderState, LockState, Slot, SlotState, footer, footer_of, frame,
    frame_header, gaps_are_zeros, header_of, lock, magic_stands_behind, slots_of,
};

/// Where the first frame of a segment begins.
pub(crate) const FRAMES_AT: usize = 12_288;

/// What a reader concludes about a log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// There is no log; it may be created.
    Absent,
    /// Every byte behind the last kept frame is zero, or a footer states it.
    Clean,
    /// Bytes that no sync promised stand behind the last kept frame.
    Torn,
    /// Something that a sync had promised is damaged.
    Corrupt,
    /// A segment needs a newer reader.
    Unsupported,
}

/// One kept record and where it stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Kept {
    pub(crate) lsn: u64,
    pub(crate) time: u64,
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
    /// Number of the segment.
    pub(crate) segment: u64,
    /// Offset of the frame in the segment.
    pub(crate) offset: u64,
}

/// Where damage was found; a part that the row does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) segment: Option<u64>,
    pub(crate) lsn: Option<u64>,
}

/// The bytes of the tail that recovery leaves out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TornRange {
    pub(crate) segment: u64,
    /// The offset behind the last kept frame.
    pub(crate) from: u64,
    /// The offset behind the last byte that is not zero.
    pub(crate) to: u64,
}

/// All that the reference finds in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    /// The labels of the rows of SPEC 12 that applied.
    pub(crate) rows: BTreeSet<char>,
    pub(crate) degraded: bool,
    pub(crate) oldest: u64,
    pub(crate) proven: u64,
    pub(crate) last: u64,
    /// The kept records from the oldest LSN on; up to the damage when the log is corrupt.
    pub(crate) records: Vec<Kept>,
    pub(crate) corrupt: Option<Place>,
    /// The offset behind the last valid frame before the damage; rows @M and @N.
    pub(crate) corrupt_at: Option<u64>,
    pub(crate) torn: Option<TornRange>,
}

impl Finding {
    fn empty() -> Self {
        Self {
            verdict: Verdict::Clean,
            rows: BTreeSet::new(),
            degraded: false,
            oldest: 1,
            proven: 0,
            last: 0,
            records: Vec::new(),
            corrupt: None,
            corrupt_at: None,
            torn: None,
        }
    }

    fn decide(mut self, row: char, verdict: Verdict) -> Self {
        self.rows.insert(row);
        self.verdict = verdict;
        self
    }

    fn corrupt(mut self, row: char, segment: Option<u64>, lsn: Option<u64>) -> Self {
        self.corrupt = Some(Place { segment, lsn });
        self.decide(row, Verdict::Corrupt)
    }

    fn add(&mut self, row: char) {
        self.rows.insert(row);
    }

    fn degrade(&mut self, row: char) {
        self.rows.insert(row);
        self.degraded = true;
    }

    fn keep(&mut self, segment: &Segment<'_>, frames: &[Frame<'_>]) {
        for frame in frames.iter().filter(|frame| frame.lsn >= self.oldest) {
            self.records.push(Kept {
                lsn: frame.lsn,
                time: frame.time,
                kind: frame.kind,
                payload: frame.payload.to_vec(),
                segment: segment.header.number,
                offset: wide(frame.offset),
            });
        }
    }
}

/// A segment whose header is known.
struct Segment<'a> {
    file: &'a [u8],
    name: Name,
    header: Header,
    /// The header was taken from a slot.
    from_copy: bool,
    slots: [SlotState; 2],
}

impl Segment<'_> {
    fn valid_slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter_map(|slot| match slot {
            SlotState::Valid(slot) => Some(slot),
            SlotState::Zeros | SlotState::Invalid => None,
        })
    }

    /// The kept frames, and those of a batch without an end behind them; all LSNs below `limit`.
    fn frames(&self, limit: Option<u64>) -> (Vec<Frame<'_>>, Vec<Frame<'_>>) {
        let mut kept = self.valid_frames(limit);
        let count = kept.iter().rposition(|frame| frame.ends_batch).map_or(0, |at| at + 1);
        let cut = kept.split_off(count);
        (kept, cut)
    }

    /// The valid frames from the first one on, each LSN the one before plus one, below `limit`.
    fn valid_frames(&self, limit: Option<u64>) -> Vec<Frame<'_>> {
        let mut frames = Vec::new();
        let mut offset = FRAMES_AT;
        let mut lsn = self.header.first_lsn;
        let mut time = self.header.base_time;
        while limit.is_none_or(|limit| lsn < limit) {
            let Some(found) = frame(self.file, offset, self.header.salt, lsn, time) else { break };
            offset = found.end;
            time = found.time;
            frames.push(found);
            let Some(next) = lsn.checked_add(1) else { break };
            lsn = next;
        }
        frames
    }
}

/// The two numbers in the name of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Name {
    number: u64,
    first_lsn: u64,
}

impl Name {
    /// Parses a segment's name; SPEC 4. Only the one spelling that a writer uses is one.
    fn parse(name: &str) -> Option<Self> {
        let (number, first_lsn) = name.strip_suffix(".seg")?.split_once('-')?;
        let parsed = Self { number: number.parse().ok()?, first_lsn: first_lsn.parse().ok()? };
        let spelled = format!("{:010}-{:020}.seg", parsed.number, parsed.first_lsn);
        (spelled == name).then_some(parsed)
    }
}

/// Judges the log whose directory holds `files` and whose `LOCK` holds `lock_bytes`.
pub(crate) fn judge(files: &[(String, Vec<u8>)], lock_bytes: Option<&[u8]>) -> Finding {
    let mut finding = Finding::empty();
    let named = classify(files, &mut finding);
    let lock_state = lock_bytes.map_or(LockState::WithoutUuid, lock);
    // Row @D, before everything else.
    if named.iter().any(|(_, file)| matches!(header_of(file).0, HeaderState::Unsupported)) {
        return finding.decide('D', Verdict::Unsupported);
    }
    // Rows @A to @C.
    let uuid = match (named.is_empty(), lock_state) {
        (true, LockState::WithoutUuid) => return finding.decide('A', Verdict::Absent),
        (true, LockState::Uuid(_)) => return finding.corrupt('B', None, None),
        (_, LockState::Damaged) => return finding.corrupt('C', None, None),
        (false, LockState::WithoutUuid) => None,
        (false, LockState::Uuid(uuid)) => Some(uuid),
    };
    let segments = match read_segments(&named, uuid, &mut finding) {
        Ok(segments) => segments,
        Err(Stop { row, segment }) => return finding.corrupt(row, Some(segment), None),
    };
    let mut finding = judge_segments(&segments, uuid.is_some(), finding);
    let uuid = uuid.or_else(|| segments.first().map(|segment| segment.header.uuid));
    let cursors = files.iter().find(|(name, _)| name == "CURSORS");
    if let (Some((_, file)), Some(uuid)) = (cursors, uuid)
        && matches!(finding.verdict, Verdict::Clean | Verdict::Torn)
        && cursors::is_degraded(file, uuid, finding.last)
    {
        finding.degrade('Y');
    }
    finding
}

/// Every record that stands whole in a file, also one that was trimmed, by its LSN; for logs that
/// are sound.
pub(crate) fn every_record(files: &[(String, Vec<u8>)]) -> BTreeMap<u64, Kept> {
    let mut finding = Finding::empty();
    for (name, file) in files {
        let (Some(name), (HeaderState::Valid(header), from_copy)) =
            (Name::parse(name), header_of(file))
        else {
            continue;
        };
        let slots = slots_of(file, &header);
        let segment = Segment { file, name, header, from_copy, slots };
        let (frames, cut) = segment.frames(None);
        finding.keep(&segment, &frames);
        finding.keep(&segment, &cut);
    }
    finding.records.into_iter().map(|record| (record.lsn, record)).collect()
}

/// Judges one segment without its log: rows @D to @F and @N to @V.
pub(crate) fn judge_alone(file: &[u8]) -> Finding {
    let mut finding = Finding::empty();
    let (header, from_copy) = match header_of(file) {
        (HeaderState::Unsupported, _) => return finding.decide('D', Verdict::Unsupported),
        (HeaderState::Invalid, _) => return finding.corrupt('E', None, None),
        (HeaderState::Valid(header), from_copy) => (header, from_copy),
    };
    let name = Name { number: header.number, first_lsn: header.first_lsn };
    let slots = slots_of(file, &header);
    let segment = Segment { file, name, header, from_copy, slots };
    if from_copy {
        finding.degrade('F');
    }
    judge_slots(&segment, &mut finding);
    let stated = segment.valid_slots().map(|slot| slot.oldest_lsn).max();
    finding.oldest = segment.header.first_lsn.max(stated.unwrap_or(1));
    tail::judge_tail(&segment, Around { has_uuid: true, trimmed: 0 }, finding)
}

/// Splits names into segments, spares and strays: rows @W and @X.
fn classify<'a>(files: &'a [(String, Vec<u8>)], finding: &mut Finding) -> Vec<(Name, &'a [u8])> {
    let mut named = Vec::new();
    for (name, file) in files {
        if let Some(parsed) = Name::parse(name) {
            named.push((parsed, file.as_slice()));
        } else if name.ends_with(".spare") {
            finding.add('W');
        } else if name != "LOCK" && name != "CURSORS" {
            finding.add('X');
        }
    }
    named.sort_by_key(|(name, _)| (name.number, name.first_lsn));
    named
}

/// A row that ends the reading, and the number in the name of the segment that it is about.
struct Stop {
    row: char,
    segment: u64,
}

/// Rows @E to @H, each over all segments before the next.
fn read_segments<'a>(
    named: &[(Name, &'a [u8])],
    uuid: Option<[u8; 16]>,
    finding: &mut Finding,
) -> Result<Vec<Segment<'a>>, Stop> {
    let states: Vec<_> = named.iter().map(|&(name, file)| (name, file, header_of(file))).collect();
    let stop_at = |row, name: &Name| Err(Stop { row, segment: name.number });
    let mut segments = Vec::new();
    let mut headless = Vec::new();
    for (name, file, (state, from_copy)) in states {
        let HeaderState::Valid(header) = state else {
            headless.push(name);
            continue;
        };
        let slots = slots_of(file, &header);
        segments.push(Segment { file, name, header, from_copy, slots });
    }
    let is_named_so = |segment: &Segment<'_>| {
        let Segment { name, header, .. } = segment;
        name.number == header.number && name.first_lsn == header.first_lsn
    };
    let named_so = segments.iter().find(|segment| is_named_so(segment));
    let expected = uuid.or_else(|| named_so.map(|segment| segment.header.uuid));
    let is_ours = |segment: &Segment<'_>| Some(segment.header.uuid) == expected;
    let (segments, unplaced): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|segment| is_named_so(segment) && is_ours(segment));
    let oldest = oldest_of(&segments);
    let is_trimmed = |name: &Name| {
        let behind =
            |s: &Segment<'_>| s.header.number > name.number && s.header.first_lsn <= oldest;
        segments.iter().any(behind)
    };
    if let Some(name) = headless.iter().find(|name| !is_trimmed(name)) {
        return stop_at('E', name);
    }
    let left_from_copy = |segment: &Segment<'_>| segment.from_copy && !is_trimmed(&segment.name);
    if segments.iter().any(left_from_copy) {
        finding.degrade('F');
    }
    let is_moved_here = |segment: &Segment<'_>| {
        let Header { salt, number, first_lsn, .. } = segment.header;
        let first = frame_header(segment.file, FRAMES_AT, salt);
        let mut slots = segment.valid_slots();
        let has_held = first.is_some_and(|first| first.lsn == first_lsn)
            || slots.any(|slot| slot.counter > 1 || slot.durable_lsn >= first_lsn);
        let is_beyond = segments.iter().all(|placed| placed.header.number < number);
        uuid.is_none() || has_held && (!is_ours(segment) || is_beyond)
    };
    let foreign = unplaced.iter().find(|s| !is_trimmed(&s.name) || is_moved_here(s));
    if let Some(foreign) = foreign {
        if foreign.from_copy {
            finding.degrade('F');
        }
        return stop_at('G', &foreign.name);
    }
    if !headless.is_empty() || !unplaced.is_empty() {
        finding.add('I');
    }
    for (before, after) in segments.iter().zip(segments.iter().skip(1)) {
        let in_order = before.header.number < after.header.number
            && before.header.first_lsn <= after.header.first_lsn;
        if !in_order {
            return stop_at('H', &after.name);
        }
    }
    Ok(segments)
}

/// Rows @I to @M; then the tail.
fn judge_segments(segments: &[Segment<'_>], has_uuid: bool, mut finding: Finding) -> Finding {
    finding.oldest = oldest_of(segments);
    let successors = segments.iter().skip(1);
    let leftover_count =
        successors.take_while(|successor| successor.header.first_lsn <= finding.oldest).count();
    if leftover_count > 0 {
        finding.add('I');
    }
    let Some(([sealed @ .., tail], first)) =
        segments.get(leftover_count..).and_then(|left| Some((left, left.first()?)))
    else {
        return finding;
    };
    for segment in segments.iter().skip(leftover_count) {
        judge_slots(segment, &mut finding);
    }
    if first.header.first_lsn > finding.oldest {
        let (number, oldest) = (first.header.number, finding.oldest);
        return finding.corrupt('J', Some(number), Some(oldest));
    }
    for (segment, successor) in sealed.iter().zip(segments.iter().skip(leftover_count + 1)) {
        if let Some(missing) = judge_sealed(segment, successor.header.first_lsn, &mut finding) {
            return finding.corrupt('M', Some(segment.header.number), Some(missing));
        }
    }
    let trimmed = finding.oldest.saturating_sub(1);
    tail::judge_tail(tail, Around { has_uuid, trimmed }, finding)
}

/// The oldest LSN.
fn oldest_of(segments: &[Segment<'_>]) -> u64 {
    let slots = segments.iter().flat_map(Segment::valid_slots);
    slots.map(|slot| slot.oldest_lsn).max().unwrap_or(1)
}

/// Row @V.
fn judge_slots(segment: &Segment<'_>, finding: &mut Finding) {
    if !gaps_are_zeros(segment.file) || segment.slots.contains(&SlotState::Invalid) {
        finding.degrade('V');
    }
}

/// Rows @K to @M; the answer is the first LSN that is missing.
fn judge_sealed(segment: &Segment<'_>, limit: u64, finding: &mut Finding) -> Option<u64> {
    let (frames, cut) = segment.frames(Some(limit));
    finding.keep(segment, &frames);
    let next = frames.last().map_or(segment.header.first_lsn, |frame| frame.lsn.saturating_add(1));
    if let Some(last) = next.checked_sub(1) {
        finding.last = last;
        finding.proven = last;
    }
    let end = frames.last().map_or(FRAMES_AT, |frame| frame.end);
    if next < limit {
        finding.corrupt_at = Some(wide(cut.last().map_or(end, |frame| frame.end)));
        return Some(next);
    }
    let found: Option<Footer> = footer(segment.file, &segment.header);
    if found.is_none_or(|found| found != footer_of(&segment.header, &frames, &found)) {
        finding.add('K');
        finding.degraded |= magic_stands_behind(segment.file, end);
    }
    finding.add('L');
    None
}

/// A size in memory as the u64 that it is on disk.
fn wide(size: usize) -> u64 {
    size as u64
}
