//! A store's directory: what is made, what is refused, what is missed.

use std::path::Path;
use std::sync::Arc;

use oncelog::broadcast::{Broadcaster, MessageType, Options, StoreView, Task, Verdict};
use oncelog::io::Io as _;
use oncelog::testing::{CallKind, ENOSPC, Fault, Machine, MemIo, Which};
use oncelog::{CreateMode, ErrorKind, Log, Options as LogOptions, Result, Store, StoreOptions};

use super::desk::{DIR, Desk, request};

fn open(io: &MemIo, create: CreateMode) -> Result<Broadcaster> {
    let options = StoreOptions::new().io(Arc::new(io.clone())).create(create);
    Broadcaster::open(Store::open(Path::new(DIR), &options)?, Options::new())
}

#[track_caller]
fn check(machine: &Machine, create: CreateMode, expected: ErrorKind) {
    let io = MemIo::new(machine.clone());
    assert_eq!(open(&io, create).unwrap_err().kind(), expected);
}

#[test]
fn a_store_is_made_only_where_nothing_else_is() {
    let machine = Machine::new();
    check(&machine, CreateMode::Never, ErrorKind::InvalidInput);
    let io = MemIo::new(machine);
    open(&io, CreateMode::IfMissing).unwrap().close().unwrap();
    open(&io, CreateMode::Never).unwrap().close().unwrap();
    check(&io.machine(), CreateMode::Always, ErrorKind::InvalidInput);

    let io = MemIo::new(Machine::new());
    let log = LogOptions::new().io(Arc::new(io.clone())).create(CreateMode::IfMissing);
    Log::open(DIR, &log).unwrap().0.close().unwrap();
    check(&io.machine(), CreateMode::IfMissing, ErrorKind::InvalidInput);
    let mut machine = io.machine();
    machine.take(format!("{DIR}/LOCK")).unwrap();
    let before = machine.digest();
    check(&machine, CreateMode::IfMissing, ErrorKind::InvalidInput);
    assert_eq!(machine.digest(), before);
}

#[test]
fn a_store_has_one_writer_and_any_readers() {
    let desk = Desk::open();
    drop(desk.submit("k", "p").unwrap());
    assert_eq!(open(&desk.io, CreateMode::Never).unwrap_err().kind(), ErrorKind::Busy);
    let view = desk.view();
    assert_eq!(view.pchannels().unwrap(), ["p0"]);
    assert_eq!(view.state().tasks().count(), 1);
    assert_eq!(view.channel("p0").unwrap().last_lsn().map(oncelog::Lsn::get), Some(2));
    desk.broadcaster.close().unwrap();
    open(&desk.io, CreateMode::Never).unwrap().close().unwrap();
}

#[test]
fn logs_that_are_gone_are_missed() {
    let desk = Desk::open();
    drop(desk.submit("k", "p").unwrap());
    desk.broadcaster.close().unwrap();
    let machine = desk.io.machine();
    for log in ["control", "channels/p0"] {
        let mut machine = machine.clone();
        let segment = format!("{DIR}/{log}/0000000001-00000000000000000001.seg");
        machine.take(segment).unwrap();
        check(&machine, CreateMode::IfMissing, ErrorKind::Corrupt);
    }
    let mut damaged = machine.clone();
    let mut lock = damaged.bytes(format!("{DIR}/LOCK")).unwrap();
    lock[9] ^= 1;
    damaged.put(format!("{DIR}/LOCK"), &lock).unwrap();
    check(&damaged, CreateMode::IfMissing, ErrorKind::Corrupt);
    let mut lost = machine;
    lost.take(format!("{DIR}/LOCK")).unwrap();
    check(&lost, CreateMode::IfMissing, ErrorKind::Corrupt);
}

