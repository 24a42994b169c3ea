//! What accepted work may yet write, so that room is kept for it: its copies, its records, and of a
//! job the ending that is to come, whatever becomes of the disk and whoever holds what.

use std::collections::BTreeMap;

use oncelog_format::control::{Accepted, Body, ControlRecord, DropCause, JobLink, PchannelEnd};
use oncelog_format::limits::CHECKPOINT_PART_LEN_MAX;
use oncelog_format::message::{BroadcastHeader, BroadcastId, Fingerprint, Resource};

use super::core::{Core, Run};
use super::ends;
use super::holds::Hold;
use super::jobs::JOB_DOMAIN;
use super::refusal;
use super::sizes::CopySizes;
use super::state::State;
use super::told::Told;
use crate::error::{Error, ErrorKind, Result};
use crate::log::reserve::{RESERVED_MAX, Use};
use crate::store::Store;

/// Bytes of control that the end of a task takes: Done, Park and Skip, each with its frame and a
/// reason of [`REASON_BYTES_MAX`].
const ENDING_BYTES: u64 = 1_280;

/// Bytes of an Ack of one vchannel, with its frame.
const ACK_BYTES: u64 = 96;

/// More than a frame adds to a record.
const FRAME_BYTES: u64 = 40;

/// Bytes of a reason where there is no space for a longer one.
pub(super) const REASON_BYTES_MAX: usize = 256;

/// Lengths of the type's name and of the payload of a job's ending for which room is kept.
pub(super) const TYPE_LEN: usize = 64;
pub(super) const PAYLOAD_LEN: usize = 256;

/// Most bytes that control keeps for what was accepted, and for checkpoints: beside them the first
/// record of a checkpoint, or a batch of what it makes smaller, fits into the largest reserve.
pub(super) const PROMISED_MAX: u64 = RESERVED_MAX - (1 << 20);

/// Most bytes that unfinished work carries: tasks that are not done and jobs that are not over,
/// with their payloads, properties and plans. A checkpoint holds them all, and is written on a full
/// disk too: so they take no more than half of the largest reserve, and leave the rest to the keys
/// of the window, to jobs that are over and to the records that end the work. Where these fill it,
/// new work is refused.
pub(crate) const OPEN_BYTES_MAX: u64 = 512 << 20;

/// More than the Begin and the End of a checkpoint take, beside its entries and its parts.
const CHECKPOINT_BYTES: u64 = 4 << 10;

/// Checkpoints for which control keeps room: one that a close, a kill or a failed read cuts off,
/// and two that are whole. Behind these, control is trimmed to what the first of them covers, which
/// is all that stood before it: so a full disk is emptied, also where no checkpoint was before. A
/// state of which no reserve holds as many has room for fewer, and for one at least.
pub(super) const CHECKPOINT_COUNT: u64 = 3;

/// More than a part of a checkpoint takes beside the bytes that it carries.
const PART_BYTES: u64 = 80;

/// What a checkpoint takes whose entries come to so many bytes.
fn written_bytes(entries: u64) -> u64 {
    let part_count = (entries / u64::from(CHECKPOINT_PART_LEN_MAX)).saturating_add(1);
    let parts = part_count.saturating_mul(PART_BYTES);
    entries.saturating_add(parts).saturating_add(CHECKPOINT_BYTES)
}

/// Bytes of control that a task may yet take.
fn control_bytes(accepted: &Accepted) -> u64 {
    let vchannels = u64::try_from(accepted.header.vchannels.len()).unwrap_or(u64::MAX);
    vchannels.saturating_mul(ACK_BYTES).saturating_add(ENDING_BYTES)
}

/// Bytes of control that the ending of a job takes, at most, from its acceptance on.
fn ending_bytes(starts: &Accepted) -> u64 {
    let names: usize = starts.header.vchannels.iter().map(|name| name.len() + 16).sum();
    let own = names + starts.trace.as_ref().map_or(0, String::len) + 4 * PAYLOAD_LEN;
    control_bytes(starts).saturating_add(u64::try_from(own).unwrap_or(u64::MAX))
}

/// Bytes of a checkpoint that go with the keys that a batch drops.
fn freed_by(state: &State, bodies: &[&Body]) -> u64 {
    let dropped = bodies.iter().filter_map(|body| match body {
        Body::Dropped(dropped) => Some(state.bytes_of_tombstone(dropped.id)),
        _ => None,
    });
    dropped.fold(0, u64::saturating_add)
}

