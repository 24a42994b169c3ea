use oncelog_format::control::{Attempt, Entries, Entry, PchannelEnd};
use oncelog_format::message::{AckMode, BroadcastHeader, Fingerprint, TimeTick};

use super::super::snapshot::Snapshot;
use super::*;
use crate::io::fault::Dice;

/// Records as a broadcaster writes them and as none does: few identities, so that they meet.
struct Records {
    dice: Dice,
    at_ms: u64,
}

impl Records {
    fn id(&mut self) -> BroadcastId {
        BroadcastId(1 + self.dice.below(12))
    }

    fn attempt(&mut self) -> u32 {
        1 + u32::from(self.dice.below(4) == 0)
    }

    fn accepted(&mut self, id: BroadcastId, state: &State) -> Accepted {
        let scope = Scope {
            principal: self.dice.below(3).to_string(),
            message_type: "T".into(),
            domain: "d".into(),
            identity: "0".into(),
            generation: 0,
            client_key: vec![b'0' + u8::try_from(self.dice.below(6)).unwrap()],
        };
        let job = match self.dice.below(4) {
            0 | 1 => JobLink::Starts,
            2 => {
                let commit = self.dice.below(2) == 0;
                // Mostly of a job that is there.
                let running = state.running.iter().nth(self.dice.index(3)).copied();
                let job = running.unwrap_or_else(|| self.id());
                JobLink::Ends { job, attempt: self.attempt(), commit }
            }
            _ => JobLink::None,
        };
        Accepted {
            header: BroadcastHeader {
                id,
                vchannels: vec!["v".into()],
                resources: Vec::new(),
                ack: AckMode::Append,
            },
            message_type: "T".into(),
            scope: (self.dice.below(3) > 0).then_some(scope),
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: vec![PchannelEnd { pchannel: "p".into(), next_lsn: 1 }],
            lifetime_ms: self.dice.below(20),
            firm: self.dice.below(2) == 0,
            job,
            properties: Vec::new(),
            trace: None,
            payload: Vec::new(),
        }
    }

    fn next(&mut self, state: &State) -> ControlRecord {
        self.at_ms += self.dice.below(3);
        let (id, known) = (self.id(), state.next_id());
        let body = match self.dice.below(9) {
            0 | 1 => {
                let id = if self.dice.below(8) == 0 { id } else { known };
                Body::Accepted(Arc::new(self.accepted(id, state)))
            }
            2 | 3 => {
                let failed = self.dice.below(4) == 0;
                let outcome = if failed { Outcome::Failed("no".into()) } else { Outcome::Done };
                let open = state.tasks.iter().find(|(_, task)| task.done.is_none());
                let id = open.filter(|_| self.dice.below(3) > 0).map_or(id, |(id, _)| *id);
                Body::Done(Done { id, outcome })
            }
            4 => Body::Dropped(Dropped { id, cause: DropCause::Expired }),
            5 => Body::Dropped(Dropped { id, cause: DropCause::Evicted }),
            6 => Body::Dropped(Dropped { id, cause: DropCause::Retired }),
            7 => Body::Attempt(Attempt { job: id, attempt: self.attempt() }),
            _ => {
                let position = AckPosition { vchannel: 0, lsn: 1, time_tick: TimeTick(1) };
                Body::Ack(oncelog_format::control::Ack { id, positions: vec![position] })
            }
        };
        ControlRecord { at_ms: self.at_ms, body }
    }
}

#[test]
fn counts_and_indexes_are_what_counting_again_says() {
    let (mut most_running, mut most_over) = (0, 0);
    for seed in 0..100 {
        let (mut records, mut state) =
            (Records { dice: Dice::new(seed), at_ms: 1 }, State::default());
        for n in 0..150 {
            let record = records.next(&state);
            state.apply(&record);
            let at = format!("record {n} of seed {seed}: {record:?}");
            let tasks = || state.tasks().map(|(_, task)| task);
            let open = |task: &Cow<'_, TaskState>| task.done.is_none();
            let starts = |task: &Cow<'_, TaskState>| task.accepted.job == JobLink::Starts;
            let running: Vec<_> =
                state.jobs().filter(|(_, job)| job.over.is_none()).map(|(id, _)| id).collect();
            let starting = tasks().filter(open).filter(starts).count();
            assert_eq!(state.live_job_count(), starting + running.len(), "{at}");
            assert!(state.running_jobs().map(|(id, _)| id).eq(running.iter().copied()), "{at}");
            let over = state.jobs().filter_map(|(id, job)| job.over.map(|(_, at)| (at, id)));
            let over: BTreeSet<_> = over.collect();
            assert_eq!(state.over, over, "{at}");
            let until_ms = records.at_ms.saturating_sub(5);
            let old = over.iter().filter(|(at, _)| *at <= until_ms).map(|(_, id)| *id);
            assert!(state.over_until(until_ms).eq(old), "{at}");
            let held = tasks().filter(|task| task.accepted.scope.is_some()).count();
            assert_eq!(state.window.held_count(), held, "{at}");
            let live = |now_ms| {
                let keyed = state.tasks().filter(|(_, task)| task.accepted.scope.is_some());
                keyed.filter(|(id, _)| !state.is_over(*id, now_ms)).count()
            };
            assert_eq!(state.window.live_count(records.at_ms), live(records.at_ms), "{at}");
            assert_eq!(state.size, state.counted(), "{at}");
            let bytes = encoded(&state);
            assert!((bytes..bytes * 3 + 1_000).contains(&state.checkpoint_bytes()), "{at}");
            most_running = most_running.max(running.len());
            most_over = most_over.max(over.len());
        }
    }
    assert!(most_running > 2 && most_over > 2, "{most_running} running, {most_over} over");
}

