//! Every short sequence of keyed submits, retries, rolls, checkpoints, trims of control, drops of
//! expired keys, resumes and restarts of a broadcaster, cut off at each persistence point of its last
//! call; and a submit whose calls of the file system fail.
//!
//! What was answered is answered again until its window is over, another payload conflicts, and
//! each key has one effect and one copy on each vchannel, once more for each window. The threads of
//! a broadcaster take turns as they like: the n-th point is not the same in every run, and whichever
//! it is, this has to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use oncelog::broadcast::{Answer, BroadcastId, Broadcaster, Options, Verdict};
use oncelog::testing::{
    Dice, EDQUOT, EIO, EMFILE, ENOSPC, EROFS, Fault, Machine, MemIo, Which, survivors,
};
use oncelog::{Clock, CreateMode, Error, ErrorKind, Result, Store, StoreOptions};

use super::drive::{SEGMENT_BYTES, chain};
use crate::broadcast::desk::{DIR, Hands, Script, assert_same, copies, request};
use crate::figures::{figure, is_release};

/// A bug of a broadcaster is planted for all threads: whoever plants one waits until no broadcaster
/// runs, and those that run without a bug share it.
pub(crate) static TURN: RwLock<()> = RwLock::new(());

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Key and payload.
    Submit(&'static str, &'static str),
    Close,
    Kill,
    /// A payload that fills a segment of control and of the channel: the next record rolls.
    Fill,
    /// A key whose callback parks, and an operator who resumes it.
    Resume,
    Checkpoint,
    /// Two days go by, and the sweeper drops every key that is over by then.
    Expire,
    /// Checkpoints behind segments of other work, until control is trimmed to behind all before.
    Trim,
}

/// A second `k` is a retry, a `k` with another payload a conflict. The first ones are played in
/// longer sequences.
const CALLS: [Call; 10] = [
    Call::Submit("k", "p"),
    Call::Submit("k", "q"),
    Call::Submit("l", "p"),
    Call::Close,
    Call::Kill,
    Call::Fill,
    Call::Resume,
    Call::Checkpoint,
    Call::Expire,
    Call::Trim,
];

/// What callers were told, and what was done for them, by all processes so far.
#[derive(Clone, Default)]
struct Told {
    answers: BTreeMap<String, (String, Answer)>,
    effects: Vec<BroadcastId>,
    /// Answers whose window is over.
    over: Vec<BroadcastId>,
}

/// One process.
struct Process {
    io: MemIo,
    script: Arc<Script>,
    broadcaster: Broadcaster,
}

impl Process {
    fn start(io: MemIo, hands: &Arc<Hands>, told: &Told) -> Result<Self> {
        let script = Arc::new(Script::default());
        let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
        let log = oncelog::Options::new().segment_bytes_max(SEGMENT_BYTES);
        // The options of the logs first: they name a file system and a clock, too.
        let store = StoreOptions::new().log(log).create(CreateMode::IfMissing);
        let store = Store::open(Path::new(DIR), &store.clock(clock).io(Arc::new(io.clone())))?;
        let options = Options::new().worker_count(1).register(Arc::<Script>::clone(&script));
        let broadcaster = Broadcaster::open(store, options)?;
        broadcaster.ensure_vchannels(&["a".into(), "b".into()])?;
        let process = Self { io, script, broadcaster };
        process.ask_again(told)?;
        Ok(process)
    }