/// Room is kept for an ending from the acceptance of its job on, before anybody knows what it is.
///
/// # Errors
///
/// `Limit` for one that is larger than that.
pub(super) fn check_ending(message_type: &str, payload: &[u8]) -> Result<()> {
    for (what, found, max) in
        [("name", message_type.len(), TYPE_LEN), ("payload", payload.len(), PAYLOAD_LEN)]
    {
        if found > max {
            let what =
                format!("the {what} of an ending: expected {max} bytes at most, found {found}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
    }
    Ok(())
}

/// What ends work and leaves so much to others. No reserve holds more than the largest one.
fn ending_use(owed: u64, more: u64) -> Use {
    Use::Ending(owed.saturating_add(more).min(PROMISED_MAX))
}

/// What is kept for the ending of a job: bytes of control and, by pchannel, of its copies.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    control: u64,
    copies: Vec<(String, u64)>,
}

impl Promise {
    /// Of the ending of the job that a broadcast starts.
    ///
    /// # Errors
    ///
    /// `Limit` where a channel takes no such copy.
    pub(super) fn of_ending(store: &Store, state: &State, starts: &Accepted) -> Result<Self> {
        let vchannels = starts.header.vchannels.clone();
        let key = u64::MAX.to_string();
        let resources = vec![Resource { domain: JOB_DOMAIN.to_owned(), key, shared: false }];
        let header = BroadcastHeader { vchannels, resources, ..starts.header.clone() };
        let ends = starts.ends.iter();
        let mut ending = Accepted {
            header,
            message_type: "x".repeat(TYPE_LEN),
            scope: None,
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: ends.map(|end| PchannelEnd { next_lsn: u64::MAX, ..end.clone() }).collect(),
            lifetime_ms: 0,
            firm: true,
            job: JobLink::Ends { job: starts.header.id, attempt: 1, commit: false },
            properties: Vec::new(),
            trace: starts.trace.clone(),
            payload: vec![0; PAYLOAD_LEN],
        };
        let mut copies: BTreeMap<String, u64> = BTreeMap::new();
        let mut sizes = CopySizes::new(&ending, state.term());
        for vchannel in &starts.header.vchannels {
            let Some(pchannel) = state.pchannel_of(vchannel) else { continue };
            let Some(channel) = store.channel(pchannel) else { continue };
            let bytes = sizes.of((pchannel, &**channel), vchannel)?;
            let sum = copies.entry(pchannel.to_owned()).or_default();
            *sum = sum.saturating_add(bytes);
        }
        if ending.ends.is_empty() {
            let end = |pchannel: &String| PchannelEnd { pchannel: pchannel.clone(), next_lsn: 1 };
            ending.ends = copies.keys().map(end).collect();
        }
        let owed = control_bytes(&ending);
        let record = ControlRecord { at_ms: 0, body: Body::Accepted(std::sync::Arc::new(ending)) };
        let record = record.encode().map_err(|e| {
            refusal::invalid("the ending of the job would not encode").with_source(e)
        })?;
        let record = u64::try_from(record.len()).unwrap_or(u64::MAX);
        let control = record.saturating_add(FRAME_BYTES).saturating_add(owed);
        Ok(Self { control, copies: copies.into_iter().collect() })
    }

    pub(super) fn by_pchannel(&self) -> impl Iterator<Item = (&str, u64)> {
        self.copies.iter().map(|(pchannel, bytes)| (pchannel.as_str(), *bytes))
    }

    /// Bytes of copies on a pchannel.
    pub(super) fn to(&self, pchannel: &str) -> u64 {
        self.copies.iter().find(|(name, _)| name == pchannel).map_or(0, |(_, bytes)| *bytes)
    }
}

/// Bytes that accepted work may yet take.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    control: u64,
    copies: BTreeMap<String, u64>,
    /// Of these, what is kept for the endings of jobs.
    endings: BTreeMap<BroadcastId, Promise>,
}

impl Owed {
    pub(super) fn copies_end(&mut self, hold: &Hold) {
        if let Some(bytes) = self.copies.get_mut(&hold.pchannel) {
            *bytes = bytes.saturating_sub(hold.bytes);
        }
    }

    /// Bytes of control.
    pub(super) fn control(&self) -> u64 {
        self.control
    }

    /// Bytes of copies on a pchannel.
    pub(super) fn to(&self, pchannel: &str) -> u64 {
        self.copies.get(pchannel).copied().unwrap_or_default()
    }

    pub(super) fn by_pchannel(&self) -> impl Iterator<Item = (&str, u64)> {
        self.copies.iter().map(|(pchannel, bytes)| (pchannel.as_str(), *bytes))
    }

