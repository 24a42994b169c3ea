//! A backup, and the log of another process in the same place: one of them has it, never both.

use std::fmt;
use std::io::Result;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use oncelog::io::{Io, IoFile, OpenHow};
use oncelog::testing::{CallKind, ENOSPC, Fault, MemIo, Which};
use oncelog::{ErrorKind, FindingKind, Log, Options};

use super::{COPY, check_left, memory};
use crate::log::{lsn, options, read};
use crate::pass_on::pass_on;

type Hook = Box<dyn FnOnce() + Send>;

/// The files of a process, with what happens elsewhere at one of its calls on the copy's `LOCK`.
#[derive(Clone)]
struct Hooked {
    io: MemIo,
    opened: Arc<Mutex<Option<(OpenHow, Hook)>>>,
    removing: Arc<Mutex<Option<Hook>>>,
}

impl Hooked {
    fn new(io: &MemIo) -> Self {
        Self { io: io.clone(), opened: Arc::default(), removing: Arc::default() }
    }

    /// Behind the next open of that kind.
    fn when_opened(&self, how: OpenHow, hook: impl FnOnce() + Send + 'static) {
        *self.opened.lock().unwrap() = Some((how, Box::new(hook)));
    }

    /// Before it is removed.
    fn when_removed(&self, hook: impl FnOnce() + Send + 'static) {
        *self.removing.lock().unwrap() = Some(Box::new(hook));
    }

    fn options(&self) -> Options {
        options().background(false).io(Arc::new(self.clone()))
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

fn is_lock_of_copy(path: &Path) -> bool {
    path == Path::new(COPY).join("LOCK")
}

impl Io for Hooked {
    pass_on!(io: open_dir list kind rename create_dir sync_dir random);

    fn open(&self, path: &Path, how: OpenHow) -> Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        let mut opened = self.opened.lock().unwrap();
        let is_it = opened.as_ref().is_some_and(|(wanted, _)| *wanted == how);
        if is_it
            && is_lock_of_copy(path)
            && let Some((_, hook)) = opened.take()
        {
            drop(opened);
            hook();
        }
        Ok(file)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if is_lock_of_copy(path)
            && let Some(hook) = self.removing.lock().unwrap().take()
        {
            hook();
        }
        self.io.remove(path)
    }
}

/// A log in memory whose calls on the copy are told.
fn hooked() -> (MemIo, Hooked, Log) {
    let (io, log) = memory();
    log.close().unwrap();
    let hooked = Hooked::new(&io);
    let (log, _) = Log::open("/log", &hooked.options()).unwrap();
    (io, hooked, log)
}

fn wait(signal: &Receiver<()>) {
    signal.recv().unwrap();
}

fn go(signal: &Sender<()>) {
    signal.send(()).unwrap();
}

#[test]
pub(crate) fn a_lock_that_a_failed_backup_removes_makes_nobody_an_owner() {
    let (io, first, other) = locked_behind_a_removal(|_| {});
    let first = first.unwrap();
    assert_eq!(first.append(b"of the first").unwrap(), lsn(1));
    let second = Log::open(COPY, &options().background(false).io(Arc::new(io.clone())));
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
    first.close().unwrap();
    let (copy, _) = Log::open(COPY, &other.options()).unwrap();
    assert_eq!(read(&copy, 1).len(), 1);
}

#[test]
pub(crate) fn a_lock_whose_name_another_file_has_makes_nobody_an_owner() {
    let (keep, kept) = channel();
    let (_io, late, other) = locked_behind_a_removal(move |io| {
        let options = options().background(false).io(Arc::new(io.clone()));
        keep.send(Log::open(COPY, &options).unwrap().0).unwrap();
    });
    assert_eq!(late.map(drop).unwrap_err().kind(), ErrorKind::Busy);
    let owner = kept.recv().unwrap();
    assert_eq!(owner.append(b"of the owner").unwrap(), lsn(1));
    owner.close().unwrap();
    let (copy, _) = Log::open(COPY, &other.options()).unwrap();
    assert_eq!(read(&copy, 1).len(), 1);
}

/// What somebody gets who opens `LOCK` before a backup that fails removes it, and locks it behind
/// that, and behind what happens `meanwhile`.
fn locked_behind_a_removal(
    meanwhile: impl FnOnce(&MemIo),
) -> (MemIo, oncelog::Result<Log>, Hooked) {
    let (io, backup, log) = hooked();
    let other = Hooked::new(&io);
    let ((start, started), (open, opened), (end, ended)) = (channel(), channel(), channel());
    backup.when_removed(move || {
        go(&start);
        wait(&opened);
    });
    other.when_opened(OpenHow::ReadWrite, move || {
        go(&open);
        wait(&ended);
    });
    let theirs = other.options();
    let first = thread::spawn(move || {
        wait(&started);
        Log::open(COPY, &theirs).map(|(log, _)| log)
    });
    // Behind the mark.
    io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(ENOSPC));
    assert_eq!(log.backup(COPY).unwrap_err().kind(), ErrorKind::StoreFull);
    meanwhile(&io);
    go(&end);
    let first = first.join().unwrap();
    (io, first, other)
}

#[test]
fn a_backup_leaves_a_log_alone_that_was_made_before_it_had_the_lock() {
    #[track_caller]
    fn check(how_closed: fn(Log), kind: ErrorKind) {
        let (io, backup, log) = hooked();
        let theirs = Hooked::new(&io).options();
        let (keep, kept) = channel();
        let options = theirs.clone();
        backup.when_opened(OpenHow::CreateNew, move || {
            let (other, _) = Log::open(COPY, &options).unwrap();
            other.append(b"of the other").unwrap();
            keep.send(other.clone()).unwrap();
            how_closed(other);
        });
        let refused = log.backup(COPY).unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        drop(kept.recv().unwrap().close());
        let (other, _) = Log::open(COPY, &theirs).unwrap();
        assert_eq!(read(&other, 1)[0].payload, b"of the other"[..]);
        other.close().unwrap();
        // A place that is free again takes a copy, which is whole.
        for entry in io.list(Path::new(COPY)).unwrap() {
            io.remove(&Path::new(COPY).join(entry.name)).unwrap();
        }
        log.backup(COPY).unwrap();
        assert!(check_left(io.machine()).unwrap());
    }
    check(|log| log.close().unwrap(), ErrorKind::InvalidInput);
    check(drop, ErrorKind::Busy);
}

#[test]
fn a_copy_has_no_cursor_above_its_end() {
    let (io, log) = memory();
    let end = log.next_lsn();
    log.cursor("consumer").unwrap().advance(end).unwrap();
    log.close().unwrap();
    // The last segment is gone, and what the cursor had seen with it.
    let names = io.list(Path::new("/log")).unwrap().into_iter().map(|entry| entry.name);
    let last = names.filter(|name| name.to_string_lossy().ends_with(".seg")).max().unwrap();
    io.alter(|machine| machine.take(Path::new("/log").join(last))).unwrap();
    let options = options().background(false).io(Arc::new(io));
    let (log, _) = Log::open("/log", &options).unwrap();
    assert!(log.next_lsn() < end);
    assert_eq!(log.cursor("consumer").unwrap().lsn().unwrap(), end);
    log.backup(COPY).unwrap();
    let (copy, report) = Log::open(COPY, &options).unwrap();
    let is_ahead = |kind| kind == FindingKind::CursorAhead;
    assert!(!report.findings.iter().any(|found| is_ahead(found.kind)), "{:?}", report.findings);
    assert_eq!(copy.cursor("consumer").unwrap().lsn().unwrap(), log.next_lsn());
}
