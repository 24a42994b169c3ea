//! One case of the matrix: a script, cut off by a mishap at a persistence point, with a duplicate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use oncelog::broadcast::{BroadcastId, Outcome, StoreView};
use oncelog::testing::{CallKind, Dice, EIO, ENOSPC, Fault, Machine, MemIo, Which, survivors};
use oncelog::{ErrorKind, Lsn};
use oncelog_format::message::{BroadcastHeader, Scope, Vchannel};

use super::super::drive::chain;
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

    fn arm(self, io: &MemIo, nth: u64) {
        match self {
            Self::Kill | Self::KillTwice | Self::PowerLoss => {
                io.arm(Which::Persist, nth, 1, Fault::Stop);
            }
            Self::SyncThenKill => {
                io.arm(Which::Kind(CallKind::Sync), nth, 1, Fault::Last(EIO));
            }
            Self::Eio => io.arm(Which::Persist, nth, 1, Fault::Error(EIO)),
            Self::NoSpace => io.arm(Which::Persist, nth, 1, Fault::Error(ENOSPC)),
            Self::Call(fault, times) => io.arm(Which::Any, nth, times, fault),
        }
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
pub(super) enum When {
    /// Beside the script, when it has come to the point of the mishap or to the one before it.
    Before,
    /// Once the store is open again, beside the recovery of what is unfinished.
    During,
    /// Behind: by the process that goes on, or when all is done.
    Behind,
}

impl When {
    pub(super) const ALL: [Self; 3] = [Self::Before, Self::During, Self::Behind];

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

/// Told to whoever watches a process that is to be cut off.
enum Signal {
    Point,
    Over,
}

/// What a process is to do until it is cut off.
struct Part<'a> {
    steps: &'a [Step],
    /// The mishap may come while it opens.
    from_open: bool,
    holds: bool,
    mishap: Mishap,
    nth: u64,
    duplicate: bool,
}

impl Case<'_> {
    /// Plays it with the mishap at the `nth` point; how many restarts were judged, and whether the
    /// mishap came.
    pub(super) fn play(&self, base: &(Machine, Told), nth: u64) -> (usize, bool) {
        let (hands, io) = (Arc::new(Hands::default()), MemIo::new(base.0.clone()));
        let mut dice = Dice::new(self.seed ^ (nth << 32));
        io.seed(dice.roll());
        let part = Part {
            steps: self.script.act,
            from_open: self.script.act.is_empty(),
            holds: self.script.holds(),
            mishap: self.mishap,
            nth,
            duplicate: self.when == When::Before,
        };
        let (machine, told) = self.cut(&io, &hands, &base.1, &part);
        let struck = io.struck() > 0;
        let left = if self.mishap == Mishap::KillTwice {
            let nth = 1 + dice.below(28);
            let io = MemIo::new(machine);
            let duplicate = self.when == When::During;
            let steps = self.script.finish;
            let again = Part { steps, from_open: true, holds: false, nth, duplicate, ..part };
            vec![self.cut(&io, &hands, &told, &again)]
        } else {
            let left = self.mishap.left(machine, &mut dice);
            left.into_iter().map(|machine| (machine, told.clone())).collect()
        };
        let count = left.len();
        left.into_iter().for_each(|(machine, told)| self.judge(machine, &hands, &told));
        (count, struck)
    }

    /// A process that is cut off, or comes to its end before; what it leaves.
    fn cut(&self, io: &MemIo, hands: &Arc<Hands>, told: &Told, part: &Part<'_>) -> (Machine, Told) {
        if part.from_open {
            part.mishap.arm(io, part.nth);
        }
        let process = match Process::start(io.clone(), hands, told, part.holds) {
            Ok(process) => process,
            Err(e) => {
                is_told(&e);
                io.kill();
                return (io.machine(), told.clone());
            }
        };
        if !part.from_open {
            part.mishap.arm(io, part.nth);
        }
        let (signal, watched) = mpsc::channel();
        let (point, mut points) = (signal.clone(), 0);
        // At the mishap, or one point before it.
        let at = if part.from_open { 0 } else { part.nth - self.seed % 2 };
        if at == 0 {
            drop(signal.send(Signal::Point));
        }
        io.observe(move |_, _| {
            points += 1;
            if points == at {
                // The watcher may be gone.
                drop(point.send(Signal::Point));
            }
        });
        std::thread::scope(|scope| {
            let process = &process;
            scope.spawn(move || self.watch(process, watched, part));
            for step in part.steps {
                if let Err(e) = self.script.play(process, *step) {
                    is_told(&e);
                    break;
                }
            }
            drop(signal.send(Signal::Over));
        });
        io.unobserve();
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
        process.end()
    }

    /// Sends the duplicate at its point, and lets nobody wait for a process that has ended or a device
    /// that stays broken.
    fn watch(&self, process: &Process, watched: Receiver<Signal>, part: &Part<'_>) {
        const BROKEN: Duration = Duration::from_millis(60);
        let (mut begin, mut is_sent) = (None, !part.duplicate);
        loop {
            match watched.recv_timeout(Duration::from_millis(2)) {
                Ok(Signal::Over) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Signal::Point) if !is_sent => {
                    is_sent = true;
                    drop(process.ask(&self.script.request(self.payload), PATIENCE));
                }
                Ok(Signal::Point) | Err(RecvTimeoutError::Timeout) => {}
            }
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

    /// The mishap ends the process.
    fn is_cut_off(&self) -> bool {
        !matches!(self.mishap, Mishap::Eio | Mishap::NoSpace | Mishap::Call(..))
    }

    /// Opens what is left, has the script brought to its end, and compares.
    fn judge(&self, machine: Machine, hands: &Arc<Hands>, told: &Told) {
        let process = Process::start(MemIo::new(machine), hands, told, false);
        let process = process.unwrap_or_else(|e| panic!("{}", chain(&e)));
        let duplicate = self.script.request(self.payload);
        if self.when == When::During {
            drop(process.ask(&duplicate, PATIENCE));
        }
        for step in self.script.finish {
            let done = self.script.play(&process, *step);
            done.unwrap_or_else(|e| panic!("{step:?} behind it all: {}", chain(&e)));
        }
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
