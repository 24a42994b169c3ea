//! Rows @N to @V of SPEC 12: what the last segment says.

use super::bytes::{footer, footer_of, frame_header};
use super::{FRAMES_AT, Finding, Segment, TornRange, Verdict, wide};

/// What the log around a tail says.
#[derive(Clone, Copy)]
pub(super) struct Around {
    /// `LOCK` holds a UUID.
    pub(super) has_uuid: bool,
    /// The records up to here have to be there, kept or trimmed.
    pub(super) trimmed: u64,
}

/// Judges the last segment; `finding` holds what the segments before it said.
pub(super) fn judge_tail(tail: &Segment<'_>, around: Around, mut finding: Finding) -> Finding {
    let before = tail.header.first_lsn - 1;
    let (kept, cut) = tail.frames(None);
    let end = kept.last().map_or(FRAMES_AT, |frame| frame.end);

    let stated_by_kept = kept.iter().filter_map(|frame| frame.witness);
    let stated_by_slots = tail.valid_slots().map(|slot| slot.durable_lsn);
    finding.proven = stated_by_kept
        .chain(stated_by_slots)
        .chain(witnesses_in_dead_bytes(tail, end))
        .fold(before, u64::max);
    finding.last = kept.last().map_or(before, |frame| frame.lsn);
    finding.keep(tail, &kept);

    let traceless = kept.is_empty() && tail.valid_slots().next().is_none();
    if finding.last < finding.proven || finding.last < around.trimmed || traceless {
        let missing = finding.last + 1;
        finding.corrupt_at = Some(wide(cut.last().map_or(end, |frame| frame.end)));
        return finding.corrupt('N', Some(tail.header.number), Some(missing));
    }
    if finding.last > finding.proven {
        finding.add('U');
    }
    if !cut.is_empty() {
        finding.add('O');
    }

    let rest = tail.file.get(end..).unwrap_or_default();
    let in_use = rest.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    let sealed = footer(tail.file, &tail.header)
        .filter(|footer| footer.last_lsn == finding.last && footer.end == wide(end));
    if let Some(found) = sealed.filter(|_| cut.is_empty()) {
        if found != footer_of(&tail.header, &kept, &found) {
            finding.degrade('K');
        }
        return finding.decide('P', Verdict::Clean);
    }
    if !around.has_uuid && kept.is_empty() {
        finding.add('S');
    }
    if in_use > 0 {
        finding.torn = Some(TornRange {
            segment: tail.header.number,
            from: wide(end),
            to: wide(end + in_use),
        });
        return finding.decide('Q', Verdict::Torn);
    }
    if kept.is_empty() && tail.valid_slots().all(|slot| slot.counter <= 1) {
        finding.add('T');
    }
    finding.decide('R', Verdict::Clean)
}

/// What valid frame headers from `from` to the physical end state.
fn witnesses_in_dead_bytes(tail: &Segment<'_>, from: usize) -> impl Iterator<Item = u64> {
    let header = &tail.header;
    (from..tail.file.len()).step_by(8).filter_map(move |offset| {
        let found = frame_header(tail.file, offset, header.salt)?;
        let fit = wide(offset.checked_sub(FRAMES_AT)? / 32);
        let possible = found.lsn >= header.first_lsn && found.lsn - header.first_lsn <= fit;
        if possible { found.witness } else { None }
    })
}
