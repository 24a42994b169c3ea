//! What a store has to do and has done: broadcasts and jobs by state, and what is parked.

use oncelog::broadcast::StoreView;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::render::{self, Out, count};

/// The work of a store, as its control log has it.
#[derive(Debug)]
pub(crate) struct Work {
    /// By message type, then by state.
    broadcasts: Vec<(String, [(&'static str, u64); 4])>,
    /// By state, with rows.
    jobs: Vec<(&'static str, u64, u64)>,
    parked: Vec<Parked>,
}

#[derive(Debug)]
struct Parked {
    id: String,
    message_type: String,
    reason: String,
    since_ms: u64,
}

impl Work {
    pub(crate) fn of(store: &StoreView) -> Self {
        let state = store.state();
        let broadcasts = state.task_counts().into_iter().map(|(name, of)| {
            let states = [
                ("in_flight", of.in_flight),
                ("parked", of.parked),
                ("done", of.done),
                ("failed", of.failed),
            ];
            (name, states)
        });
        let jobs = state.job_counts().into_iter().map(|(name, of)| (name, of.count, of.rows));
        let parked = state.open_tasks().filter_map(|(id, task)| {
            let (reason, since_ms) = task.parked.as_ref()?;
            Some(Parked {
                id: id.to_string(),
                message_type: task.accepted.message_type.clone(),
                reason: reason.clone(),
                since_ms: *since_ms,
            })
        });
        Self {
            broadcasts: broadcasts.collect(),
            jobs: jobs.filter(|(_, count, _)| *count > 0).collect(),
            parked: parked.collect(),
        }
    }

    pub(crate) fn insert_into(&self, object: &mut Map<String, Value>) {
        let broadcasts = self.broadcasts.iter().map(|(name, states)| {
            let states: Map<String, Value> =
                states.iter().map(|(state, count)| ((*state).to_owned(), json!(count))).collect();
            (name.clone(), Value::Object(states))
        });
        object.insert("broadcasts".into(), Value::Object(broadcasts.collect()));
        let jobs = self.jobs.iter().map(|(state, count, rows)| {
            ((*state).to_owned(), json!({ "count": count, "rows": rows }))
        });
        object.insert("jobs".into(), Value::Object(jobs.collect()));
        let parked: Vec<Value> = self.parked.iter().map(Parked::object).collect();
        object.insert("parked".into(), json!(parked));
    }

    pub(crate) fn print(&self, out: &mut Out) -> Result<(), Failure> {
        for (name, states) in &self.broadcasts {
            for (state, n) in states.iter().filter(|(_, n)| *n > 0) {
                let what = format!("broadcasts {name} {}", state.replace('_', " "));
                out.line(&format!("  {what:<40} {:>14}", count(*n)))?;
            }
        }
        for (state, n, rows) in &self.jobs {
            let what = format!("jobs {state}");
            out.line(&format!("  {what:<40} {:>14}, {} rows", count(*n), count(*rows)))?;
        }
        for parked in &self.parked {
            out.line(&format!(
                "  broadcast {} of type {} is parked since {}: {}",
                parked.id,
                parked.message_type,
                render::time(parked.since_ms),
                parked.reason
            ))?;
        }
        Ok(())
    }
}

impl Parked {
    fn object(&self) -> Value {
        json!({
            "broadcast_id": self.id,
            "type": self.message_type,
            "reason": self.reason,
            "since": render::time(self.since_ms),
        })
    }
}