    fn submit(&self, key: &str, payload: &str) -> Result<Answer> {
        let until = Instant::now() + Duration::from_secs(20);
        // A process that is gone tells nobody; here its threads go on, in vain.
        let patience = Duration::from_millis(20);
        let mut tries = 0;
        loop {
            let begin = Instant::now();
            let answer = self.broadcaster.submit(&request(key, payload), Some(patience));
            tries += 1;
            if let Err(e) = &answer
                && e.kind() == ErrorKind::Parked
            {
                self.resume(e)?;
                continue;
            }
            // Only one that has failed, or is gone, lets nobody wait.
            let has_waited = begin.elapsed() >= patience;
            // Without a fault, to ask again is all that there is to it.
            let again = answer.as_ref().is_err_and(|e| match e.kind() {
                ErrorKind::InFlight => has_waited && !self.io.is_stopped(),
                ErrorKind::OutcomeUnknown | ErrorKind::LockTimeout => self.io.struck() == 0,
                _ => false,
            });
            // What failed may be tried again by this process, and may be not.
            let is_enough = self.io.struck() > 0 && tries > 12;
            if !again || is_enough || Instant::now() > until {
                return answer;
            }
        }
    }

    /// Takes up the task that an error says is parked.
    fn resume(&self, parked: &Error) -> Result<()> {
        let id = parked.broadcast_id().expect("a parked task has an identity");
        match self.broadcaster.resume(id, "go on") {
            // It is no longer: a callback parks once.
            Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
            resumed => resumed,
        }
    }

