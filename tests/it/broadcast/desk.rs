//! A store in memory with a scripted message type, and what the tests ask of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use oncelog::broadcast::{
    AckMode, Answer, BroadcastId, Broadcaster, MessageType, Options, Request, Scope, State,
    StoreView, Task, Verdict,
};
use oncelog::testing::{Machine, MemIo};
use oncelog::{Clock, CreateMode, ErrorKind, Result, Store, StoreOptions};

pub(crate) const DIR: &str = "/store";

/// Real time that a test can move on.
#[derive(Debug)]
pub(crate) struct Hands {
    begin: Instant,
    skipped_ms: AtomicU64,
    pub(crate) wall_ms: AtomicU64,
}

impl Hands {
    pub(crate) fn pass(&self, ms: u64) {
        self.skipped_ms.fetch_add(ms, Ordering::SeqCst);
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }

    pub(crate) fn passed_ms(&self) -> u64 {
        self.skipped_ms.load(Ordering::SeqCst)
    }
}

impl Default for Hands {
    fn default() -> Self {
        let wall_ms = AtomicU64::new(1_700_000_000_000);
        Self { begin: Instant::now(), skipped_ms: AtomicU64::new(0), wall_ms }
    }
}

impl Clock for Hands {
    fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        self.begin.elapsed() + Duration::from_millis(self.skipped_ms.load(Ordering::SeqCst))
    }
}

/// Longer than anything takes that a test waits for.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// Longer than any test takes, all its waits together.
const TEST_MAX: Duration = Duration::from_secs(240);