/// No log of a pchannel is made before the store is: what stands there was acknowledged. A store
/// that had lost its small files was made anew over it, and gave the ids again that stand in it.
#[test]
fn a_store_is_not_made_anew_over_the_logs_of_channels() {
    let desk = Desk::open();
    drop(desk.submit("k", "p").unwrap());
    desk.broadcaster.close().unwrap();
    let machine = desk.io.machine();
    #[track_caller]
    fn check_lost(machine: &Machine) {
        check(machine, CreateMode::IfMissing, ErrorKind::Corrupt);
        let io: Arc<MemIo> = Arc::new(MemIo::new(machine.clone()));
        assert_eq!(StoreView::open(DIR, io).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    for lock in [None, Some(&[][..]), Some(&[0; 512])] {
        let mut machine = machine.clone();
        machine.take(format!("{DIR}/LOCK")).unwrap();
        if let Some(lock) = lock {
            machine.put(format!("{DIR}/LOCK"), lock).unwrap();
        }
        check_lost(&machine);
        for entry in MemIo::new(machine.clone()).list(&Path::new(DIR).join("control")).unwrap() {
            machine.take(Path::new(DIR).join("control").join(entry.name)).unwrap();
        }
        check_lost(&machine);
        let mut all = Vec::new();
        let channel = Path::new(DIR).join("channels/p0");
        let copied = MemIo::new(Machine::new());
        for dir in ["", "channels", "channels/p0"] {
            copied.create_dir(&Path::new(DIR).join(dir)).unwrap();
        }
        for entry in MemIo::new(machine.clone()).list(&channel).unwrap() {
            all.push(channel.join(entry.name));
        }
        for path in all {
            let bytes = machine.bytes(&path).unwrap();
            copied.alter(|machine| machine.put(&path, &bytes).unwrap());
        }
        check_lost(&copied.machine());
    }
}

/// The file system copies on write and is full: a lock file whose UUID a sync has covered long ago
/// was written again before anything else, and nothing that could make room was reached.
#[test]
fn a_store_opens_without_a_free_byte() {
    let desk = Desk::open();
    let before = desk.submit("k", "p").unwrap();
    desk.broadcaster.close().unwrap();
    let io = desk.io.successor(desk.io.machine());
    io.arm(Which::Kind(CallKind::Write), 1, u64::MAX, Fault::Error(ENOSPC));
    let options = StoreOptions::new().io(Arc::new(io.clone())).create(CreateMode::Never);
    let store = Store::open(Path::new(DIR), &options).unwrap();
    io.disarm();
    drop(store);
    let desk = desk.reopen();
    super::desk::assert_same(&before, &desk.submit("k", "p").unwrap());
}

#[test]
fn a_view_of_nothing_is_refused() {
    let io: Arc<MemIo> = Arc::new(MemIo::new(Machine::new()));
    assert_eq!(StoreView::open(DIR, io).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_space_returns() {
    let desk = Desk::open();
    let before = desk.submit("before", "p").unwrap();
    desk.io.set_free_blocks(Some(0));
    // Until the room that was there before is used up.
    let mut keys = 0;
    let refused = loop {
        keys += 1;
        let mut request = request(&keys.to_string(), "p");
        request.payload = vec![7; 100_000];
        match desk.broadcaster.submit(&request, None) {
            Ok(_) => {}
            Err(e) => break (request, e),
        }
    };
    let kind = refused.1.kind();
    assert!(matches!(kind, ErrorKind::StoreFull | ErrorKind::InFlight), "{}", refused.1);
    assert!(desk.submit("before", "p").unwrap().duplicated);
    desk.io.set_free_blocks(None);
    let answer = desk.broadcaster.submit(&refused.0, None).unwrap();
    assert_eq!(answer.duplicated, kind == ErrorKind::InFlight);
    assert_eq!(desk.copies(answer.id), 2);
    let desk = desk.reopen();
    super::desk::assert_same(&before, &desk.submit("before", "p").unwrap());
}

#[test]
fn a_broadcaster_tells_what_the_recovery_of_each_log_found() {
    let desk = Desk::open();
    drop(desk.submit("k", "p").unwrap());
    let desk = desk.reopen();
    let report = desk.broadcaster.report();
    assert!(!report.created);
    assert_eq!(report.channels.keys().collect::<Vec<_>>(), ["p0"]);
}

#[test]
fn a_type_has_a_name_that_its_records_can_carry() {
    #[derive(Debug)]
    struct Named(usize);
    impl MessageType for Named {
        fn name(&self) -> &str {
            &"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn".repeat(8).leak()[..self.0]
        }
        fn apply(&self, _: &Task) -> Verdict {
            Verdict::Done
        }
    }
    for (len, is_one) in [(0, false), (1, true), (256, true), (257, false)] {
        let io = MemIo::new(Machine::new());
        let store = StoreOptions::new().io(Arc::new(io)).create(CreateMode::IfMissing);
        let store = Store::open(Path::new(DIR), &store).unwrap();
        let opened = Broadcaster::open(store, Options::new().register(Arc::new(Named(len))));
        let refused = opened.map(drop).map_err(|e| e.kind());
        assert_eq!(refused, if is_one { Ok(()) } else { Err(ErrorKind::InvalidInput) }, "{len}");
    }
}