    /// Has the sweeper drop what is over in two days.
    fn expire(&self, hands: &Hands, told: &mut Told) -> Result<()> {
        let answers = std::mem::take(&mut told.answers);
        told.over.extend(answers.into_values().map(|(_, answer)| answer.id));
        hands.pass(2 * 86_400_000);
        // Whoever puts a policy in force wakes the sweeper.
        self.broadcaster.refresh(self.broadcaster.policy())?;
        let is_kept =
            |id: &BroadcastId| self.broadcaster.read(|state, _| state.task(*id).is_some());
        let until = Instant::now() + Duration::from_secs(20);
        while told.over.iter().any(is_kept) && !self.io.is_stopped() {
            assert!(Instant::now() < until, "what is over is not swept");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Has control trimmed to behind everything that was answered until here.
    fn trim(&self, told: &mut Told) -> Result<()> {
        for key in TRIMMING {
            self.ask(key, &filling(), told)?;
            self.broadcaster.checkpoint()?;
        }
        let trims = self.broadcaster.stats().logs["control"].trims;
        assert!(trims > 0 || self.io.is_stopped(), "control is not trimmed");
        Ok(())
    }

    /// A call of a caller who knows what he was told.
    fn ask(&self, key: &str, payload: &str, told: &mut Told) -> Result<()> {
        match (told.answers.get(key), self.submit(key, payload)) {
            (Some((known, answer)), Ok(again)) => {
                assert_eq!(known, payload, "another payload was answered");
                assert!(again.duplicated, "an answer was given and is forgotten");
                assert_same(answer, &again);
            }
            (None, Ok(answer)) => {
                told.answers.insert(key.to_owned(), (payload.to_owned(), answer));
            }
            (Some((known, _)), Err(e)) if e.kind() == ErrorKind::Conflict => {
                assert_ne!(known, payload, "the same payload conflicts");
            }
            (_, Err(e)) => return Err(e),
        }
        Ok(())
    }

    fn ask_again(&self, told: &Told) -> Result<()> {
        for (key, (payload, answer)) in &told.answers {
            let again = self.submit(key, payload)?;
            assert!(again.duplicated, "an answer was given and is forgotten");
            assert_same(answer, &again);
        }
        Ok(())
    }

    fn end(self, told: &mut Told) -> MemIo {
        told.effects.extend(self.script.effects());
        self.io.kill();
        self.io
    }
}

/// Keys of the work that a trim of control needs.
const TRIMMING: [&str; 3] = ["t1", "t2", "t3"];

fn filling() -> String {
    "f".repeat(50_000)
}

/// Makes the calls, the last one cut off before its `nth` persistence point; what is left, and
/// whether the cut came before the end.
fn cut(calls: &[Call], hands: &Arc<Hands>, nth: u64) -> (Machine, Told, bool) {
    let mut told = Told::default();
    let mut process =
        Process::start(MemIo::new(Machine::new()), hands, &told).expect("nothing fails yet");
    let (last, before) = calls.split_last().expect("a call");
    for call in before {
        process = step(process, *call, hands, &mut told).unwrap_or_else(|(_, e)| panic!("{e}"));
    }
    process.io.arm(Which::Persist, nth, 1, Fault::Stop);
    let io = match step(process, *last, hands, &mut told) {
        Ok(process) => {
            let stopped = process.io.is_stopped();
            let io = process.end(&mut told);
            return (io.machine(), told, stopped);
        }
        Err((io, e)) => {
            assert!(io.is_stopped(), "{}", chain(&e));
            io
        }
    };
    io.kill();
    (io.machine(), told, true)
}

fn step(
    process: Process,
    call: Call,
    hands: &Arc<Hands>,
    told: &mut Told,
) -> std::result::Result<Process, (MemIo, Error)> {
    let done = match call {
        Call::Submit(key, payload) => process.ask(key, payload, told),
        Call::Fill => process.ask("fill", &filling(), told),
        Call::Close => process.broadcaster.close(),
        Call::Kill => Ok(()),
        Call::Resume => {
            process.script.next(Verdict::Park("by the sequence".into()));
            process.ask("r", "p", told)
        }
        Call::Checkpoint => process.broadcaster.checkpoint().map(drop),
        Call::Expire => process.expire(hands, told),
        Call::Trim => process.trim(told),
    };
    if done.is_err() || matches!(call, Call::Close | Call::Kill) {
        let io = process.end(told);
        done.map_err(|e| (io.clone(), e))?;
        let next = io.successor(io.machine());
        return Process::start(next.clone(), hands, told).map_err(|e| (next, e));
    }
    Ok(process)
}

/// Power losses that left a file with blocks of another one.
static REUSED: AtomicUsize = AtomicUsize::new(0);

/// A kill, and power losses of everything and of a part, with the blocks of what comes back given to
/// other files too.
fn after(machine: &Machine, seed: u64) -> Vec<Machine> {
    let unsynced = machine.unsynced();
    let mut left = vec![machine.clone(), machine.power_loss(&unsynced, &[])];
    let ways = survivors(&unsynced, 3, &mut Dice::new(seed));
    left.extend(ways.last().map(|way| machine.power_loss(&unsynced, way)));
    // What opens is what is read: it is the same where nothing was lost.
    let mut seen = BTreeSet::new();
    left.retain(|machine| seen.insert(machine.digest()));
    let mut dice = Dice::new(seed);
    let reused = left.iter().filter_map(|left| machine.reuse_blocks(left, &mut dice));
    let reused: Vec<Machine> = reused.collect();
    REUSED.fetch_add(reused.len(), Ordering::Relaxed);
    left.extend(reused);
    left
}

/// Opens what is left, asks for every key that may have been asked for, and counts.
fn check(machine: Machine, hands: &Arc<Hands>, told: &Told, calls: &[Call]) {
    let mut told = told.clone();
    let process = Process::start(MemIo::new(machine), hands, &told).unwrap();
    for call in calls {
        match call {
            Call::Submit(key, payload) => match process.ask(key, payload, &mut told) {
                // Accepted by a process that was cut off before it said so.
                Err(e) if e.kind() == ErrorKind::Conflict && *key == "k" => {
                    let other = if *payload == "p" { "q" } else { "p" };
                    process.ask(key, other, &mut told).unwrap();
                }
                asked => asked.unwrap(),
            },
            Call::Fill => process.ask("fill", &filling(), &mut told).unwrap(),
            Call::Resume => process.ask("r", "p", &mut told).unwrap(),
            Call::Trim => {
                for key in TRIMMING {
                    process.ask(key, &filling(), &mut told).unwrap();
                }
            }
            Call::Close | Call::Kill | Call::Checkpoint | Call::Expire => {}
        }
    }
    let found = copies(&process.broadcaster);
    let mut ids = told.over.clone();
    ids.extend(told.answers.values().map(|(_, answer)| answer.id));
    ids.sort();
    let known =
        ids.iter().flat_map(|id| ["a", "b"].map(|vchannel| ((*id, vchannel.to_owned()), 1)));
    assert_eq!(found, known.collect(), "not one copy of each answer on each vchannel");
    told.effects.extend(process.script.effects());
    told.effects.sort();
    told.effects.dedup();
    assert_eq!(told.effects, ids, "not one effect for each answer");
    process.broadcaster.close().unwrap();
}

/// Every cut of the last call; how many there were.
fn cut_each(calls: &[Call]) -> usize {
    let hands = Arc::new(Hands::default());
    let mut cases = 0;
    for nth in 1.. {
        let (machine, told, is_cut) = cut(calls, &hands, nth);
        for machine in after(&machine, nth) {
            check(machine, &hands, &told, calls);
            cases += 1;
        }
        if !is_cut {
            break;
        }
    }
    cases
}

/// Runs every job, most of which wait for threads of their own, and sums up.
pub(crate) fn run_all<T: Sync>(jobs: &[T], run: impl Fn(&T) -> usize + Sync) -> usize {
    let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from) * 4;
    std::thread::scope(|scope| {
        let work = || {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                sum.fetch_add(run(job), Ordering::Relaxed);
            }
        };
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        runs.into_iter().for_each(|run| run.join().unwrap());
    });
    sum.into_inner()
}