#[test]
fn a_task_moves_with_its_acceptance_its_acks_and_its_resumption() {
    let mut records = Records { dice: Dice::new(1), at_ms: 1 };
    let mut state = State::default();
    let accepted = Body::Accepted(Arc::new(records.accepted(BroadcastId(1), &state)));
    let id = BroadcastId(1);
    let mut check = |at_ms, body: Body, moved_at_ms| {
        state.apply(&ControlRecord { at_ms, body });
        assert_eq!(state.task(id).unwrap().moved_at_ms, moved_at_ms);
    };
    check(10, accepted, 10);
    let position = AckPosition { vchannel: 0, lsn: 1, time_tick: TimeTick(1) };
    let ack = oncelog_format::control::Ack { id, positions: vec![position] };
    check(20, Body::Ack(ack.clone()), 20);
    // A second one moves nothing, nor does parking it.
    check(30, Body::Ack(ack), 20);
    let reason = String::new();
    check(40, Body::Park(oncelog_format::control::Park { id, reason: reason.clone() }), 20);
    check(50, Body::Resume(oncelog_format::control::Resume { id, reason }), 50);
}

#[test]
fn the_first_done_counts_and_a_later_one_moves_nothing() {
    let (mut records, mut state) = (Records { dice: Dice::new(1), at_ms: 1 }, State::default());
    let id = BroadcastId(1);
    let mut accepted = records.accepted(id, &state);
    (accepted.job, accepted.lifetime_ms) = (JobLink::None, 100);
    accepted.scope = Some(Scope {
        principal: "p".into(),
        message_type: "T".into(),
        domain: "d".into(),
        identity: "0".into(),
        generation: 0,
        client_key: b"k".to_vec(),
    });
    state.apply(&ControlRecord { at_ms: 1, body: Body::Accepted(Arc::new(accepted)) });
    let failed = Outcome::Failed("no".into());
    for (at_ms, outcome) in [(5, failed.clone()), (9, Outcome::Done)] {
        state.apply(&ControlRecord { at_ms, body: Body::Done(Done { id, outcome }) });
    }
    let task = state.task(id).unwrap();
    assert_eq!(task.done, Some((failed, 5)));
    assert_eq!(task.expires_at_ms(), Some(105));
    assert_eq!(state.ignored_count(), 1);
}

/// All entries of a state at once.
fn entries(state: &State) -> Vec<Entry> {
    let mut snapshot = Snapshot::new(state);
    let mut entries = snapshot.next(state, usize::MAX);
    entries.extend(snapshot.filters());
    entries
}

/// Bytes of a checkpoint.
fn encoded(state: &State) -> u64 {
    let mut stream = Vec::new();
    entries(state).iter().for_each(|entry| entry.encode(&mut stream).unwrap());
    stream.len() as u64
}

fn names(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("{n:08}")).collect()
}

/// A plan of many files.
fn large_plan(job: BroadcastId) -> oncelog_format::control::JobPlan {
    let file = oncelog_format::control::PlanFile {
        path: "a file".into(),
        bytes: 1,
        modified_ns: 1,
        inode: 1,
        sha256: [7; 32],
        rows: 1,
    };
    oncelog_format::control::JobPlan {
        job,
        attempt: 1,
        files: vec![file; 2_000],
        slice_rows: 1,
        partition_function: 1,
        partition_version: 1,
        vchannels: names(100),
        from: names(100)
            .into_iter()
            .map(|pchannel| PchannelEnd { pchannel, next_lsn: 1 })
            .collect(),
        detail: vec![7; 9_000],
    }
}

