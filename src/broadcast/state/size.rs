//! What a state takes in a checkpoint, in bytes: a little more than its entries come to (SPEC 13.3).
//!
//! It is counted as the state changes, so that whoever keeps room for a checkpoint need not encode
//! one.

use std::sync::Arc;

use oncelog_format::control::{Accepted, Channel, Collection, JobPlan, Outcome, PchannelEnd};
use oncelog_format::message::BroadcastId;

use super::{Job, State, TaskState};

/// Bytes of an entry beside what is counted of it.
const ENTRY_BYTES: u64 = 96;

/// Bytes of the facts, and of what else there is once.
const FACTS_BYTES: u64 = 512;

/// Bytes of an element of a list beside its text.
const ELEMENT_BYTES: u64 = 8;

/// Bytes of an ack.
const ACK_BYTES: u64 = 24;

/// Bytes that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Of all entries but filters.
    pub(super) all: u64,
    /// Of the tasks that are not done, and the jobs that are not over.
    pub(super) open: u64,
}

impl Size {
    fn change(&mut self, is_added: bool, (bytes, is_open): (u64, bool)) {
        let count = |sum: u64, bytes: u64| {
            if is_added { sum.saturating_add(bytes) } else { sum.saturating_sub(bytes) }
        };
        self.all = count(self.all, bytes);
        if is_open {
            self.open = count(self.open, bytes);
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

pub(super) fn task_bytes(task: &TaskState) -> (u64, bool) {
    let reason = match (&task.parked, &task.done) {
        (Some((reason, _)), _) => len(reason.len()),
        (_, Some((Outcome::Failed(reason), _))) => len(reason.len()),
        _ => 0,
    };
    let acks = len(task.acks.len()).saturating_mul(ACK_BYTES);
    let own = acks.saturating_add(reason).saturating_add(accepted_bytes(&task.accepted));
    (own, task.done.is_none())
}

pub(super) fn job_bytes(job: &Job) -> (u64, bool) {
    let plan = job.plan.as_ref().map_or(0, |plan| plan_bytes(plan));
    let state = job.state.as_ref().map_or(0, |state| {
        len(state.reason.len() + state.detail.len()).saturating_add(ENTRY_BYTES)
    });
    let own = accepted_bytes(&job.accepted).saturating_add(ENTRY_BYTES);
    (own.saturating_add(plan).saturating_add(state), job.over.is_none())
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
        self.count((collection_bytes(&collection), false));
        if let Some(before) = self.collections.insert(collection.id, collection) {
            self.discount((collection_bytes(&before), false));
        }
    }

    pub(super) fn take_channel(&mut self, channel: &Channel) {
        self.count((channel_bytes(&channel.vchannel, &channel.pchannel), false));
        let (vchannel, pchannel) = (channel.vchannel.clone(), channel.pchannel.clone());
        if let Some(before) = self.channels.insert(vchannel, pchannel) {
            self.discount((channel_bytes(&channel.vchannel, &before), false));
        }
    }

    pub(super) fn count(&mut self, counted: (u64, bool)) {
        self.size.change(true, counted);
    }

    pub(super) fn discount(&mut self, counted: (u64, bool)) {
        self.size.change(false, counted);
    }

    /// Bytes that a checkpoint takes, a little more than it will.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        let filters = self.seen.filters().iter();
        let filters = filters.map(|filter| filter.bytes().saturating_add(ENTRY_BYTES));
        filters.fold(self.size.all.saturating_add(FACTS_BYTES), u64::saturating_add)
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
        self.collections.values().for_each(|x| size.change(true, (collection_bytes(x), false)));
        for (vchannel, pchannel) in &self.channels {
            size.change(true, (channel_bytes(vchannel, pchannel), false));
        }
        size
    }
}