/// A trim of control takes as long as many other calls: it comes once, behind another call, and is
/// cut off itself in sequences of two.
fn is_played(calls: &[Call]) -> bool {
    let mut trims = calls.iter().enumerate().filter(|(_, call)| **call == Call::Trim);
    match (trims.next(), trims.next()) {
        (None, _) => true,
        (Some((at, _)), None) => at > 0 && (at + 1 < calls.len() || at == 1),
        _ => false,
    }
}

/// All sequences of the first calls, of each length as many of them as it has letters.
fn sequences(letters: &[usize]) -> Vec<Vec<Call>> {
    let mut all = Vec::new();
    for (length, letters) in (1..).zip(letters) {
        let mut of_length: Vec<Vec<Call>> = vec![Vec::new()];
        for _ in 0..length {
            let longer = |calls: Vec<Call>| {
                let each = CALLS[..*letters].iter();
                each.map(|call| [calls.as_slice(), &[*call]].concat()).collect::<Vec<_>>()
            };
            of_length = of_length.into_iter().flat_map(longer).collect();
        }
        all.extend(of_length.into_iter().filter(|calls| is_played(calls)));
    }
    all
}

/// A key is asked for again behind a trim of control that has taken its records.
fn retries_behind_a_trim(calls: &[Call]) -> bool {
    let trim = calls.iter().position(|call| *call == Call::Trim);
    let Some((before, behind)) = trim.map(|at| calls.split_at(at)) else { return false };
    let is_retry = |call: &Call| matches!(call, Call::Submit(..)) && before.contains(call);
    behind.iter().take_while(|call| **call != Call::Expire).any(is_retry)
}

#[test]
fn no_short_sequence_of_keyed_submits_breaks_the_contract() {
    let _turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    // By length, how many of the calls there are to choose from.
    let letters: &[usize] = match (cfg!(planted), is_release()) {
        (false, _) => &[9, 5],
        (true, false) => &[10, 10, 10, 5],
        (true, true) => &[10, 10, 10, 10, 5],
    };
    let sequences = sequences(letters);
    let length = letters.len();
    let cases = run_all(&sequences, |calls| {
        catch_unwind(AssertUnwindSafe(|| cut_each(calls)))
            .unwrap_or_else(|_| panic!("in {calls:?}"))
    });
    println!(
        "keyed: {} sequences of up to {length}, {cases} cases, {:.1} s",
        sequences.len(),
        begin.elapsed().as_secs_f64()
    );
    figure(2, "steps in sequences of calls of a broadcaster", length);
    figure(2, "sequences of calls of a broadcaster", sequences.len());
    figure(2, "crashes in sequences of calls of a broadcaster", cases);
    let behind = sequences.iter().filter(|calls| retries_behind_a_trim(calls)).count();
    figure(2, "sequences with a retry behind a trim of control", behind);
    let reused = REUSED.load(Ordering::Relaxed);
    figure(2, "power losses of a broadcaster with blocks reused", reused);
    assert!(reused > 0 || !cfg!(planted), "no removed file has come back");
}

