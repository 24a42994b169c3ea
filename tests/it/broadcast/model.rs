//! Random calls, clock steps, policies and restarts of a broadcaster, one after the other, against a
//! small sequential model of what its keys mean.
//!
//! Log time is an input of the model: it is read before each call, and within a process has to go on
//! with the time that passes, whatever the wall clock does; over a restart, with that of the
//! records. So is the time by which keys expire, which stands still while a clock far ahead is not
//! believed. Two instants that are closer than a test can tell apart are left out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{Answer, BroadcastId, Outcome, Policy, Verdict, WhenFull};
use oncelog::testing::Dice;

use super::desk::{Desk, Script, assert_same, copies};

const HOUR_MS: u64 = 3_600_000;
/// Instants that are closer are not told apart.
const CLOSE_MS: u64 = 2_000;
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A key that was accepted.
#[derive(Clone, Debug)]
struct Key {
    payload: &'static str,
    id: BroadcastId,
    lifetime_ms: u64,
    firm: bool,
    /// `None` while it is parked.
    answer: Option<Answer>,
}

impl Key {
    fn over_at_ms(&self) -> Option<u64> {
        self.answer.as_ref().map(|answer| answer.done_at_ms + self.lifetime_ms)
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.over_at_ms().is_some_and(|at| now_ms >= at)
    }
}

struct Model {
    desk: Desk,
    dice: Dice,
    keys: BTreeMap<&'static str, Key>,
    /// Broadcasts whose effect exists.
    effects: Vec<BroadcastId>,
    /// All that were accepted.
    accepted: Vec<BroadcastId>,
    last_ms: u64,
    calls: u64,
}

fn policy(hours: u64, count: u64, window_full: WhenFull) -> Policy {
    let mut policy = Policy::default();
    policy.window_lifetime = Duration::from_millis(hours * HOUR_MS);
    policy.window_count_max = count;
    policy.window_full = window_full;
    policy
}

impl Model {
    fn new(seed: u64) -> Self {
        let policy = policy(24, 4, WhenFull::Refuse);
        let desk = Desk::with(Arc::new(Script::default()), |options| options.policy(policy));
        let (dice, last_ms) = (Dice::new(seed), 0);
        let (keys, effects, accepted) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { desk, dice, keys, effects, accepted, last_ms, calls: 0 }
    }

    fn now_ms(&mut self) -> u64 {
        let now_ms = self.desk.broadcaster.jobs().now_ms();
        assert!(now_ms >= self.last_ms, "log time went back");
        self.last_ms = now_ms;
        now_ms
    }

    /// The time by which keys expire: log time, or where that stood when a clock began to be held.
    fn expiry_ms(&mut self) -> u64 {
        let now_ms = self.now_ms();
        let expiry_ms = self.desk.broadcaster.read(|_, expiry_ms| expiry_ms);
        let is_held = self.desk.broadcaster.stats().clock_held;
        assert!(is_held || expiry_ms >= now_ms, "keys expire too late");
        assert!(!is_held || expiry_ms <= now_ms, "a key expires while the clock is held");
        expiry_ms
    }

    /// No key's instant is so near that a call may come before or behind it.
    fn is_clear(&self, now_ms: u64) -> bool {
        self.keys.values().filter_map(Key::over_at_ms).all(|at| {
            // It came at or before this instant.
            at <= now_ms || at - now_ms > CLOSE_MS
        })
    }

    fn policy(&self) -> Policy {
        self.desk.broadcaster.policy()
    }

    fn live_count(&self, now_ms: u64) -> u64 {
        self.keys.values().filter(|key| !key.is_over(now_ms)).count() as u64
    }

    /// Asks for a key, new or known.
    fn submit(&mut self, name: &'static str, payload: &'static str) {
        let now_ms = self.expiry_ms();
        if !self.is_clear(now_ms) {
            return;
        }
        let known = self.keys.get(name).filter(|key| !key.is_over(now_ms)).cloned();
        let Some(known) = known else { return self.accept(name, payload, now_ms) };
        let asked = self.desk.submit(name, payload);
        match (payload == known.payload, &known.answer, asked) {
            (true, Some(first), Ok(answer)) => {
                assert!(answer.duplicated);
                assert_same(first, &answer);
            }
            (true, None, Err(e)) => {
                assert_eq!(e.kind(), ErrorKind::Parked, "{e}");
                assert_eq!(e.broadcast_id(), Some(known.id));
            }
            (false, _, Err(e)) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
            (_, _, asked) => panic!("of {known:?} with {payload}: {asked:?}"),
        }
    }

