//! What a state takes in a checkpoint, in bytes: a little more than its entries come to (SPEC
//! 13.3).
//!
//! It is counted as the state changes, so that whoever keeps room for a checkpoint need not encode
//! one.

use std::sync::Arc;

use oncelog_format::control::{
    Accepted, Body, Channel, Collection, JobLink, JobPlan, JobState, Outcome, PchannelEnd,
};
use oncelog_format::message::BroadcastId;

use super::{Job, State, TaskState};
use crate::broadcast::ends::SKIPPED;
use crate::broadcast::owed::{PAYLOAD_LEN, REASON_BYTES_MAX, TYPE_LEN};

/// Bytes of an entry beside what is counted of it.
const ENTRY_BYTES: u64 = 96;

/// Bytes of the facts, and of what else there is once.
const FACTS_BYTES: u64 = 512;

/// Bytes of an element of a list beside its text.
const ELEMENT_BYTES: u64 = 8;

/// Bytes of an ack.
const ACK_BYTES: u64 = 24;

/// Bytes of a reason for which room is kept, with what may stand before it.
#[expect(clippy::as_conversions, reason = "a sum of two small constants")]
const REASON_BYTES: u64 = (REASON_BYTES_MAX + SKIPPED.len()) as u64;

/// Bytes that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Of all entries but filters.
    pub(super) all: u64,
    /// Of the tasks that are not done, and the jobs that are not over.
    pub(super) open: u64,
    /// Of the tasks that are done: the keys of the window, mostly.
    pub(super) done: u64,
    /// What the open ones come to beside that, at most, until they end.
    pub(super) ahead: u64,
}

/// What an entry comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    bytes: u64,
    is_open: bool,
    is_done: bool,
    ahead: u64,
}

impl Counted {
    const fn of(bytes: u64) -> Self {
        Self { bytes, is_open: false, is_done: false, ahead: 0 }
    }
}

impl Size {
    fn change(&mut self, is_added: bool, counted: Counted) {
        let count = |sum: &mut u64, bytes: u64| {
            *sum = if is_added { sum.saturating_add(bytes) } else { sum.saturating_sub(bytes) };
        };
        count(&mut self.all, counted.bytes);
        count(&mut self.ahead, counted.ahead);
        if counted.is_open {
            count(&mut self.open, counted.bytes);
        }
        if counted.is_done {
            count(&mut self.done, counted.bytes);
        }
    }
}