/// A submit in a store, there already or made for it, whose `nth` call fails: what the caller is
/// told, then a restart without faults. False when no call was met.
fn fail(nth: u64, (is_there, times, fault): (bool, u64, Fault)) -> bool {
    let hands = Arc::new(Hands::default());
    let mut told = Told::default();
    let io = MemIo::new(Machine::new());
    if is_there {
        let made = Process::start(io.clone(), &hands, &told).unwrap();
        made.broadcaster.close().unwrap();
        made.end(&mut told);
    }
    let io = MemIo::new(io.machine());
    io.arm(Which::Any, nth, times, fault);
    match Process::start(io.clone(), &hands, &told) {
        Ok(process) => {
            let asked = process.ask("k", "p", &mut told);
            if let Err(e) = asked {
                is_told(&e, fault);
            }
            // A failed close leaves what a kill leaves. A channel that failed, and failed to open
            // again, is closed already.
            if let Err(e) = process.broadcaster.close()
                && e.kind() != ErrorKind::Closed
            {
                is_told(&e, fault);
            }
            process.end(&mut told);
        }
        Err(e) => is_told(&e, fault),
    }
    let met = io.struck() > 0;
    io.kill();
    for machine in after(&io.machine(), nth) {
        check(machine, &hands, &told, &[Call::Submit("k", "p")]);
    }
    met
}

/// An error is told as what it is.
#[track_caller]
fn is_told(e: &Error, fault: Fault) {
    let told = [
        ErrorKind::OutcomeUnknown,
        ErrorKind::InFlight,
        ErrorKind::Poisoned,
        ErrorKind::Io,
        ErrorKind::Recovering,
    ];
    let full = [Fault::Error(ENOSPC), Fault::Error(EDQUOT)].contains(&fault);
    let known = told.contains(&e.kind()) || (full && e.kind() == ErrorKind::StoreFull);
    assert!(known, "{fault:?}: {} ({})", chain(e), e.kind());
}

#[test]
fn no_failing_call_under_a_broadcaster_breaks_the_contract() {
    let _turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    let faults: &[Fault] = &[
        Fault::Error(EIO),
        Fault::Error(ENOSPC),
        Fault::Error(EDQUOT),
        Fault::Error(EROFS),
        Fault::Error(EMFILE),
        Fault::Short(1),
        Fault::Short(100),
    ];
    let faults = if cfg!(planted) { faults } else { &faults[..1] };
    let each = |fault: &Fault| [true, false].map(|is_there| (is_there, *fault));
    let jobs: Vec<(bool, u64, Fault)> = faults
        .iter()
        .flat_map(each)
        .flat_map(|(is_there, fault)| [1, 40].map(|times| (is_there, times, fault)))
        .collect();
    let cases = run_all(&jobs, |job| {
        let met = |nth: &u64| {
            catch_unwind(AssertUnwindSafe(|| fail(*nth, *job)))
                .unwrap_or_else(|_| panic!("at call {nth} of (there, times, fault) {job:?}"))
        };
        (1..).step_by(if cfg!(planted) { 1 } else { 5 }).take_while(met).count()
    });
    println!("faults: {cases} cases under a broadcaster");
    figure(5, "cases of a failing call of a broadcaster", cases);
}
