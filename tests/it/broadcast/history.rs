//! Random histories of callers, kills, power losses, failed writes and time, against what the
//! callers were told. Every seed is fixed; a failure names it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{Answer, BroadcastId, Options};
use oncelog::testing::{Dice, EIO, Fault, Machine, Which, survivors};

use super::desk::{Desk, Hands, Script, assert_same, copies, request};

const HISTORIES: u64 = 300;
const STEPS: usize = 25;
const KEYS: [&str; 3] = ["1", "2", "3"];
const PAYLOADS: [&str; 2] = ["p", "q"];

/// What the callers of one key know.
#[derive(Default)]
struct Known {
    /// The last answer, and for which payload.
    told: Option<(&'static str, Answer)>,
    /// Payloads whose acceptance is not known.
    maybe: BTreeSet<&'static str>,
}

struct History {
    dice: Dice,
    hands: Arc<Hands>,
    desk: Desk,
    known: BTreeMap<&'static str, Known>,
    effects: BTreeSet<BroadcastId>,
}

impl History {
    fn begin(seed: u64) -> Self {
        let (hands, dice) = (Arc::new(Hands::default()), Dice::new(seed));
        let desk = desk_on(Machine::new(), &hands);
        Self { dice, hands, desk, known: BTreeMap::new(), effects: BTreeSet::new() }
    }

    fn step(&mut self) {
        match self.dice.below(10) {
            0 => self.hands.pass(1 + self.dice.below(3_600_000)),
            1 => self.hands.pass(self.dice.below(86_400_000)),
            2 => {
                self.desk.broadcaster.close().unwrap();
                self.restart(false);
            }
            3 => {
                self.desk.io.kill();
                let power_loss = self.dice.below(2) == 0;
                self.restart(power_loss);
            }
            4 => {
                let nth = 1 + self.dice.below(12);
                self.desk.io.arm(Which::Persist, nth, 1, Fault::Stop);
                self.submit();
                self.desk.io.kill();
                let power_loss = self.dice.below(2) == 0;
                self.restart(power_loss);
            }
            5 => {
                let nth = 1 + self.dice.below(12);
                self.desk.io.arm(Which::Persist, nth, 1, Fault::Error(EIO));
                self.submit();
                self.desk.io.disarm();
                self.desk.io.kill();
                self.restart(false);
            }
            _ => self.submit(),
        }
    }

    fn submit(&mut self) {
        let key = KEYS[self.dice.index(KEYS.len())];
        let payload = PAYLOADS[self.dice.index(PAYLOADS.len())];
        let before_ms = self.desk.broadcaster.jobs().now_ms();
        let answer = loop {
            let timeout = Some(Duration::from_millis(20));
            let answer = self.desk.broadcaster.submit(&request(key, payload), timeout);
            let ask_again = answer.as_ref().is_err_and(|e| {
                matches!(e.kind(), ErrorKind::InFlight | ErrorKind::OutcomeUnknown)
            });
            let is_stuck = self.desk.io.is_stopped() || self.desk.io.struck() > 0;
            if !ask_again || is_stuck {
                break answer;
            }
        };
        let after_ms = self.desk.broadcaster.jobs().now_ms();
        let known = self.known.entry(key).or_default();
        match answer {
            Ok(answer) => known.hear(payload, answer, before_ms, after_ms),
            Err(e) if e.kind() == ErrorKind::Conflict => known.hear_conflict(payload, before_ms),
            Err(e) => {
                let faulty = self.desk.io.is_stopped() || self.desk.io.struck() > 0;
                assert!(faulty, "an error without a fault: {e}");
                known.maybe.insert(payload);
            }
        }
    }

    /// The next process, after a kill or a power loss.
    fn restart(&mut self, power_loss: bool) {
        self.effects.extend(self.desk.script.effects());
        let mut machine = self.desk.io.machine();
        if power_loss {
            let unsynced = machine.unsynced();
            let ways = survivors(&unsynced, 8, &mut self.dice);
            machine = machine.power_loss(&unsynced, &ways[self.dice.index(ways.len())]);
        }
        self.desk = desk_on(machine, &self.hands);
        let counts = copies(&self.desk.broadcaster);
        assert!(counts.values().all(|count| *count == 1), "a copy twice: {counts:?}");
        for (_, told) in self.known.values().filter_map(|known| known.told.as_ref()) {
            for vchannel in told.channels.keys() {
                assert!(counts.contains_key(&(told.id, vchannel.clone())), "a copy is gone");
            }
            assert!(self.effects.contains(&told.id), "answered without the effect");
        }
    }
}

impl Known {
    fn hear(&mut self, payload: &'static str, answer: Answer, before_ms: u64, after_ms: u64) {
        let expires_at_ms = answer.expires_at_ms.unwrap();
        assert_eq!(expires_at_ms, answer.done_at_ms + 86_400_000);
        let told = self.told.as_ref().filter(|(_, told)| told.id == answer.id);
        if let Some((was, told)) = told {
            assert_eq!((*was, answer.duplicated), (payload, true));
            assert_same(told, &answer);
            assert!(before_ms < expires_at_ms, "an expired key was replayed");
            return;
        }
        if let Some((_, told)) = &self.told {
            let over = told.expires_at_ms.is_some_and(|at| after_ms >= at);
            assert!(over, "a live key was accepted again");
        }
        let unheard = self.maybe.contains(payload);
        assert!(!answer.duplicated || unheard || after_ms > before_ms, "a duplicate of nothing");
        self.maybe.clear();
        self.told = Some((payload, answer));
    }

    fn hear_conflict(&self, payload: &'static str, before_ms: u64) {
        let told = self.told.as_ref().is_some_and(|(was, told)| {
            *was != payload && told.expires_at_ms.is_some_and(|at| before_ms < at)
        });
        let maybe = self.maybe.iter().any(|other| *other != payload);
        assert!(told || maybe, "a conflict with something that was never accepted");
    }
}

fn desk_on(machine: Machine, hands: &Arc<Hands>) -> Desk {
    let script = Arc::new(Script::default());
    let options = Options::new().worker_count(2).register(Arc::<Script>::clone(&script));
    let desk = Desk::on(machine, Arc::clone(hands), script, options).unwrap();
    desk.broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    desk
}

#[test]
pub(crate) fn no_history_tells_a_caller_what_is_not_so() {
    for seed in 1..=HISTORIES {
        let played = std::panic::catch_unwind(|| {
            let mut history = History::begin(seed);
            for _ in 0..STEPS {
                history.step();
            }
            history.desk.broadcaster.close().unwrap();
        });
        assert!(played.is_ok(), "history {seed}");
    }
}