fn large_collection() -> Collection {
    Collection {
        id: 1,
        name: "c".into(),
        generation: 0,
        schema: vec![7; 40_000],
        primary_key: None,
        partition_function: 1,
        partition_version: 1,
        vchannels: names(100),
    }
}

/// A record that ends work is written on a full disk: what it made of a checkpoint had no room
/// there, a filter that begins with the first key that is dropped least of all.
#[test]
fn what_ends_work_makes_no_checkpoint_larger_than_was_kept() {
    let mut most_ahead = 0;
    for seed in 0..300 {
        let (mut records, mut state) =
            (Records { dice: Dice::new(seed), at_ms: 1 }, State::default());
        // With all that the last record of new work was told of.
        let mut kept = state.checkpoint_bytes();
        for n in 0..150 {
            let record = records.next(&state);
            let at = format!("record {n} of seed {seed}: {record:?}");
            let body = &record.body;
            let key_count = match body {
                Body::Accepted(accepted) => usize::from(accepted.scope.is_some()),
                _ => 0,
            };
            // What was promised with its job.
            let ends_job = match body {
                Body::Accepted(accepted) if accepted.scope.is_none() => match accepted.job {
                    JobLink::Ends { job, attempt, .. } => state.job(job).is_some_and(|job| {
                        (job.attempt, job.end, job.over) == (attempt, None, None)
                    }),
                    _ => false,
                },
                _ => false,
            };
            if !body.is_finishing() && !ends_job {
                let ahead = state.bytes_ahead(key_count) + state.bytes_of(body);
                kept = state.checkpoint_bytes() + ahead;
            }
            state.apply(&record);
            assert!(state.checkpoint_bytes() <= kept, "{at}");
            most_ahead = most_ahead.max(state.bytes_ahead(0));
        }
    }
    assert!(most_ahead > 4_096, "{most_ahead} bytes ahead");
}

/// Plans and what jobs keep of their acceptances were not counted, so that a checkpoint was
/// promised less room than it takes.
#[test]
fn what_a_checkpoint_takes_is_counted_whatever_carries_it() {
    #[track_caller]
    fn check(state: &State, least: u64) {
        let bytes = encoded(state);
        assert!(bytes >= least, "{bytes}");
        // A little more, and not much.
        let most = bytes + bytes / 4 + 2_000;
        assert!((bytes..most).contains(&state.checkpoint_bytes()), "{}", state.checkpoint_bytes());
        assert!(state.open_bytes() <= state.checkpoint_bytes());
    }
    let mut state = State::default();
    let mut apply = |body: Body| {
        state.apply(&ControlRecord { at_ms: 1, body });
        state.clone()
    };
    let mut records = Records { dice: Dice::new(1), at_ms: 1 };
    let job = BroadcastId(1);
    let mut starts = records.accepted(job, &State::default());
    starts.job = JobLink::Starts;
    starts.header.vchannels = names(500);
    starts.payload = vec![7; 100_000];
    starts.properties = vec![("p".into(), vec![7; 50_000])];
    let accepted = apply(Body::Accepted(Arc::new(starts)));
    check(&accepted, 150_000);
    assert!(accepted.open_bytes() > 150_000);
    let done = apply(Body::Done(Done { id: job, outcome: Outcome::Done }));
    check(&done, 150_000);
    assert!(done.open_bytes() > 150_000, "a job that runs keeps its acceptance");
    let planned = apply(Body::JobPlan(Arc::new(large_plan(job))));
    check(&planned, 300_000);
    assert!(planned.open_bytes() > 300_000);
    let with_collection = apply(Body::Collection(Arc::new(large_collection())));
    check(&with_collection, 340_000);
    assert_eq!(with_collection.open_bytes(), planned.open_bytes());
    let mut aborts = records.accepted(BroadcastId(2), &State::default());
    aborts.job = JobLink::Ends { job, attempt: 1, commit: false };
    apply(Body::Accepted(Arc::new(aborts)));
    let over = apply(Body::Done(Done { id: BroadcastId(2), outcome: Outcome::Done }));
    check(&over, 340_000);
    assert_eq!(over.open_bytes(), 0);
    let again = apply(Body::Attempt(Attempt { job, attempt: 2 }));
    check(&again, 190_000);
    assert!((150_000..200_000).contains(&again.open_bytes()));
    // A filter of dropped keys alone is left.
    let mut dropped = records.accepted(BroadcastId(3), &State::default());
    dropped.job = JobLink::None;
    dropped.scope.get_or_insert_with(|| unreachable!("the seed has one")).client_key = vec![7];
    apply(Body::Accepted(Arc::new(dropped)));
    apply(Body::Done(Done { id: BroadcastId(3), outcome: Outcome::Done }));
    check(
        &apply(Body::Dropped(Dropped { id: BroadcastId(3), cause: DropCause::Expired })),
        190_000,
    );
}