    /// What is kept for a broadcast that ends a job.
    pub(super) fn promised_to(&self, link: JobLink) -> Option<&Promise> {
        match link {
            JobLink::Ends { job, .. } => self.endings.get(&job),
            _ => None,
        }
    }

    fn add(&mut self, job: BroadcastId, promise: Promise) {
        self.remove(job);
        self.control = self.control.saturating_add(promise.control);
        for (pchannel, bytes) in &promise.copies {
            let sum = self.copies.entry(pchannel.clone()).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        self.endings.insert(job, promise);
    }

    fn remove(&mut self, job: BroadcastId) {
        let Some(promise) = self.endings.remove(&job) else { return };
        self.control = self.control.saturating_sub(promise.control);
        for (pchannel, bytes) in &promise.copies {
            if let Some(sum) = self.copies.get_mut(pchannel) {
                *sum = sum.saturating_sub(*bytes);
            }
        }
    }
}

impl Core {
    /// What a batch of so many bytes is to control's reserve.
    ///
    /// # Errors
    ///
    /// `StoreFull` where unfinished work would carry more than [`OPEN_BYTES_MAX`], or all of
    /// control more than a reserve holds; `Limit` where that would always be so.
    pub(crate) fn usage(&self, bodies: &[&Body], bytes: u64, open_max: u64) -> Result<Use> {
        let owed = self.owed.control;
        if let [Body::Accepted(ending)] = bodies
            && let JobLink::Ends { .. } = ending.job
        {
            // It was promised with its job, and is itself owed its end.
            let promised = self.owed.promised_to(ending.job).map_or(0, |promised| promised.control);
            return Ok(ending_use(owed.saturating_sub(promised), control_bytes(ending)));
        }
        if !bodies.iter().all(|body| body.is_finishing()) {
            self.check_open_bytes(bodies, bytes, open_max)?;
            return self.usage_of_new(bodies, bytes);
        }
        let frames = FRAME_BYTES.saturating_mul(u64::try_from(bodies.len()).unwrap_or(u64::MAX));
        let own = bytes.saturating_add(frames);
        let drops = || {
            bodies.iter().filter_map(|body| match body {
                Body::Dropped(dropped) => Some(dropped.cause),
                _ => None,
            })
        };
        Ok(if drops().next().is_some() || matches!(bodies, [Body::CheckpointBegin(_)]) {
            // A checkpoint frees space, and comes before what only makes it smaller. Its begin is a
            // part of it, and what is dropped took more of it than the record does. No filter takes
            // a job.
            let keys = drops().filter(|cause| *cause != DropCause::Retired).count();
            let filter = self.state.seen().bytes_ahead(keys);
            let left = self.checkpoint_with(filter).saturating_sub(own);
            ending_use(owed, left)
        } else if bodies.iter().any(|body| body.is_checkpoint()) {
            ending_use(owed, 0)
        } else if let Some(beyond) = bodies.iter().find_map(|body| ends::beyond_room(body)) {
            // It takes what nobody was promised but, where it ends, itself; and so it does in each
            // checkpoint for which room is kept.
            let run = self.runs.get(&beyond.id).filter(|_| beyond.ends);
            let own = run.map_or(0, |run| control_bytes(&run.accepted));
            let left = self.promised_bytes(0).saturating_sub(own);
            ending_use(left, beyond.reason_bytes.saturating_mul(CHECKPOINT_COUNT))
        } else {
            Use::Ending(0)
        })
    }

