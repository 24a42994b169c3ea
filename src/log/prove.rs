//! What an open makes good before it serves anything: records that no witness vouches for, and a
//! trim that one slot alone states (SPEC section 10, open, step 4).
//!
//! Both are written again, same bytes, same place, and synced. A file system that copies on write
//! needs space even for that. Records that cannot be written again keep the log from being opened,
//! once everything that may go for them has gone; a trim that cannot waits, with what it left.

use std::io;
use std::path::Path;
use std::sync::Arc;

use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{FooterEntry, FrameHeader, Place, Slot};

use super::dir::{Fault, refusal};
use super::finding::{Finding, FindingKind, Severity};
use super::options::Options;
use super::reserve::RESERVE_NAME;
use super::scan::Window;
use super::survey::{self, Segment, Survey, TailState};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Io, IoFile, OpenHow};

/// Bytes that are written again at a time.
const COPY_LEN: usize = 1 << 20;

type Done = std::result::Result<(), Fault>;

/// A log of which every record that it holds is durable.
pub(super) struct Proven {
    /// The tail.
    pub(super) file: Arc<dyn IoFile>,
    pub(super) survey: Survey,
    /// There was no space to write the slot again that states the oldest LSN: it may not be on the
    /// disk, and nothing may go that relies on it.
    pub(super) is_trim_refused: bool,
}

/// The tail, opened, with no record in it that is not durable, and no trim but one that is refused.
///
/// What a failed sync left in the cache says nothing of the disk, and it is not enough to write it
/// again: ext4 takes a block that it failed to write for written as long as it is cached, and after
/// a later write and sync, both of which return well, the disk still says that it is not. So it is
/// dropped first. The description is older than that, so that its sync tells of what is not
/// dropped.
///
/// # Errors
///
/// `Corrupt` where the disk holds less than the cache; `StoreFull`, `Io`: nothing has changed.
pub(super) fn prove(path: &Path, options: &Options, survey: Survey) -> Result<Proven> {
    let (segment, judged) = tail_of(path, &survey)?;
    let tail = segment.facts.path.clone();
    let file = options.io.open(&tail, OpenHow::ReadWrite);
    let file = file.map_err(|e| Error::io("cannot open the segment", &tail, e))?;
    let evict = |from| {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::CacheKept) {
            return Ok(());
        }
        let dropped = file.evict(from..u64::MAX);
        dropped.map_err(|e| Error::io("cannot drop the segment from the cache", &tail, e))
    };
    if survey.last <= survey.proven && !segment.facts.is_trim_unproven() {
        // Zeros that a failed sync left look as any.
        if judged.state == TailState::Clean {
            evict(segment.end)?;
        }
        return Ok(Proven { file, survey, is_trim_refused: false });
    }
    evict(0)?;
    let mut survey = survey.look_at_tail_again(&*options.io, options.check)?;
    if let Some(damage) = survey.damage() {
        return Err(damage.to_error());
    }
    let (segment, judged) = tail_of(path, &survey)?;
    let io = &*options.io;
    // The trim first: what it left may be the only space for the records.
    let mut is_trim_refused = false;
    if segment.facts.is_trim_unproven() {
        let stated = with_room(|| state_again(&*file, segment), || free_reserve(io, path));
        match stated {
            Err(Fault::Refused(e)) if e.kind() == ErrorKind::StoreFull => is_trim_refused = true,
            stated => stated.map_err(Fault::into_error)?,
        }
    }
    if survey.last > survey.proven {
        let is_stated = !is_trim_refused
            && segment.facts.newest_slot().is_some_and(|slot| slot.oldest_lsn >= survey.oldest);
        let free = || {
            let trimmed = is_stated && free_leftovers(io, &survey);
            free_reserve(io, path) || trimmed
        };
        let again = with_room(|| rewrite(&*file, segment, &judged.entries, survey.proven), free);
        again.map_err(Fault::into_error)?;
    }
    if is_trim_refused {
        let told = Finding::new(FindingKind::TrimUnproven, Severity::Info, &segment.facts.path);
        let told = told.at_lsn(survey.oldest);
        survey.findings.push(told);
    }
    Ok(Proven { file, survey, is_trim_refused })
}

