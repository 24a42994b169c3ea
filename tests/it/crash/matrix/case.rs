//! One case of the matrix: a script, cut off by a mishap at a persistence point, with a duplicate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncelog::broadcast::{BroadcastId, Outcome, StoreView};
use oncelog::testing::{CallKind, Dice, EIO, ENOSPC, Fault, Machine, MemIo, Which, survivors};
use oncelog::{ErrorKind, Lsn};
use oncelog_format::message::{BroadcastHeader, Scope, Vchannel};

use super::super::drive::chain;
use super::in_flight::{HandOver, Stage};
use super::job;
use super::scripts::{LARGE, SMALL, Script, Step};
use super::world::{KEY, PATIENCE, Process, Told, VCHANNELS, is_told, other, request_of};
use crate::broadcast::desk::{DIR, Hands};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The process ends; what it wrote survives.
    Kill,
    /// So does the one that recovers.
    KillTwice,
    /// Of what was not synced, any part is lost.
    PowerLoss,
    /// A sync fails, and the process ends before it hears of it.
    SyncThenKill,
    /// The call fails.
    Eio,
    NoSpace,
    /// The call of any kind, not only a persistence point, fails so many times.
    Call(Fault, u64),
}

impl Mishap {
    pub(super) const ALL: [Self; 6] = [
        Self::Kill,
        Self::KillTwice,
        Self::PowerLoss,
        Self::SyncThenKill,
        Self::Eio,
        Self::NoSpace,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillTwice => "kill in recovery",
            Self::PowerLoss => "power loss",
            Self::SyncThenKill => "failed sync and kill",
            Self::Eio => "EIO",
            Self::NoSpace => "ENOSPC",
            Self::Call(..) => "failing call",
        }
    }

    /// The calls of which it strikes one.
    fn which(self) -> Which {
        match self {
            Self::SyncThenKill => Which::Kind(CallKind::Sync),
            Self::Call(..) => Which::Any,
            _ => Which::Persist,
        }
    }

    fn arm(self, io: &MemIo, nth: u64) {
        let (times, fault) = match self {
            Self::Kill | Self::KillTwice | Self::PowerLoss => (1, Fault::Stop),
            Self::SyncThenKill => (1, Fault::Last(EIO)),
            Self::Eio => (1, Fault::Error(EIO)),
            Self::NoSpace => (1, Fault::Error(ENOSPC)),
            Self::Call(fault, times) => (times, fault),
        };
        io.arm(self.which(), nth, times, fault);
    }

    /// What it leaves for the next process.
    fn left(self, machine: Machine, dice: &mut Dice) -> Vec<Machine> {
        let unsynced = machine.unsynced();
        let mut part = || survivors(&unsynced, 3, dice).pop();
        match self {
            Self::PowerLoss => {
                let mut left = vec![machine.power_loss(&unsynced, &[])];
                left.extend(part().map(|way| machine.power_loss(&unsynced, &way)));
                left
            }
            Self::SyncThenKill => {
                let lost = part().map(|way| machine.power_loss(&unsynced, &way));
                [machine].into_iter().chain(lost).collect()
            }
            _ => vec![machine],
        }
    }
}

/// When the duplicate is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Beside the script: it is in flight when the mishap strikes, or from one point before on.
    Before,
    /// Once the store is open again, in flight at a point of the recovery of what is unfinished or
    /// of what comes behind it: where the mishap strikes again, at that.
    During,
    /// Behind: by the process that goes on, or when all is done.
    Behind,
}

impl When {
    pub(crate) const ALL: [Self; 3] = [Self::Before, Self::During, Self::Behind];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::During => "during recovery",
            Self::Behind => "behind",
        }
    }
}

#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) script: &'a Script,
    pub(super) mishap: Mishap,
    pub(super) when: When,
    /// Of the duplicate: that of the script is `p`.
    pub(super) payload: u8,
    pub(super) seed: u64,
}

/// How far the recoveries of a script go, by its cases until here.
#[derive(Debug, Default)]
pub(super) struct Recoveries {
    /// Most persistence points of one, with what the script does behind it.
    points: AtomicU64,
    /// Those at which a second mishap struck.
    struck: Mutex<BTreeSet<u64>>,
}