    /// What a batch of new work is, with what it will owe, and what it brings to the next
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// `StoreFull` where no reserve holds it beside what was promised, `Limit` where none ever
    /// does.
    fn usage_of_new(&self, bodies: &[&Body], bytes: u64) -> Result<Use> {
        let ends = bodies.iter().map(|body| match body {
            Body::Accepted(accepted) if accepted.job == JobLink::Starts => {
                control_bytes(accepted).saturating_add(ending_bytes(accepted))
            }
            Body::Accepted(accepted) => control_bytes(accepted),
            Body::Attempt(attempt) => {
                self.state.job(attempt.job).map_or(0, |job| ending_bytes(&job.accepted))
            }
            _ => 0,
        });
        let ends = ends.fold(0, u64::saturating_add);
        let in_checkpoint = bodies.iter().map(|body| self.state.bytes_of(body));
        let in_checkpoint = in_checkpoint.fold(0, u64::saturating_add).max(bytes);
        let is_keyed = |body: &&&Body| matches!(body, Body::Accepted(x) if x.scope.is_some());
        let keys = bodies.iter().filter(is_keyed).count();
        #[cfg(planted)]
        let in_checkpoint = if crate::planted::is_active(crate::planted::Bug::CheckpointUncounted) {
            0
        } else {
            in_checkpoint
        };
        let added = ends.saturating_add(in_checkpoint);
        let owed = self.owed.control.saturating_add(ends);
        let checkpoint =
            self.checkpoint_without(freed_by(&self.state, bodies), keys, in_checkpoint);
        let (all, max) = (owed.saturating_add(checkpoint), self.promised_max);
        if all <= max {
            let kept = owed.saturating_add(checkpoint.saturating_mul(CHECKPOINT_COUNT));
            return Ok(Use::New(kept.min(max)));
        }
        if added <= max
            && bodies.iter().any(|body| matches!(body, Body::Accepted(_)))
            && let Some(refused) = self.keys_are_in_the_way(all)
        {
            return Err(refused);
        }
        let kind = if added > max { ErrorKind::Limit } else { ErrorKind::StoreFull };
        let what = format!(
            "a checkpoint and the ends of unfinished work come to more than a reserve holds: \
             expected at most {max} bytes, found {all}"
        );
        Err(Error::new(kind, what))
    }

    fn check_open_bytes(&self, bodies: &[&Body], bytes: u64, max: u64) -> Result<()> {
        let brought = bodies.iter().filter_map(|body| match body {
            Body::Accepted(_) | Body::JobPlan(_) => Some(bytes),
            // The job comes back with all that is known of it.
            Body::Attempt(attempt) => Some(self.state.job_bytes(attempt.job)),
            _ => None,
        });
        let (held, Some(bytes)) = (self.state.open_bytes(), brought.max()) else { return Ok(()) };
        if held.saturating_add(bytes) <= max {
            return Ok(());
        }
        // Alone it would never fit.
        let kind = if bytes > max { ErrorKind::Limit } else { ErrorKind::StoreFull };
        let what = format!(
            "unfinished work carries as much as room is kept for: expected at most {max} bytes, \
             found {held} and {bytes} more"
        );
        Err(Error::new(kind, what))
    }

    /// Bytes that a checkpoint takes, about, also one that is being written, with so many bytes
    /// more of entries.
    pub(crate) fn checkpoint_with(&self, bytes: u64) -> u64 {
        let about = self.state.checkpoint_bytes().max(self.begun_bytes);
        written_bytes(about.saturating_add(bytes))
    }

    /// Bytes that control keeps for work that was accepted, and for checkpoints, when it was and
    /// when all that is unfinished has gone on, with so many bytes more of entries.
    pub(crate) fn promised_bytes(&self, more: u64) -> u64 {
        let checkpoint = self.checkpoint_ahead(0, more);
        let kept = self.owed.control.saturating_add(checkpoint.saturating_mul(CHECKPOINT_COUNT));
        kept.min(PROMISED_MAX)
    }

    pub(super) fn checkpoint_ahead(&self, key_count: usize, more: u64) -> u64 {
        self.checkpoint_without(0, key_count, more)
    }

    /// The same, where so many bytes of keys are dropped with it. One that is being written has
    /// them.
    fn checkpoint_without(&self, freed: u64, key_count: usize, more: u64) -> u64 {
        let about = self.state.checkpoint_bytes().saturating_sub(freed).max(self.begun_bytes);
        let ahead = self.state.bytes_ahead(key_count).saturating_add(more);
        written_bytes(about.saturating_add(ahead))
    }

    /// Counts what a run owes, from its acceptance on. What was kept for it, as the ending of a
    /// job, is its own by then.
    pub(crate) fn owe(&mut self, id: BroadcastId) {
        let Some(run) = self.runs.get(&id) else { return };
        if let JobLink::Ends { job, .. } = run.accepted.job {
            self.owed.remove(job);
        }
        self.owed.control = self.owed.control.saturating_add(control_bytes(&run.accepted));
        for hold in &run.holds {
            let bytes = self.owed.copies.entry(hold.pchannel.clone()).or_default();
            *bytes = bytes.saturating_add(hold.bytes);
        }
    }

