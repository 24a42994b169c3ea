use std::sync::mpsc;

use super::*;
use crate::broadcast::{Broadcaster, MessageType, Options, Request, Task, Verdict};
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