impl Recoveries {
    /// A point of a recovery: those of the cases that follow each other follow each other, too.
    fn point(&self, turn: u64) -> u64 {
        1 + turn % self.points.load(Ordering::Relaxed).max(1)
    }

    fn strike(&self, point: u64) {
        self.struck.lock().unwrap_or_else(PoisonError::into_inner).insert(point);
    }

    /// Points that a second mishap struck, and the last one of them.
    pub(super) fn struck(&self) -> (usize, u64) {
        let struck = self.struck.lock().unwrap_or_else(PoisonError::into_inner);
        (struck.len(), struck.last().copied().unwrap_or_default())
    }
}

/// What a case came to.
pub(super) struct Played {
    /// Restarts that were judged.
    pub(super) judged: usize,
    /// The mishap came; behind the last point it does not.
    pub(super) struck: bool,
    /// So did the one in the recovery.
    pub(super) struck_again: bool,
    /// How far the duplicate was when its point came, if it had one.
    pub(super) stage: Option<Stage>,
}

/// Ends the hand-over of a duplicate, also where a promise was broken: else it would wait for ever.
struct Ends<'a>(Option<&'a HandOver>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.map(HandOver::end);
    }
}

/// What a process is to do until it is cut off.
struct Part<'a> {
    steps: &'a [Step],
    /// The mishap may come while it opens.
    from_open: bool,
    holds: bool,
    mishap: Mishap,
    nth: u64,
    /// A duplicate is in flight at the mishap.
    duplicate: bool,
}

/// What a process that was cut off leaves.
struct Cut {
    machine: Machine,
    told: Told,
    stage: Option<Stage>,
    /// Its persistence points, those of its close aside.
    points: u64,
}