    /// Counts what the ending of a job will take, where it has none.
    pub(crate) fn owe_ending(&mut self, store: &Store, job: BroadcastId) {
        let starts = match self.state.job(job) {
            Some(job) if job.over.is_some() || job.end.is_some() => return,
            Some(job) => std::sync::Arc::clone(&job.accepted),
            None => match self.runs.get(&job) {
                Some(run) => std::sync::Arc::clone(&run.accepted),
                None => return,
            },
        };
        match Promise::of_ending(store, &self.state, &starts) {
            Ok(promise) => self.owed.add(job, promise),
            Err(e) => self.told.push(Told::NoRoom(job, e)),
        }
    }

    /// The same of a job that a run is to start.
    pub(crate) fn owe_ending_of(&mut self, store: &Store, id: BroadcastId) {
        if self.runs.get(&id).is_some_and(|run| run.accepted.job == JobLink::Starts) {
            self.owe_ending(store, id);
        }
    }

    /// Nothing is kept any more for the ending of a job that was not made.
    pub(crate) fn disown_ending(&mut self, job: BroadcastId) {
        self.owed.remove(job);
    }

    /// Takes a run out that has ended; it holds nothing any more.
    pub(crate) fn take_run(&mut self, id: BroadcastId) -> Option<Run> {
        let mut run = self.runs.remove(&id)?;
        self.owed.control = self.owed.control.saturating_sub(control_bytes(&run.accepted));
        run.holds.drain(..).for_each(|hold| self.owed.copies_end(&hold));
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use oncelog_format::control::{
        Attempt, CheckpointBegin, CheckpointPart, Done, Dropped, Outcome,
    };
    use oncelog_format::message::AckMode;

    use super::super::policy::Policy;
    use super::*;

    fn accepted(payload_len: usize) -> Body {
        Body::Accepted(std::sync::Arc::new(Accepted {
            header: BroadcastHeader {
                id: BroadcastId(1),
                vchannels: vec!["a".into()],
                resources: Vec::new(),
                ack: AckMode::Append,
            },
            message_type: "T".into(),
            scope: None,
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: Vec::new(),
            lifetime_ms: 0,
            firm: true,
            job: JobLink::None,
            properties: Vec::new(),
            trace: None,
            payload: vec![0; payload_len],
        }))
    }

    /// More than a segment holds was kept for what ends work, and once a segment was made of it.
    #[test]
    fn nothing_keeps_more_than_the_largest_reserve_holds() {
        let mut core = Core::new(State::default(), Policy::default());
        (core.begun_bytes, core.owed.control) = (5 << 30, 3 << 30);
        let dropped = Body::Dropped(Dropped { id: BroadcastId(1), cause: DropCause::Expired });
        let begin = Body::CheckpointBegin(CheckpointBegin { covers: 1, state_version: 1 });
        for body in [dropped, begin] {
            let usage = core.usage(&[&body], 1_000, OPEN_BYTES_MAX).unwrap();
            // What it takes itself fits beside that.
            let fits = |bytes: u64| bytes + 1_000 <= RESERVED_MAX;
            assert!(
                matches!(usage, Use::New(bytes) | Use::Ending(bytes) if fits(bytes)),
                "{usage:?}"
            );
        }
        assert!(core.promised_bytes(0) <= PROMISED_MAX);
    }

    /// Parts of a large one took more than was kept: on a full disk the last of them had no room.
    #[test]
    fn room_for_a_checkpoint_holds_the_frames_of_all_its_parts() {
        let bytes = vec![7; usize::try_from(CHECKPOINT_PART_LEN_MAX).unwrap()];
        let part = CheckpointPart { covers: u64::MAX, index: u32::MAX, bytes };
        let part = ControlRecord { at_ms: u64::MAX, body: Body::CheckpointPart(part) };
        let len = u32::try_from(part.encode().unwrap().len()).unwrap();
        let frame = oncelog_format::frame::frame_len(len);
        let mut core = Core::new(State::default(), Policy::default());
        for count in [1, 2, 537, 1_073] {
            core.begun_bytes = count * u64::from(CHECKPOINT_PART_LEN_MAX);
            let kept = core.checkpoint_with(0);
            assert!(kept >= count * frame, "{count} parts: {kept} bytes for {}", count * frame);
        }
    }

    /// Jobs whose records are over asked for the filter of as many keys, for which no room was
    /// kept, and stayed on a full disk.
    #[test]
    fn only_keys_that_are_dropped_ask_for_room_for_a_filter() {
        let core = Core::new(State::default(), Policy::default());
        #[track_caller]
        fn check(core: &Core, causes: &[DropCause], is_kept: bool) {
            let body =
                |cause: &DropCause| Body::Dropped(Dropped { id: BroadcastId(1), cause: *cause });
            let bodies: Vec<Body> = causes.iter().map(body).collect();
            let bodies: Vec<&Body> = bodies.iter().collect();
            let Use::Ending(left) = core.usage(&bodies, 0, OPEN_BYTES_MAX).unwrap() else {
                panic!("what is dropped makes room")
            };
            assert_eq!(left <= core.checkpoint_with(0), is_kept, "{causes:?}: {left}");
        }
        check(&core, &[DropCause::Retired; 4], true);
        check(&core, &[DropCause::Expired], false);
        check(&core, &[DropCause::Evicted], false);
        check(&core, &[DropCause::Retired, DropCause::Expired], false);
    }

    /// It was taken in by a reserve that could not hold the next checkpoint.
    #[test]
    fn new_work_that_no_reserve_holds_is_refused() {
        let mut core = Core::new(State::default(), Policy::default());
        let usage = |core: &Core| core.usage(&[&accepted(1_000)], 1_000, OPEN_BYTES_MAX);
        core.begun_bytes = PROMISED_MAX - (256 << 10);
        assert!(matches!(usage(&core), Ok(Use::New(bytes)) if bytes <= PROMISED_MAX));
        core.begun_bytes = PROMISED_MAX - CHECKPOINT_BYTES;
        assert_eq!(usage(&core).unwrap_err().kind(), ErrorKind::StoreFull);
    }

    /// It was never asked whether there is room for a job that comes back, with its payload.
    #[test]
    fn a_job_that_is_tried_again_counts_as_the_work_that_it_brings() {
        let link = |id: u64, job: JobLink| {
            let Body::Accepted(body) = accepted(500) else { unreachable!() };
            let header = BroadcastHeader { id: BroadcastId(id), ..body.header.clone() };
            Body::Accepted(std::sync::Arc::new(Accepted { header, job, ..(*body).clone() }))
        };
        let job = BroadcastId(1);
        let done = |id| Body::Done(Done { id: BroadcastId(id), outcome: Outcome::Done });
        let abort = JobLink::Ends { job, attempt: 1, commit: false };
        let mut core = Core::new(State::default(), Policy::default());
        for body in [link(1, JobLink::Starts), done(1), link(2, abort), done(2)] {
            core.state.apply(&ControlRecord { at_ms: 1, body });
        }
        assert_eq!((core.state.open_bytes(), core.state.job_bytes(job) > 500), (0, true));
        let again = Body::Attempt(Attempt { job, attempt: 2 });
        let usage = |core: &Core| core.usage(&[&again], 30, 1_000).map_err(|e| e.kind());
        assert!(matches!(usage(&core), Ok(Use::New(_))));
        core.state.apply(&ControlRecord { at_ms: 1, body: link(3, JobLink::None) });
        assert_eq!(usage(&core), Err(ErrorKind::StoreFull));
    }

    /// A broadcast was accepted where the checkpoint that holds it had no room.
    #[test]
    fn new_work_keeps_room_for_itself_in_the_next_checkpoint() {
        let mut core = Core::new(State::default(), Policy::default());
        let body = accepted(200_000);
        let record = ControlRecord { at_ms: 1, body };
        let len = u64::try_from(record.encode().unwrap().len()).unwrap();
        let Use::New(kept) = core.usage(&[&record.body], len, OPEN_BYTES_MAX).unwrap() else {
            panic!("an acceptance is new work")
        };
        core.state.apply(&record);
        let begin = Body::CheckpointBegin(CheckpointBegin { covers: 1, state_version: 1 });
        let Use::Ending(left) = core.usage(&[&begin], 30, OPEN_BYTES_MAX).unwrap() else {
            panic!("a checkpoint frees space")
        };
        assert!(kept >= left && left > 200_000, "{kept} are kept, {left} are needed");
    }

    #[test]
    fn unfinished_work_above_its_limit_is_refused() {
        let core = Core::new(State::default(), Policy::default());
        #[track_caller]
        fn check(core: &Core, bytes: u64, expected: Option<ErrorKind>) {
            let body = accepted(10);
            let usage = core.usage(&[&body], bytes, 1_000);
            assert_eq!(usage.err().map(|e| e.kind()), expected);
        }
        check(&core, 1_000, None);
        check(&core, 1_001, Some(ErrorKind::Limit));
        let mut core = core;
        core.state.apply(&ControlRecord { at_ms: 1, body: accepted(300) });
        check(&core, 100, None);
        check(&core, 700, Some(ErrorKind::StoreFull));
    }
}
