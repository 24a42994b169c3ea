use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, mpsc};
use std::time::Duration;

use oncelog_format::control::{Accepted, JobLink};
use oncelog_format::message::{BroadcastHeader, Fingerprint, Resource, Scope};

use super::*;
use crate::broadcast::core::Deadline;
use crate::broadcast::kind::Role;
use crate::broadcast::locks::{Claim, Holder};
use crate::broadcast::{Broadcaster, MessageType, Options, Request, Task, Verdict};
use crate::clock::{Clock, SystemClock};
use crate::error::ErrorKind;
use crate::io::mem::{Machine, MemIo};
use crate::log::CreateMode;
use crate::store::{Store, StoreOptions};

/// Longer than anything takes that a test waits for.
const LONG: Duration = Duration::from_secs(60);

/// A type of a role, which says this.
#[derive(Debug)]
struct Kind(&'static str, Role, Verdict);

impl MessageType for Kind {
    fn name(&self) -> &str {
        self.0
    }

    fn role(&self) -> Role {
        self.1
    }

    fn apply(&self, _task: &Task) -> Verdict {
        self.2.clone()
    }
}

/// Whoever lost the race for the job's lock was told that it stayed locked, and whoever came a
/// moment later that the ending is parked.
#[test]
fn who_waits_for_the_lock_of_a_job_is_told_of_the_ending_that_has_it() {
    let io = Arc::new(MemIo::new(Machine::new()));
    let store = Store::open("/store", &StoreOptions::new().create(CreateMode::IfMissing).io(io));
    let kinds = [
        Kind("Load", Role::StartsJob, Verdict::Done),
        Kind("Stuck", Role::EndsJob, Verdict::Park("look at it".to_owned())),
    ];
    let options = kinds.into_iter().fold(Options::new(), |o, kind| o.register(Arc::new(kind)));
    let broadcaster = Broadcaster::open(store.unwrap(), options).unwrap();
    let asked = Request::new("Load", None, vec!["a".to_owned()], vec![]).making_vchannels();
    let job = broadcaster.submit(&asked, None).unwrap().id;
    let jobs = broadcaster.jobs();
    // The first one has the lock, and has accepted nothing yet.
    let holder = Holder::Admission(jobs.inner.lock().ticket());
    let own = Resource { domain: JOB_DOMAIN.to_owned(), key: job.to_string(), shared: false };
    let claim = Claim { resources: vec![own.clone()], message_type: "Stuck".into(), since_ms: 0 };
    jobs.inner.ask(holder, claim, Deadline::never()).unwrap();
    let (tell, told) = mpsc::channel();
    let second = jobs.clone();
    std::thread::spawn(move || {
        drop(tell.send(second.end(job, 1, ("Stuck", true), vec![]).unwrap_err()));
    });
    let until = jobs.inner.monotonic() + LONG;
    while broadcaster.stats().locks.waiting == 0 {
        assert!(jobs.inner.monotonic() < until, "nobody waits for the lock");
        std::thread::yield_now();
    }
    let first = {
        let mut core = jobs.inner.lock();
        let begun = jobs.begin_ending(&mut core, holder, (job, 1), &|header, trace| Accepted {
            header: BroadcastHeader { resources: vec![own.clone()], ..header },
            message_type: "Stuck".to_owned(),
            scope: None,
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: Vec::new(),
            lifetime_ms: 0,
            firm: true,
            job: JobLink::Ends { job, attempt: 1, commit: true },
            properties: Vec::new(),
            trace,
            payload: Vec::new(),
        });
        begun.unwrap().unwrap()
    };
    let error = told.recv_timeout(LONG).expect("who waits is never told");
    assert_eq!((error.kind(), error.broadcast_id()), (ErrorKind::Parked, Some(first)), "{error}");
    broadcaster.close().unwrap();
}

/// A clock of an embedder that panics at a call of one thread.
#[derive(Debug, Default)]
struct Panics(std::sync::Mutex<Option<(std::thread::ThreadId, u32)>>);

impl Clock for Panics {
    fn wall_ms(&self) -> u64 {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((thread, left)) = at.as_mut()
            && *thread == std::thread::current().id()
        {
            *left -= 1;
            if *left == 0 {
                *at = None;
                panic!("a clock panics");
            }
        }
        SystemClock::new().wall_ms()
    }

    fn monotonic(&self) -> Duration {
        SystemClock::new().monotonic()
    }
}

#[test]
fn code_of_the_embedder_that_panics_leaves_no_lock_of_a_job_behind() {
    let clock = Arc::new(Panics::default());
    let store = StoreOptions::new().create(CreateMode::IfMissing);
    let store = store.io(Arc::new(MemIo::new(Machine::new()))).clock(Arc::<Panics>::clone(&clock));
    let kinds =
        [Kind("Load", Role::StartsJob, Verdict::Done), Kind("Abort", Role::EndsJob, Verdict::Done)];
    let options = kinds.into_iter().fold(Options::new(), |o, kind| o.register(Arc::new(kind)));
    let broadcaster = Broadcaster::open(Store::open("/store", &store).unwrap(), options).unwrap();
    let key = Scope {
        principal: "p".to_owned(),
        message_type: "Load".to_owned(),
        domain: "d".to_owned(),
        identity: String::new(),
        generation: 0,
        client_key: b"k".to_vec(),
    };
    let asked = Request::new("Load", Some(key), vec!["a".to_owned()], vec![]).making_vchannels();
    let job = broadcaster.submit(&asked, None).unwrap().id;
    let jobs = broadcaster.jobs();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut panics = 0;
        let mut each = |call: &dyn Fn() -> Result<()>| {
            for nth in 1.. {
                let thread = std::thread::current().id();
                *clock.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((thread, nth));
                match catch_unwind(AssertUnwindSafe(call)) {
                    Ok(done) => return done.unwrap(),
                    Err(_panic) => panics += 1,
                }
            }
        };
        each(&|| jobs.end(job, 1, ("Abort", false), vec![]).map(drop));
        each(&|| jobs.reattempt(job, Some(LONG)).map(drop));
        tell.send(panics).unwrap();
    });
    let panics = told.recv_timeout(2 * LONG).expect("a lock stays behind");
    assert!(panics >= 4, "{panics} panics");
    broadcaster.close().unwrap();
}

/// Two that had looked at the same collection overwrote each other.
#[test]
fn a_collection_changes_from_what_its_change_was_made_of_alone() {
    let io = Arc::new(MemIo::new(Machine::new()));
    let store = Store::open("/store", &StoreOptions::new().create(CreateMode::IfMissing).io(io));
    let broadcaster = Broadcaster::open(store.unwrap(), Options::new()).unwrap();
    let spec = crate::broadcast::CollectionSpec {
        name: "c".to_owned(),
        vchannels: vec!["a".to_owned()],
        schema: Vec::new(),
        primary_key: None,
    };
    let was = broadcaster.ensure_collection(&spec).unwrap();
    let jobs = broadcaster.jobs();
    let stated = |schema: &[u8]| Collection { schema: schema.to_vec(), ..(*was).clone() };
    assert!(jobs.update_collection(&was, stated(b"first")).unwrap());
    assert!(!jobs.update_collection(&was, stated(b"second")).unwrap());
    let stands = jobs.collection(was.id).unwrap();
    assert_eq!(stands.schema, b"first");
    assert!(jobs.update_collection(&stands, stated(b"third")).unwrap());
    for next in [Collection { id: 77, ..stated(b"") }, Collection { id: 0, ..stated(b"") }] {
        let error = jobs.update_collection(&was, next).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    broadcaster.close().unwrap();
}