impl Case<'_> {
    /// Plays it with the mishap at the `nth` point.
    pub(super) fn play(&self, base: &(Machine, Told), nth: u64, reach: &Recoveries) -> Played {
        let (hands, io) = (Arc::new(Hands::default()), MemIo::new(base.0.clone()));
        let mut dice = Dice::new(self.seed ^ (nth << 32));
        io.seed(dice.roll());
        let part = Part {
            steps: self.script.act,
            from_open: self.script.opens,
            holds: self.script.holds(),
            mishap: self.mishap,
            nth,
            duplicate: self.when == When::Before,
        };
        let Cut { machine, told, mut stage, .. } = self.cut(&io, &hands, &base.1, &part);
        let (struck, mut struck_again) = (io.struck() > 0, false);
        let left = if self.mishap == Mishap::KillTwice {
            let turn = self.turn(nth);
            let mut nth = reach.point(turn);
            let cut = loop {
                let io = MemIo::new(machine.clone());
                let duplicate = self.when == When::During;
                let steps = self.script.finish;
                let again = Part { steps, from_open: true, holds: false, nth, duplicate, ..part };
                let cut = self.cut(&io, &hands, &told, &again);
                struck_again = io.struck() > 0;
                if struck_again || nth <= cut.points.max(1) {
                    break cut;
                }
                // This recovery does not go as far: it is played again, up to one of its own points.
                nth = 1 + turn % cut.points.max(1);
            };
            if struck_again {
                reach.strike(nth);
            }
            stage = stage.or(cut.stage);
            vec![(cut.machine, cut.told)]
        } else {
            let left = self.mishap.left(machine, &mut dice);
            left.into_iter().map(|machine| (machine, told.clone())).collect()
        };
        let judged = left.len();
        for (machine, told) in left {
            let judged = self.judge(machine, &hands, &told, reach.point(self.turn(nth)));
            reach.points.fetch_max(judged.0, Ordering::Relaxed);
            stage = stage.or(judged.1);
        }
        Played { judged, struck, struck_again, stage }
    }

    /// A number of this case and a point: those of cases that follow each other do, too, so that all
    /// together come to every point of a recovery.
    fn turn(&self, nth: u64) -> u64 {
        let of_when = match self.when {
            When::Before => 0,
            When::During => 2,
            When::Behind => 4,
        };
        6 * nth + of_when + u64::from(self.payload == b'p') + self.seed
    }

    /// A process that is cut off, or comes to its end before.
    fn cut(&self, io: &MemIo, hands: &Arc<Hands>, told: &Told, part: &Part<'_>) -> Cut {
        // At the mishap or one point before it, by other seeds further before. It is there first: no
        // call of another thread is to come between.
        let at = part.nth - (self.seed + part.nth % 2) % part.nth;
        let meet = || part.duplicate.then(|| HandOver::before(io, part.mishap.which(), at));
        let mut hand_over = None;
        if part.from_open {
            hand_over = meet();
            part.mishap.arm(io, part.nth);
        }
        let process = match Process::start(io.clone(), hands, told, part.holds) {
            Ok(process) => process,
            Err(e) => {
                is_told(&e);
                io.kill();
                let points = io.counts().1;
                return Cut { machine: io.machine(), told: told.clone(), stage: None, points };
            }
        };
        if !part.from_open {
            hand_over = meet();
            part.mishap.arm(io, part.nth);
        }
        self.beside(&process, hand_over.as_ref(), |ended| {
            std::thread::scope(|scope| {
                let (tell, watched) = mpsc::channel::<()>();
                let process = &process;
                scope.spawn(move || watch(process, &watched));
                // Dropped, the one ends the watch and the other the hand-over.
                let _over = (tell, Ends(ended));
                for step in part.steps {
                    if let Err(e) = self.script.play(process, *step) {
                        is_told(&e);
                        break;
                    }
                }
            });
        });
        let points = io.counts().1;
        io.disarm();
        if !io.is_stopped() {
            if self.when == When::Behind && !self.is_cut_off() {
                drop(process.ask(&self.script.request(self.payload), PATIENCE));
            }
            // A failed close leaves what a kill leaves.
            if self.seed.is_multiple_of(2)
                && let Err(e) = process.broadcaster.close()
            {
                is_told(&e);
            }
        }
        let (machine, told) = process.end();
        Cut { machine, told, stage: hand_over.map(|hand_over| hand_over.end()), points }
    }

    /// Runs something with the duplicate beside it, if there is to be one.
    fn beside(
        &self,
        process: &Process,
        hand_over: Option<&Arc<HandOver>>,
        run: impl FnOnce(Option<&HandOver>),
    ) {
        let Some(hand_over) = hand_over else { return run(None) };
        hand_over.open();
        std::thread::scope(|scope| {
            scope.spawn(|| hand_over.send(process, &self.script.request(self.payload)));
            run(Some(hand_over));
        });
        process.io.unmeet();
    }

    /// The mishap ends the process.
    fn is_cut_off(&self) -> bool {
        !matches!(self.mishap, Mishap::Eio | Mishap::NoSpace | Mishap::Call(..))
    }

    /// Opens what is left, has the script brought to its end, and compares. The duplicate is in
    /// flight at the `nth` persistence point of that where it belongs there; returns how many there
    /// were, and how far the duplicate was.
    fn judge(
        &self,
        machine: Machine,
        hands: &Arc<Hands>,
        told: &Told,
        nth: u64,
    ) -> (u64, Option<Stage>) {
        let io = MemIo::new(machine);
        let is_due = self.when == When::During && self.mishap != Mishap::KillTwice;
        let hand_over = is_due.then(|| HandOver::before(&io, Which::Persist, nth));
        let process = Process::start(io, hands, told, false);
        let process = process.unwrap_or_else(|e| panic!("{}", chain(&e)));
        let duplicate = self.script.request(self.payload);
        if self.when == When::Before {
            // Whoever was not told how it ended asks again.
            drop(process.ask(&duplicate, PATIENCE));
        }
        self.beside(&process, hand_over.as_ref(), |ended| {
            let _over = Ends(ended);
            for step in self.script.finish {
                let done = self.script.play(&process, *step);
                done.unwrap_or_else(|e| panic!("{step:?} behind it all: {}", chain(&e)));
            }
        });
        let points = process.io.counts().1;
        self.judge_end(process);
        (points, hand_over.map(|hand_over| hand_over.end()))
    }

    /// What stands when the script has come to its end.
    fn judge_end(&self, process: Process) {
        let asked = [self.payload, other(self.payload)].map(|payload| {
            match process.ask_until(&self.script.request(payload)) {
                Ok(answer) => Some(answer),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Conflict, "{}", chain(&e));
                    None
                }
            }
        });
        let mut answers = asked.into_iter().flatten();
        let answer = answers.next().expect("a key that nobody may use");
        assert!(answers.next().is_none(), "two payloads were answered");
        self.judge_effects(&process, answer.id, &answer.outcome);
        let channels = answer.channels.iter().map(|(name, at)| (name.as_str(), at.lsn)).collect();
        judge_copies(&process, answer.id, &channels);
        job::judge(&process);
        let keys: Vec<_> =
            process.told().keys.iter().map(|(k, of)| (k.clone(), of.clone())).collect();
        for (key, of) in keys.into_iter().filter(|(key, of)| key != KEY && of.answer.is_some()) {
            let len = if SMALL.contains(&key.as_str()) { 1 } else { LARGE };
            let again = process.ask_until(&request_of(super::world::PLAIN, &key, &"p".repeat(len)));
            assert!(again.unwrap().duplicated && of.accepted == Some(b'p'));
        }
        let (machine, _) = process.end();
        let view = StoreView::open(DIR, Arc::new(MemIo::new(machine))).unwrap();
        view.verify_checkpoints().unwrap_or_else(|e| panic!("{}", chain(&e)));
    }

    /// One effect of the accepted payload under the answered identity; none where it was skipped.
    fn judge_effects(&self, process: &Process, id: BroadcastId, outcome: &Outcome) {
        let accepted = process.told().keys[KEY].accepted;
        let effects = process.effects();
        let over = process.told().over.clone();
        let of_key = effects.iter().filter(|e| e.key == KEY && !over.contains(&e.id));
        let of_key: Vec<_> = of_key.map(|effect| (effect.id, Some(effect.payload))).collect();
        if self.script.name == "skip" {
            assert!(matches!(outcome, Outcome::Failed { .. }), "a skipped task is done");
            assert!(of_key.is_empty(), "a skipped task has an effect: {of_key:?}");
        } else {
            assert_eq!(*outcome, Outcome::Done);
            assert_eq!(of_key, [(id, accepted)], "not one effect");
        }
    }
}

