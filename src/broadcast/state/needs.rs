//! What unfinished work needs of the channels: a broadcaster pins by it, and who looks at a store
//! tells by it who pins what.

use std::collections::BTreeSet;

use oncelog_format::control::PchannelEnd;
use oncelog_format::message::BroadcastId;

use super::State;
use crate::log::{Holder, HolderKind};
use crate::lsn::Lsn;

impl State {
    /// Where the pchannels ended, before its copies were written, on which a broadcast that is not
    /// done has a copy without an acknowledgement: it looks for that copy from there.
    pub(crate) fn ends_needed(&self, id: BroadcastId) -> Vec<PchannelEnd> {
        let Some(task) = self.tasks.get(&id).filter(|task| task.done.is_none()) else {
            return Vec::new();
        };
        let copies = task.accepted.header.vchannels.iter().zip(&task.acks);
        let missing = copies.filter(|(_, ack)| ack.is_none());
        let missing: BTreeSet<&str> =
            missing.filter_map(|(vchannel, _)| self.pchannel_of(vchannel)).collect();
        let ends = task.accepted.ends.iter();
        ends.filter(|end| missing.contains(end.pchannel.as_str())).cloned().collect()
    }

    /// Who needs messages of a pchannel, and from which LSN on: broadcasts with copies that are not
    /// acknowledged, and jobs that are planned and not over. Sorted by LSN.
    #[must_use]
    pub fn needs(&self, pchannel: &str) -> Vec<Holder> {
        let of = |name: String, ends: &[PchannelEnd]| {
            let end = ends.iter().find(|end| end.pchannel == pchannel)?;
            let lsn = Lsn::at_least_first(end.next_lsn);
            Some(Holder { kind: HolderKind::Pin, name, lsn })
        };
        let tasks = self.open_tasks();
        let tasks = tasks.filter_map(|(id, _)| of(task_name(id), &self.ends_needed(id)));
        let jobs = self.running_jobs();
        let jobs = jobs.filter_map(|(id, job)| of(job_name(id), &job.plan.as_ref()?.from));
        Holder::in_order(tasks.chain(jobs))
    }
}

/// What a broadcast is called that pins a channel.
pub(in crate::broadcast) fn task_name(id: BroadcastId) -> String {
    format!("broadcast {id}")
}

/// What a job is called that pins a channel.
pub(in crate::broadcast) fn job_name(id: BroadcastId) -> String {
    format!("job {id}")
}