/// Runs a test that a deadlock would hang, so that it fails with a word instead. What hangs is left
/// alone until the process ends.
#[track_caller]
pub(super) fn ends(test: impl FnOnce() + Send + 'static) {
    let (running, over) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let body = move || {
        let _running = running;
        test();
    };
    let thread = std::thread::Builder::new().name(name).spawn(body).unwrap();
    // Nothing is ever sent: whoever could have is gone at the end, also by a panic.
    if over.recv_timeout(TEST_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("it does not end: somebody waits who is never told");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits for something that another thread brings about.
#[track_caller]
pub(super) fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

/// Longest time that a callback is held.
const HELD_MAX: Duration = Duration::from_secs(10);

type Step = Box<dyn FnOnce(&Task) -> Verdict + Send>;
type Check = Box<dyn FnOnce() -> Result<()> + Send>;

/// A message type that does what the test says, and else is done.
pub(crate) struct Script {
    ack_mode: AckMode,
    said: Mutex<Said>,
    turned: Condvar,
}

#[derive(Default)]
struct Said {
    steps: VecDeque<Step>,
    validations: VecDeque<Check>,
    rechecks: VecDeque<Check>,
    for_ever: bool,
    effects: Vec<BroadcastId>,
    calls: u64,
    is_held: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self { ack_mode: AckMode::Append, said: Mutex::default(), turned: Condvar::new() }
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Script")
    }
}

impl Script {
    pub(crate) fn acknowledged_by(ack_mode: AckMode) -> Self {
        Self { ack_mode, ..Self::default() }
    }

    pub(crate) fn then(&self, step: impl FnOnce(&Task) -> Verdict + Send + 'static) {
        self.said.lock().unwrap().steps.push_back(Box::new(step));
    }

    /// What the validation of the next request says.
    pub(crate) fn validates(&self, check: impl FnOnce() -> Result<()> + Send + 'static) {
        self.said.lock().unwrap().validations.push_back(Box::new(check));
    }

    /// What the check under the locks of the next request says.
    pub(crate) fn rechecks(&self, check: impl FnOnce() -> Result<()> + Send + 'static) {
        self.said.lock().unwrap().rechecks.push_back(Box::new(check));
    }

    pub(crate) fn next(&self, verdict: Verdict) {
        self.then(|_| verdict);
    }

    pub(crate) fn next_panics(&self) {
        self.then(|_| std::panic::panic_any("scripted"));
    }

    pub(crate) fn next_retries_for_ever(&self) {
        self.said.lock().unwrap().for_ever = true;
    }

    /// Callbacks are done from here on.
    pub(crate) fn forget(&self) {
        let mut said = self.said.lock().unwrap();
        said.steps.clear();
        said.for_ever = false;
    }

    /// Callbacks wait from here on.
    pub(crate) fn hold(&self) {
        let mut said = self.said.lock().unwrap();
        (said.is_held, said.calls) = (true, 0);
    }

    pub(crate) fn let_go(&self) {
        self.said.lock().unwrap().is_held = false;
        self.turned.notify_all();
    }

    pub(crate) fn wait_called(&self) {
        let said = self.said.lock().unwrap();
        let called = self.turned.wait_timeout_while(said, LONG, |said| said.calls == 0).unwrap();
        assert!(!called.1.timed_out(), "no callback was called");
    }

    /// Has the next callback wait, and say then what it is let go with.
    pub(crate) fn next_waits(&self) -> Held {
        let ((met, wait_met), (go, wait_go)) = (mpsc::channel(), mpsc::channel());
        self.then(move |_| {
            met.send(()).unwrap();
            wait_go.recv_timeout(LONG).unwrap()
        });
        Held { met: wait_met, go }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.said.lock().unwrap().calls
    }

    /// The broadcasts whose effect exists.
    pub(crate) fn effects(&self) -> Vec<BroadcastId> {
        let mut effects = self.said.lock().unwrap().effects.clone();
        effects.sort();
        effects.dedup();
        effects
    }
}

/// A callback that waits for a test.
pub(crate) struct Held {
    met: mpsc::Receiver<()>,
    go: mpsc::Sender<Verdict>,
}

impl Held {
    #[track_caller]
    pub(crate) fn wait_met(&self) {
        self.met.recv_timeout(LONG).expect("the callback was not called");
    }

    pub(crate) fn go(&self, verdict: Verdict) {
        self.go.send(verdict).unwrap();
    }
}

impl MessageType for Script {
    fn name(&self) -> &str {
        "Script"
    }

    fn ack_mode(&self) -> AckMode {
        self.ack_mode
    }

    fn validate(&self, _request: &Request) -> Result<()> {
        let check = self.said.lock().unwrap().validations.pop_front();
        check.map_or(Ok(()), |check| check())
    }

    fn recheck(&self, _request: &Request, _state: &State) -> Result<()> {
        let check = self.said.lock().unwrap().rechecks.pop_front();
        check.map_or(Ok(()), |check| check())
    }

    fn apply(&self, task: &Task) -> Verdict {
        let mut said = self.said.lock().unwrap();
        said.calls += 1;
        self.turned.notify_all();
        // A test that fails lets nobody go.
        let held = self.turned.wait_timeout_while(said, HELD_MAX, |said| said.is_held);
        said = held.unwrap().0;
        let verdict = match said.steps.pop_front() {
            Some(step) => {
                drop(said);
                let verdict = step(task);
                said = self.said.lock().unwrap();
                verdict
            }
            None if said.for_ever => Verdict::Retry("for ever".into()),
            None => Verdict::Done,
        };
        if verdict == Verdict::Done {
            said.effects.push(task.id());
        }
        verdict
    }
}

/// A broadcaster on a machine in memory.
pub(crate) struct Desk {
    pub(crate) io: MemIo,
    pub(crate) hands: Arc<Hands>,
    pub(crate) script: Arc<Script>,
    pub(crate) options: Options,
    pub(crate) broadcaster: Broadcaster,
}

impl Desk {
    pub(crate) fn open() -> Self {
        Self::with(Arc::default(), |options| options)
    }

    pub(crate) fn with(script: Arc<Script>, change: impl FnOnce(Options) -> Options) -> Self {
        let options = change(Options::new().register(Arc::<Script>::clone(&script)));
        let desk = Self::on(Machine::new(), Arc::default(), script, options).unwrap();
        desk.broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
        desk
    }

    pub(crate) fn on(
        machine: Machine,
        hands: Arc<Hands>,
        script: Arc<Script>,
        options: Options,
    ) -> Result<Self> {
        let io = MemIo::new(machine);
        let broadcaster = open_on(&io, &hands, options.clone())?;
        Ok(Self { io, hands, script, options, broadcaster })
    }

    /// Closes, and opens again on the same machine.
    pub(crate) fn reopen(self) -> Self {
        self.reopen_with(|options| options)
    }

    pub(crate) fn reopen_with(self, change: impl FnOnce(Options) -> Options) -> Self {
        self.broadcaster.close().unwrap();
        let options = change(self.options.clone());
        Self::on(self.io.machine(), self.hands, self.script, options).unwrap()
    }

    /// Opens again without the scripted type.
    pub(crate) fn without_types(self) -> Self {
        let options = Options::new();
        Self::on(self.io.machine(), self.hands, self.script, options).unwrap()
    }

    pub(crate) fn submit(&self, key: &str, payload: &str) -> Result<Answer> {
        self.broadcaster.submit(&request(key, payload), None)
    }

    /// Submits what will not be done at once, until its acceptance is known.
    pub(crate) fn accepted(&self, request: &Request) -> BroadcastId {
        let begin = Instant::now();
        loop {
            let late = self.broadcaster.submit(request, Some(Duration::from_millis(1)));
            let late = late.unwrap_err();
            match late.kind() {
                ErrorKind::InFlight | ErrorKind::Parked => {
                    return late.broadcast_id().unwrap();
                }
                // The deadline was over before the disk said so.
                ErrorKind::OutcomeUnknown | ErrorKind::LockTimeout => {}
                other => panic!("{other}: {late}"),
            }
            assert!(begin.elapsed() < LONG, "not accepted: {late}");
        }
    }

    /// How many copies of a broadcast stand, on all vchannels.
    pub(crate) fn copies(&self, id: BroadcastId) -> usize {
        let counts = copies(&self.broadcaster);
        let of = counts.iter().filter(|((other, _), _)| *other == id);
        of.map(|(_, count)| *count).sum()
    }

    /// A look from outside, which sees what is durable: all that was handed over by now.
    pub(crate) fn view(&self) -> StoreView {
        // It makes nothing, and returns when what others have handed over is durable.
        if let Err(e) = self.broadcaster.ensure_vchannels(&[]) {
            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
        }
        StoreView::open(DIR, Arc::new(MemIo::new(self.io.machine()))).unwrap()
    }
}

pub(crate) fn open_on(io: &MemIo, hands: &Arc<Hands>, options: Options) -> Result<Broadcaster> {
    let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
    let store = StoreOptions::new().create(CreateMode::IfMissing).io(Arc::new(io.clone()));
    Broadcaster::open(Store::open(Path::new(DIR), &store.clock(clock))?, options)
}

/// How many copies stand, by broadcast and vchannel.
pub(crate) fn copies(broadcaster: &Broadcaster) -> BTreeMap<(BroadcastId, String), usize> {
    use oncelog_format::message::{BroadcastHeader, Vchannel};
    let mut counts = BTreeMap::new();
    let names: BTreeSet<String> = broadcaster
        .read(|state, _| state.vchannels().map(|(_, pchannel)| pchannel.to_owned()).collect());
    let channels = names.iter().filter_map(|name| broadcaster.jobs().channel(name));
    for channel in channels {
        let mut reader = channel.read(channel.oldest()).unwrap();
        while let Some(stored) = reader.next().unwrap() {
            let header = stored.property::<BroadcastHeader>().unwrap();
            let vchannel = stored.property::<Vchannel>().unwrap();
            if let (Some(header), Some(Vchannel(vchannel))) = (header, vchannel) {
                *counts.entry((header.id, vchannel)).or_default() += 1;
            }
        }
    }
    counts
}

pub(crate) fn scope(key: &str) -> Scope {
    Scope {
        principal: "default".into(),
        message_type: "Script".into(),
        domain: "store".into(),
        identity: "0".into(),
        generation: 0,
        client_key: key.into(),
    }
}

pub(crate) fn request(key: &str, payload: &str) -> Request {
    let vchannels = vec!["a".into(), "b".into()];
    Request::new("Script", Some(scope(key)), vchannels, payload.into())
}

/// Two answers are the same but for what says to whom they were given.
#[track_caller]
pub(crate) fn assert_same(a: &Answer, b: &Answer) {
    let mut a = a.clone();
    (a.duplicated, a.clock_held) = (b.duplicated, b.clock_held);
    assert_eq!(&a, b);
}