fn rebuilt(entries: Vec<Entry>) -> State {
    let mut stream = Vec::new();
    entries.iter().for_each(|entry| entry.encode(&mut stream).unwrap());
    let (mut state, mut decoded) = (State::default(), Entries::default());
    for part in stream.chunks(100) {
        decoded.push(part, |entry| assert!(state.take_entry(entry))).unwrap();
    }
    decoded.finish().unwrap();
    state.end_entries();
    state
}

#[test]
fn a_snapshot_is_the_state_at_its_begin_whatever_changes_meanwhile() {
    let mut steps = 0;
    for seed in 0..300 {
        let mut records = Records { dice: Dice::new(seed), at_ms: 1 };
        let mut state = State::default();
        for _ in 0..records.dice.below(150) {
            state.apply(&records.next(&state));
        }
        let expected = entries(&state);
        let mut snapshot = Snapshot::new(&state);
        let mut found = Vec::new();
        loop {
            let some = snapshot.next(&state, 1 + records.dice.index(3));
            if some.is_empty() {
                break;
            }
            found.extend(some);
            for _ in 0..records.dice.below(4) {
                let record = records.next(&state);
                snapshot.note(&state, &record);
                state.apply(&record);
                steps += 1;
            }
        }
        found.extend(snapshot.filters());
        assert_eq!(found, expected, "seed {seed}");
    }
    assert!(steps > 1000, "{steps}");
}

#[test]
fn a_state_of_entries_goes_on_as_the_one_they_are_of() {
    for seed in 0..300 {
        let mut records = Records { dice: Dice::new(seed), at_ms: 1 };
        let mut state = State::default();
        for _ in 0..1 + records.dice.below(150) {
            state.apply(&records.next(&state));
        }
        let mut other = rebuilt(entries(&state));
        for n in 0..60 {
            let at = format!("record {n} of seed {seed}");
            assert_eq!(entries(&other), entries(&state), "{at}");
            assert_eq!(other.window, state.window, "{at}");
            assert_eq!((&other.running, &other.over), (&state.running, &state.over), "{at}");
            assert_eq!(other.live_job_count(), state.live_job_count(), "{at}");
            assert_eq!(other.scopes.ids(), state.scopes.ids(), "{at}");
            assert_eq!(other.size, state.size, "{at}");
            let record = records.next(&state);
            state.apply(&record);
            other.apply(&record);
        }
    }
}

#[test]
fn entries_that_contradict_each_other_are_refused() {
    let mut records = Records { dice: Dice::new(3), at_ms: 1 };
    let mut state = State::default();
    for _ in 0..100 {
        state.apply(&records.next(&state));
    }
    let all = entries(&state);
    let is = |which: fn(&Entry) -> bool| all.iter().find(|entry| which(entry)).unwrap().clone();
    let (task, job) = (is(|e| matches!(e, Entry::Task(_))), is(|e| matches!(e, Entry::Job(_))));
    let fits = |entries: &[&Entry]| {
        let mut order = EntryOrder::default();
        entries.iter().all(|entry| order.take(entry))
    };
    assert!(fits(&all.iter().collect::<Vec<_>>()));
    let facts = is(|e| matches!(e, Entry::Facts(_)));
    assert!(fits(&[&facts, &task, &job]));
    let wrong: [&[&Entry]; 5] = [
        &[&task],
        &[&facts, &facts],
        &[&facts, &task, &task],
        &[&facts, &job, &job],
        &[&facts, &job, &task],
    ];
    for (at, entries) in wrong.into_iter().enumerate() {
        assert!(!fits(entries), "case {at}");
    }
    // An identity above the greatest one.
    let none = State::default().begin_entries().remove(0);
    for entry in [&task, &job] {
        assert!(!fits(&[&none, entry]));
    }
    // An ack of no vchannel, two of one, and two in another order.
    let Entry::Task(mut acked) = task.clone() else { unreachable!("it is one") };
    let ack = |vchannel| AckPosition { vchannel, lsn: 1, time_tick: TimeTick(1) };
    for acks in [vec![ack(u32::MAX)], vec![ack(0), ack(0)], vec![ack(1), ack(0)]] {
        acked.acks = acks;
        assert!(!fits(&[&facts, &Entry::Task(acked.clone())]));
    }
    // Two owners of a scope.
    let owner = all.iter().find(|e| matches!(e, Entry::Task(x) if x.owns)).unwrap().clone();
    assert!(!rebuilt(all.clone()).take_entry(owner));
}