fn len(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn texts<'a, I: Iterator<Item = &'a String>>(texts: I) -> u64 {
    texts.map(|text| len(text.len()).saturating_add(ELEMENT_BYTES)).fold(0, u64::saturating_add)
}

fn ends(ends: &[PchannelEnd]) -> u64 {
    let numbers = len(ends.len()).saturating_mul(8);
    texts(ends.iter().map(|end| &end.pchannel)).saturating_add(numbers)
}

/// Of an acceptance without what a tombstone leaves out.
fn tombstone_bytes(accepted: &Accepted) -> u64 {
    let scope = accepted.scope.as_ref().map_or(0, |scope| {
        let texts = texts(
            [&scope.principal, &scope.message_type, &scope.domain, &scope.identity].into_iter(),
        );
        texts.saturating_add(len(scope.client_key.len())).saturating_add(ELEMENT_BYTES)
    });
    let resources = accepted.header.resources.iter();
    let resources = resources.map(|resource| texts([&resource.domain, &resource.key].into_iter()));
    let fields = accepted.fingerprint.fields.iter();
    // A digest has 32 bytes at most.
    let fields = fields.map(|field| len(field.name.len()).saturating_add(ELEMENT_BYTES + 32));
    let header = texts(accepted.header.vchannels.iter());
    let parts = [scope, header, len(accepted.message_type.len())];
    parts.into_iter().chain(resources).chain(fields).fold(ENTRY_BYTES, u64::saturating_add)
}

fn accepted_bytes(accepted: &Accepted) -> u64 {
    let properties = accepted.properties.iter();
    let properties =
        properties.map(|(key, value)| len(key.len() + value.len()).saturating_add(ELEMENT_BYTES));
    let trace = accepted.trace.as_ref().map_or(0, |trace| len(trace.len()));
    let parts =
        [tombstone_bytes(accepted), ends(&accepted.ends), trace, len(accepted.payload.len())];
    parts.into_iter().chain(properties).fold(0, u64::saturating_add)
}

fn plan_bytes(plan: &JobPlan) -> u64 {
    // Numbers and a digest beside the path.
    let files = texts(plan.files.iter().map(|file| &file.path));
    let numbers = len(plan.files.len()).saturating_mul(80);
    let parts = [numbers, texts(plan.vchannels.iter()), ends(&plan.from), len(plan.detail.len())];
    parts.into_iter().fold(files.saturating_add(ENTRY_BYTES), u64::saturating_add)
}

fn acks_bytes(accepted: &Accepted) -> u64 {
    len(accepted.header.vchannels.len()).saturating_mul(ACK_BYTES)
}

/// Of the task that is to end a job, at most.
fn ending_bytes(starts: &Accepted) -> u64 {
    let trace = starts.trace.as_ref().map_or(0, |trace| len(trace.len()));
    let fixed = len(TYPE_LEN + PAYLOAD_LEN).saturating_add(2 * ENTRY_BYTES + REASON_BYTES);
    let lists = texts(starts.header.vchannels.iter()).saturating_add(acks_bytes(starts));
    // Its ends may be of as many pchannels as it has vchannels, of names as long as the known ones.
    let parts = [fixed, lists, ends(&starts.ends), trace];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// What an acceptance comes to, beside what it is counted as at once: a reason, a job and its end.
fn ahead_bytes(accepted: &Accepted) -> u64 {
    if accepted.job != JobLink::Starts {
        return REASON_BYTES;
    }
    // The job has the whole acceptance, and a tombstone stands beside it.
    let job = ending_bytes(accepted).saturating_add(ENTRY_BYTES);
    job.saturating_add(tombstone_bytes(accepted)).saturating_add(REASON_BYTES)
}

pub(super) fn task_bytes(task: &TaskState) -> Counted {
    let reason = match (&task.parked, &task.done) {
        (Some((reason, _)), _) => len(reason.len()),
        (_, Some((Outcome::Failed(reason), _))) => len(reason.len()),
        _ => 0,
    };
    let acks = len(task.acks.len()).saturating_mul(ACK_BYTES);
    let bytes = acks.saturating_add(reason).saturating_add(accepted_bytes(&task.accepted));
    let is_open = task.done.is_none();
    // A reason takes the place of the one before.
    let ahead = ahead_bytes(&task.accepted).saturating_sub(reason.min(REASON_BYTES));
    Counted { bytes, is_open, is_done: !is_open, ahead: if is_open { ahead } else { 0 } }
}

fn state_bytes(state: &JobState) -> u64 {
    len(state.reason.len() + state.detail.len()).saturating_add(ENTRY_BYTES)
}

pub(super) fn job_bytes(job: &Job) -> Counted {
    let plan = job.plan.as_ref().map_or(0, |plan| plan_bytes(plan));
    let state = job.state.as_ref().map_or(0, state_bytes);
    let own = accepted_bytes(&job.accepted).saturating_add(ENTRY_BYTES);
    let is_open = job.over.is_none();
    let ends = is_open && job.end.is_none();
    let ahead = if ends { ending_bytes(&job.accepted) } else { 0 };
    let bytes = own.saturating_add(plan).saturating_add(state);
    Counted { bytes, is_open, is_done: false, ahead }
}

fn collection_bytes(collection: &Collection) -> u64 {
    let key = collection.primary_key.as_ref().map_or(0, |key| len(key.len()));
    let parts = [len(collection.name.len()), len(collection.schema.len()), key];
    let vchannels = texts(collection.vchannels.iter());
    parts.into_iter().fold(vchannels.saturating_add(ENTRY_BYTES), u64::saturating_add)
}

fn channel_bytes(vchannel: &str, pchannel: &str) -> u64 {
    len(vchannel.len() + pchannel.len()).saturating_add(2 * ELEMENT_BYTES)
}

impl State {
    /// Changes a task that is not done.
    pub(super) fn change_task(&mut self, id: BroadcastId, change: impl FnOnce(&mut TaskState)) {
        let Some(task) = self.open_task(id) else {
            self.ignored += 1;
            return;
        };
        let before = task_bytes(task);
        change(task);
        let after = task_bytes(task);
        self.discount(before);
        self.count(after);
    }

    /// Changes a job that is at an attempt.
    pub(super) fn change_job(
        &mut self,
        job: BroadcastId,
        attempt: u32,
        change: impl FnOnce(&mut Job),
    ) {
        let Some(job) = self.attempt_of(job, attempt) else {
            self.ignored += 1;
            return;
        };
        let before = job_bytes(job);
        change(job);
        let after = job_bytes(job);
        self.discount(before);
        self.count(after);
    }

    pub(super) fn take_collection(&mut self, collection: Arc<Collection>) {
        self.count(Counted::of(collection_bytes(&collection)));
        if let Some(before) = self.collections.insert(collection.id, collection) {
            self.discount(Counted::of(collection_bytes(&before)));
        }
    }

    pub(super) fn take_channel(&mut self, channel: &Channel) {
        self.count(Counted::of(channel_bytes(&channel.vchannel, &channel.pchannel)));
        let (vchannel, pchannel) = (channel.vchannel.clone(), channel.pchannel.clone());
        if let Some(before) = self.channels.insert(vchannel, pchannel) {
            self.discount(Counted::of(channel_bytes(&channel.vchannel, &before)));
        }
    }

    pub(super) fn count(&mut self, counted: Counted) {
        self.size.change(true, counted);
    }

    pub(super) fn discount(&mut self, counted: Counted) {
        self.size.change(false, counted);
    }

    /// Bytes that a checkpoint takes, a little more than it will.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        let filters = self.seen.filters().iter();
        let filters = filters.map(|filter| filter.bytes().saturating_add(ENTRY_BYTES));
        filters.fold(self.size.all.saturating_add(FACTS_BYTES), u64::saturating_add)
    }

    /// Bytes of that which tombstones take.
    pub(crate) fn tombstone_bytes(&self) -> u64 {
        self.size.done
    }

    /// Bytes of that which one of them takes.
    pub(crate) fn bytes_of_tombstone(&self, id: BroadcastId) -> u64 {
        let task = self.task(id).filter(|task| task.done.is_some());
        task.map_or(0, |task| task_bytes(&task).bytes)
    }

    /// Bytes that the next one may take beside that once what is unfinished has gone on, and its
    /// keys and so many others were dropped.
    pub(crate) fn bytes_ahead(&self, key_count: usize) -> u64 {
        let keys = self.window.held_count().saturating_add(key_count);
        self.size.ahead.saturating_add(self.seen.bytes_ahead(keys))
    }

    /// Bytes that a record adds to what a checkpoint takes, and to what it may take, about.
    pub(crate) fn bytes_of(&self, body: &Body) -> u64 {
        match body {
            Body::Accepted(x) => {
                let parts = [accepted_bytes(x), acks_bytes(x), ahead_bytes(x)];
                parts.into_iter().fold(0, u64::saturating_add)
            }
            Body::Attempt(x) => self.jobs.get(&x.job).map_or(0, |job| ending_bytes(&job.accepted)),
            Body::JobPlan(x) => plan_bytes(x),
            Body::JobState(x) => state_bytes(x),
            Body::Collection(x) => collection_bytes(x),
            Body::Channel(x) => channel_bytes(&x.vchannel, &x.pchannel),
            _ => 0,
        }
    }

    /// Bytes of what is known of a job.
    pub(crate) fn job_bytes(&self, job: BroadcastId) -> u64 {
        self.jobs.get(&job).map_or(0, |job| job_bytes(job).bytes)
    }

    /// Bytes of them that are those of unfinished work: tasks that are not done, jobs that are not
    /// over.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.size.open
    }

    /// The same, counted from nothing.
    #[cfg(test)]
    pub(super) fn counted(&self) -> Size {
        let mut size = Size::default();
        self.tasks.values().for_each(|task| size.change(true, task_bytes(task)));
        let tombstones = self.tombstones.ids().filter_map(|id| self.tombstones.task(id));
        tombstones.for_each(|task| size.change(true, task_bytes(&task)));
        self.jobs.values().for_each(|job| size.change(true, job_bytes(job)));
        self.collections.values().for_each(|x| size.change(true, Counted::of(collection_bytes(x))));
        for (vchannel, pchannel) in &self.channels {
            size.change(true, Counted::of(channel_bytes(vchannel, pchannel)));
        }
        size
    }
}