/// The last segment of a log that was judged well.
///
/// # Errors
///
/// `Corrupt` where there is none.
pub(super) fn tail_of<'a>(
    path: &Path,
    survey: &'a Survey,
) -> Result<(&'a Segment, &'a survey::Tail)> {
    let none = || Error::new(ErrorKind::Corrupt, "the log has no tail").at_path(path);
    survey.last_segment().ok_or_else(none)
}

/// Does something once more where space was refused and `free` has made some.
fn with_room(work: impl Fn() -> Done, free: impl FnOnce() -> bool) -> Done {
    match work() {
        Err(Fault::Refused(e)) if e.kind() == ErrorKind::StoreFull && free() => work(),
        done => done,
    }
}

/// Removes the reserve; whether there was one. Where a block that was written is not written again
/// in its place, it is worth nothing: no write to it would need less space than one to another
/// file.
fn free_reserve(io: &dyn Io, dir: &Path) -> bool {
    io.remove(&dir.join(RESERVE_NAME)).is_ok()
}

/// Removes what a trim left that is known to be durable; whether anything went.
fn free_leftovers(io: &dyn Io, survey: &Survey) -> bool {
    let mut any = false;
    for leftover in &survey.leftovers {
        any |= io.remove(&leftover.path).is_ok();
    }
    any
}

/// Writes the frames above `proven` again, same bytes, same place, and syncs.
///
/// After a failed sync the kernel takes pages for clean that never reached the disk: a sync alone
/// would prove nothing.
fn rewrite(file: &dyn IoFile, segment: &Segment, entries: &[FooterEntry], proven: u64) -> Done {
    let path = &segment.facts.path;
    let refused = |e| Fault::Refused(refusal("cannot write unproven records again", path, e));
    let again = || -> io::Result<()> {
        let from = offset_behind(file, segment, entries, proven)?;
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::ReopenOnlySyncs) {
            return Ok(());
        }
        let whole = usize::try_from(segment.end.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; COPY_LEN.min(whole)];
        let mut offset = from;
        while offset < segment.end {
            let left = usize::try_from(segment.end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = bytes.len().min(left);
            let chunk = bytes.get_mut(..len).unwrap_or_default();
            if file.read_full_at(chunk, offset)? < len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.write_all_at(chunk, offset)?;
            offset = offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        }
        Ok(())
    };
    again().map_err(refused)?;
    file.sync().map_err(|e| Fault::Final(refusal("cannot sync unproven records", path, e)))
}

/// Writes the newest slot again, same bytes, same place, and syncs: who is told of an oldest LSN
/// may rely on it. Where there is no space for that, the report says that nobody may.
fn state_again(file: &dyn IoFile, segment: &Segment) -> Done {
    let Some(slot) = segment.facts.newest_slot() else { return Ok(()) };
    let (offset, path) = (Slot::offset_of(slot.index()), &segment.facts.path);
    let failed = |what, e| refusal(what, path, e).at_offset(offset);
    let written = file.write_all_at(&slot.encode(), offset);
    written.map_err(|e| Fault::Refused(failed("cannot write an unproven trim again", e)))?;
    file.sync().map_err(|e| Fault::Final(failed("cannot sync an unproven trim", e)))
}

/// Offset of the frame after that of `lsn`; the frames were found valid before.
fn offset_behind(
    file: &dyn IoFile,
    segment: &Segment,
    entries: &[FooterEntry],
    lsn: u64,
) -> io::Result<u64> {
    let entry = entries.iter().take_while(|entry| entry.lsn <= lsn).last();
    let (mut offset, mut next) =
        entry.map_or((FRAMES_OFFSET, segment.header.first_lsn), |entry| (entry.offset, entry.lsn));
    let mut window = Window::new(file)?;
    while next <= lsn && offset < segment.end {
        let place = Place { salt: segment.header.salt, offset };
        let room = segment.end.saturating_sub(offset);
        let bytes = window.at(offset, FrameHeader::LEN)?;
        let header = FrameHeader::decode(bytes, place, room)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        offset = offset.saturating_add(header.frame_len());
        next = next.saturating_add(1);
    }
    Ok(offset)
}