/// Lets nobody wait for a process that has ended or a device that stays broken.
fn watch(process: &Process, watched: &Receiver<()>) {
    const BROKEN: Duration = Duration::from_millis(60);
    let mut begin = None;
    while watched.recv_timeout(Duration::from_millis(2)) == Err(RecvTimeoutError::Timeout) {
        if process.io.is_stopped() {
            process.hand.hold(false);
            drop(process.broadcaster.close());
            return;
        }
        if process.io.struck() > 0 {
            let begin: &mut Instant = begin.get_or_insert_with(Instant::now);
            if begin.elapsed() > BROKEN {
                process.io.disarm();
            }
        }
    }
}

/// No copy stands twice; those of the answer stand where it says, and no other broadcast of the key
/// has any but those whose window is over.
fn judge_copies(process: &Process, id: BroadcastId, channels: &BTreeMap<&str, Lsn>) {
    let mut stands: BTreeMap<(BroadcastId, String), Lsn> = BTreeMap::new();
    let over = process.told().over.clone();
    for pchannel in ["p0", "p1"] {
        let channel = process.broadcaster.jobs().channel(pchannel).unwrap();
        let mut reader = channel.read(channel.oldest()).unwrap();
        while let Some(stored) = reader.next().unwrap() {
            let Some(header) = stored.property::<BroadcastHeader>().unwrap() else { continue };
            let Vchannel(vchannel) = stored.property().unwrap().unwrap();
            if let Some(scope) = stored.property::<Scope>().unwrap()
                && scope.client_key == KEY.as_bytes()
            {
                let known = header.id == id || over.contains(&header.id);
                assert!(known, "a copy of another broadcast of the key: {}", header.id);
            }
            let before = stands.insert((header.id, vchannel), stored.lsn);
            assert_eq!(before, None, "a copy stands twice");
        }
    }
    for vchannel in VCHANNELS {
        let told = channels.get(vchannel).copied();
        assert!(told.is_some(), "an answer without the copy of {vchannel}");
        assert_eq!(stands.get(&(id, vchannel.to_owned())).copied(), told, "{vchannel}");
    }
}