    /// Asks for a key that is new, or new again.
    fn accept(&mut self, name: &'static str, payload: &'static str, now_ms: u64) {
        let policy = self.policy();
        let evicted = if self.live_count(now_ms) < policy.window_count_max {
            None
        } else {
            let best_effort = self.keys.iter().filter(|(_, key)| !key.firm && !key.is_over(now_ms));
            let oldest = best_effort
                .filter_map(|(name, key)| Some((key.answer.as_ref()?.done_at_ms, key.id, *name)));
            match oldest.min() {
                Some((_, _, name)) if policy.window_full == WhenFull::EvictOldest => Some(name),
                _ => {
                    let refused = self.desk.submit(name, payload).unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::WindowFull, "{refused}");
                    return;
                }
            }
        };
        let verdict = match self.dice.below(5) {
            0 => Verdict::Fail("no".into()),
            1 => Verdict::Park("look".into()),
            _ => Verdict::Done,
        };
        self.desk.script.next(verdict.clone());
        let asked = self.desk.submit(name, payload);
        if let Some(evicted) = evicted {
            self.keys.remove(evicted);
        }
        let firm = policy.window_full == WhenFull::Refuse;
        let lifetime_ms = u64::try_from(policy.window_lifetime.as_millis()).unwrap();
        let (id, answer) = match asked {
            Ok(answer) => {
                assert!(!answer.duplicated, "a new key is a duplicate");
                (answer.id, Some(answer))
            }
            Err(e) => {
                assert_eq!(
                    (e.kind(), &verdict),
                    (ErrorKind::Parked, &Verdict::Park("look".into()))
                );
                (e.broadcast_id().unwrap(), None)
            }
        };
        assert!(self.accepted.last().is_none_or(|last| *last < id), "an identity was given twice");
        self.accepted.push(id);
        self.keys.insert(name, Key { payload, id, lifetime_ms, firm, answer: None });
        if let Some(answer) = answer {
            self.ended(name, answer, &verdict);
        }
    }

    /// The task of a key ended as its callback said.
    fn ended(&mut self, name: &'static str, answer: Answer, verdict: &Verdict) {
        let key = self.keys.get_mut(name).unwrap();
        let promised = key.firm.then(|| answer.done_at_ms + key.lifetime_ms);
        assert_eq!((answer.id, answer.expires_at_ms), (key.id, promised));
        assert_eq!(answer.outcome == Outcome::Done, *verdict == Verdict::Done);
        if answer.outcome == Outcome::Done {
            self.effects.push(key.id);
        }
        key.answer = Some(answer);
    }

    fn parked(&mut self) -> Option<(&'static str, Key)> {
        let parked: Vec<_> = self.keys.iter().filter(|(_, key)| key.answer.is_none()).collect();
        let at = self.dice.index(parked.len());
        parked.get(at).map(|(name, key)| (**name, (*key).clone()))
    }

    fn resume(&mut self) {
        let Some((name, key)) = self.parked() else { return };
        let verdict =
            if self.dice.below(3) == 0 { Verdict::Fail("no".into()) } else { Verdict::Done };
        self.desk.script.next(verdict.clone());
        self.desk.broadcaster.resume(key.id, "go on").unwrap();
        let answer = self.desk.submit(name, key.payload).unwrap();
        self.ended(name, answer, &verdict);
    }

    fn skip(&mut self) {
        let Some((name, key)) = self.parked() else { return };
        self.desk.broadcaster.skip(key.id, "given up").unwrap();
        let answer = self.desk.submit(name, key.payload).unwrap();
        self.ended(name, answer, &Verdict::Fail(String::new()));
        let again = self.desk.broadcaster.skip(key.id, "again").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::InvalidInput);
    }

    fn refresh(&mut self) {
        let now_ms = self.now_ms();
        let hours = [6, 12, 24][self.dice.index(3)];
        let full = [WhenFull::Refuse, WhenFull::EvictOldest][self.dice.index(2)];
        let (old, new) = (self.policy(), policy(hours, 1 + self.dice.below(6), full));
        match self.desk.broadcaster.refresh(new.clone()) {
            Ok(()) => {
                assert!(self.live_count(now_ms) <= new.window_count_max, "a bound below its keys");
                assert_eq!(self.policy(), new);
            }
            Err(e) => {
                assert_eq!(
                    (e.kind(), e.fields()),
                    (ErrorKind::InvalidInput, &["window_count_max".to_owned()][..])
                );
                assert!(
                    self.keys.len() as u64 > new.window_count_max,
                    "a bound that fits is refused"
                );
                assert_eq!(self.policy(), old);
            }
        }
    }

    /// Time passes: the wall clock with it, or not.
    fn pass(&mut self) {
        let before_ms = self.now_ms();
        let ms = self.dice.below(12 * HOUR_MS) + 1;
        self.desk.hands.pass(ms);
        if self.dice.below(3) == 0 {
            let back_ms = self.dice.below(2 * ms);
            self.desk.hands.wall_ms.fetch_sub(back_ms, Ordering::SeqCst);
        }
        assert!(self.now_ms() >= before_ms + ms, "log time stands still");
    }

    /// The wall clock steps ahead: not believed at once, and nothing expires by it.
    fn step_ahead(&mut self) {
        let before_ms = self.now_ms();
        let wall_ms = &self.desk.hands.wall_ms;
        // From where log time is, so that it is a step ahead wherever the wall clock was left.
        let lead_ms = HOUR_MS + self.dice.below(48 * HOUR_MS);
        let was_ms = wall_ms.fetch_max(before_ms + lead_ms, Ordering::SeqCst);
        let now_ms = self.now_ms();
        assert!(was_ms > before_ms || now_ms < before_ms + 2 * 60_000, "a jump is believed");
        if self.dice.below(4) == 0 {
            self.desk.broadcaster.rebase_clock().unwrap();
            let now_ms = self.now_ms();
            assert!(now_ms >= before_ms + lead_ms, "a rebase is not believed");
        }
    }

    fn restart(mut self) -> Self {
        let way = self.dice.below(3);
        // Time that passed without a record is not known to the next process, nor is that of one
        // that nobody waited for, as of a key that was dropped meanwhile, unless the store is closed.
        let answered = self.keys.values().filter_map(|key| Some(key.answer.as_ref()?.done_at_ms));
        self.last_ms = match way {
            0 => self.desk.broadcaster.read(|state, _| state.newest_ms()),
            _ => answered.max().unwrap_or(0),
        };
        let policy = self.policy();
        self.desk.options = self.desk.options.clone().policy(policy);
        if way == 0 {
            self.desk = self.desk.reopen();
            return self;
        }
        // Nobody is in the midst of anything: what was answered is durable, and so is all the rest.
        self.desk.io.kill();
        let mut machine = self.desk.io.machine();
        if way == 1 {
            machine = machine.power_loss(&machine.unsynced(), &[]);
        }
        let Desk { hands, script, options, .. } = self.desk;
        self.desk = Desk::on(machine, hands, script, options).unwrap();
        self
    }

    fn step(mut self) -> Self {
        let key = KEYS[self.dice.index(KEYS.len())];
        let payload = if self.dice.below(4) == 0 { "q" } else { "p" };
        self.calls += 1;
        match self.dice.below(20) {
            0 | 1 => self.resume(),
            2 => self.skip(),
            3 | 4 => self.refresh(),
            5..=7 => self.pass(),
            8 => self.step_ahead(),
            9 => drop(self.desk.broadcaster.checkpoint().unwrap()),
            10 | 11 => return self.restart(),
            _ => self.submit(key, payload),
        }
        self
    }

    /// What stands is what the model has.
    fn judge(&mut self) {
        let now_ms = self.expiry_ms();
        if self.is_clear(now_ms) {
            let live = self.desk.broadcaster.read(|state, _| state.window().live_count(now_ms));
            assert_eq!(live as u64, self.live_count(now_ms));
        }
        self.effects.sort();
        assert_eq!(self.desk.script.effects(), self.effects);
        let stand: Vec<_> = copies(&self.desk.broadcaster).into_iter().collect();
        let both = |id: &BroadcastId| ["a", "b"].map(|vchannel| ((*id, vchannel.to_owned()), 1));
        assert_eq!(stand, self.accepted.iter().flat_map(both).collect::<Vec<_>>());
    }
}

#[test]
fn random_calls_do_what_a_sequential_model_does() {
    let (seeds, steps) = if cfg!(planted) { (400, 300) } else { (40, 100) };
    for seed in 0..seeds {
        println!("seed {seed}");
        let mut model = Model::new(seed);
        for _ in 0..steps {
            model = model.step();
        }
        model.judge();
        for name in KEYS {
            model.submit(name, "p");
        }
        model = model.restart();
        model.judge();
    }
}
