//! Faults and kills from outside: strace fails, or kills, the real program at a chosen call of the
//! system. That proves what faults within the library cannot: that no call goes around its seam,
//! and that the program says nothing that the calls have not done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use oncelog::io::fs::FsIo;
use oncelog::{
    Batch, CreateMode, Durability, ErrorKind, Log, LogView, Lsn, Options, RecordKind, Severity,
};

use super::child;
use super::disk::{self, Disk, EXT4, Stage};
use super::figures::{figure, is_release};
use super::seam::{Counts, Lie, Seam};

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_oncelog");

/// Calls that are failed, one after the other; names that a machine does not have are never made.
const FAILED: &str = "openat,pread64,pwrite64,write,fsync,fdatasync,ftruncate,fallocate,rename,\
                      renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,flock,getdents64,\
                      fadvise64,statfs,statx";
/// Calls at which the program is killed: those that change what a crash leaves.
const KILLED: &str = "openat,pwrite64,write,fsync,fdatasync,ftruncate,fallocate,rename,renameat,\
                      renameat2,unlink,unlinkat,mkdir,mkdirat,close";
const ERRORS: [&str; 6] = ["EIO", "ENOSPC", "EROFS", "EDQUOT", "EMFILE", "EINTR"];

/// Where the directory of a log is told to a process.
const DIR: &str = "ONCELOG_MACHINE_LOG";

/// Why nothing can be traced here.
fn missing() -> Option<&'static str> {
    if !child::has("strace") {
        return Some("strace is missing");
    }
    let mut traced = Command::new("strace");
    let traced = traced.args(["-qq", "-o", "/dev/null", "true"]).output().unwrap();
    (!traced.status.success()).then_some("the system does not let processes be traced")
}

/// The `n`-th line that is appended, counted from 1: a few of them fill a segment.
fn line(n: u64) -> String {
    format!("line {n} {}", "x".repeat(usize::try_from(n * 4001 % 15_000).unwrap()))
}

/// A run of the program.
struct Ran {
    /// The last LSN that it printed.
    last: u64,
    status: ExitStatus,
}

/// Appends lines from `first` on, each once the one before it was acknowledged, behind `by`.
fn append(by: &[String], dir: &Path, durability: &str, first: u64, count: u64) -> Ran {
    let line_of = by.iter().map(String::as_str).chain([PROGRAM]).collect::<Vec<_>>();
    let mut command = Command::new(line_of[0]);
    command.args(&line_of[1..]).args(["append", "--segment-bytes", "65536"]);
    command.args(["--durability", durability]).arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = first - 1;
    for n in first..first + count {
        // Nobody reads any more: the program has ended.
        if writeln!(input, "{}", line(n)).is_err() {
            break;
        }
        match output.next() {
            Some(Ok(told)) if told.parse() == Ok(n) => last = n,
            Some(told) => panic!("expected LSN {n}, found {told:?}"),
            None => break,
        }
    }
    drop(input);
    let status = child.wait().unwrap();
    Ran { last, status }
}

/// The command line of strace that strikes a call.
fn strace(call: &str, inject: &str) -> Vec<String> {
    let mut line = vec!["strace", "-f", "-qq", "-o", "/dev/null"];
    // A signal is not delivered where the filter stops a call: strace(1) is slower without.
    if !inject.starts_with("signal") {
        line.push("--seccomp-bpf");
    }
    let mut line: Vec<String> = line.into_iter().map(str::to_owned).collect();
    line.extend(["-e".to_owned(), format!("inject={call}:{inject}")]);
    line.extend(["-e".to_owned(), format!("trace={call}")]);
    line
}

/// What a log is before the run that is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// There is none.
    Absent,
    /// One whose writer was killed.
    Killed,
}

/// A place for the cases of one kind.
struct Bench {
    home: PathBuf,
    start: Start,
    durability: &'static str,
    /// What a killed writer left, and the last LSN that it had printed.
    left: PathBuf,
    before: u64,
    cases: u64,
}

impl Bench {
    fn new(home: &Path, start: Start, durability: &'static str) -> Self {
        let home = home.join(format!("{start:?}-{durability}"));
        let left = home.join("left");
        fs::create_dir_all(&left).unwrap();
        let mut bench = Self { home, start, durability, left, before: 0, cases: 0 };
        if start == Start::Killed {
            let by = strace("pwrite64", "signal=KILL:when=11");
            let ran = append(&by, &bench.left, durability, 1, 20);
            assert!(ran.last > 3 && was_killed(&ran), "{} {:?}", ran.last, ran.status);
            bench.before = ran.last;
        }
        bench
    }

    /// A log as it is before the run.
    fn log(&mut self) -> PathBuf {
        self.cases += 1;
        let dir = self.home.join(self.cases.to_string());
        if self.start == Start::Killed {
            fs::create_dir(&dir).unwrap();
            for entry in fs::read_dir(&self.left).unwrap() {
                let path = entry.unwrap().path();
                fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
            }
        }
        dir
    }

    /// How many lines the first record of the run is behind, and how many the run appends.
    fn lines(&self, dir: &Path) -> (u64, u64) {
        match self.start {
            Start::Absent => (1, 12),
            // What was there beside the printed ones is found by looking.
            Start::Killed => (last_of(dir).max(self.before) + 1, 8),
        }
    }

    /// For each call, which of those that a thread makes touch the log or print, in a run that is
    /// not struck.
    fn calls(&mut self, calls: &str) -> BTreeMap<String, BTreeSet<u64>> {
        let dir = self.log();
        let out = self.home.join("trace");
        let out_name = out.to_str().unwrap();
        let trace = format!("trace={calls}");
        let by = ["strace", "-f", "-y", "-qq", "-o", out_name, "-e", &trace];
        let by: Vec<String> = by.into_iter().map(str::to_owned).collect();
        let (first, count) = self.lines(&dir);
        let ran = append(&by, &dir, self.durability, first, count);
        assert!(ran.status.success() && ran.last == first + count - 1, "{:?}", ran.status);
        let mut made: BTreeMap<(String, String), u64> = BTreeMap::new();
        let mut found: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for line in fs::read_to_string(&out).unwrap().lines() {
            let Some((thread, call)) = call_of(line) else { continue };
            let nth = made.entry((thread.to_owned(), call.to_owned())).or_default();
            *nth += 1;
            // What it prints is a promise, so that a call that prints is struck too.
            if call == "write" || line.contains(dir.to_str().unwrap()) {
                found.entry(call.to_owned()).or_default().insert(*nth);
            }
        }
        fs::remove_dir_all(&dir).unwrap();
        found
    }

    /// One run that is struck, the next one that is not, and what is there then.
    fn case(&mut self, call: &str, inject: &str) -> Ran {
        let dir = self.log();
        let (first, count) = self.lines(&dir);
        let by = strace(call, inject);
        let ran = append(&by, &dir, self.durability, first, count);
        let what = format!("{call}:{inject}, {:?}, {}", self.start, self.durability);
        assert_ne!(ran.status.code(), Some(101), "{what}: a panic");
        let promised = ran.last.max(self.before);
        let left = if dir.exists() { last_of(&dir) } else { 0 };
        assert!(left >= promised, "{what}: {promised} was printed, {left} is left");
        let next = append(&["env".to_owned()], &dir, "synced", left + 1, 1);
        assert!(next.status.success() && next.last == left + 1, "{what}: {:?}", next.status);
        assert_eq!(last_of(&dir), left + 1, "{what}");
        fs::remove_dir_all(&dir).unwrap();
        ran
    }
}

fn was_killed(ran: &Ran) -> bool {
    ran.status.signal() == Some(9) || ran.status.code() == Some(128 + 9)
}

/// The thread and the name of the call of a line of strace; `None` for the end of one that was
/// interrupted by another thread's.
fn call_of(line: &str) -> Option<(&str, &str)> {
    let (thread, rest) = line.split_once(' ')?;
    let (call, _) = rest.trim_start().split_once('(')?;
    call.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_').then_some((thread, call))
}

/// The last LSN of a log, every record of which is its line.
fn last_of(dir: &Path) -> u64 {
    ends_of(dir).1
}

/// The oldest LSN of a log and the last one; every record between them is its line.
fn ends_of(dir: &Path) -> (u64, u64) {
    let view = match LogView::open(dir, Arc::new(FsIo::new())) {
        Ok(view) => view,
        // It was not made.
        Err(e) if e.kind() == ErrorKind::InvalidInput => return (1, 0),
        Err(e) => panic!("{}: {e}", dir.display()),
    };
    assert!(view.severity() < Severity::Unsupported, "{:?}", view.findings());
    let oldest = view.oldest_lsn().get();
    let mut reader = view.reader(None).unwrap();
    let mut last = oldest - 1;
    while let Some(record) = reader.next().unwrap() {
        last += 1;
        assert_eq!(record.lsn.get(), last);
        assert_eq!(record.payload[..], *line(last).as_bytes(), "LSN {last} of {}", dir.display());
    }
    (oldest, last)
}

/// Runs a test on an image where it may, else in memory.
fn on_disk(name: &str, part: impl Fn(&Path)) {
    match child::part() {
        Some(_) => {
            let stage = Stage::new(256 << 20);
            let disk = Disk::make(&stage, EXT4);
            part(disk.root());
        }
        None if missing().is_some() => {
            child::skip("call of the system", missing().unwrap_or_default());
        }
        None if disk::missing(EXT4).is_some() => part(child::home().path()),
        None => disk::on_stage(name, "strace"),
    }
}

#[test]
fn what_the_program_printed_is_there_whichever_call_of_it_fails() {
    on_disk("outside::what_the_program_printed_is_there_whichever_call_of_it_fails", |home| {
        let mut cases = 0;
        for start in [Start::Absent, Start::Killed] {
            let mut bench = Bench::new(home, start, "synced");
            for (call, indexes) in bench.calls(FAILED) {
                for (k, nth) in indexes.into_iter().enumerate() {
                    for (e, error) in ERRORS.into_iter().enumerate() {
                        // Every call fails in two ways on each change, and in all on a release.
                        if is_release() || (k + e) % 3 == 0 {
                            bench.case(&call, &format!("error={error}:when={nth}"));
                            cases += 1;
                        }
                        // An interrupted call is made again, for ever.
                        if error != "EINTR" && (is_release() || (k + e) % 5 == 0) {
                            bench.case(&call, &format!("error={error}:when={nth}+"));
                            cases += 1;
                        }
                    }
                }
            }
        }
        figure(5, "runs of the program with a failing call of the system", cases);
    });
}

#[test]
fn what_the_program_printed_is_there_whichever_call_it_is_killed_at() {
    on_disk("outside::what_the_program_printed_is_there_whichever_call_it_is_killed_at", |home| {
        let (mut cases, mut killed) = (0, 0);
        for start in [Start::Absent, Start::Killed] {
            for durability in ["synced", "buffered"] {
                let mut bench = Bench::new(home, start, durability);
                for (call, indexes) in bench.calls(KILLED) {
                    for nth in indexes {
                        let ran = bench.case(&call, &format!("signal=KILL:when={nth}"));
                        killed += u32::from(was_killed(&ran));
                        cases += 1;
                    }
                }
            }
        }
        // Threads share the work in another way in each run, so that some calls are not made.
        assert!(killed > cases * 3 / 4, "{killed} of {cases}");
        figure(4, "runs of the program killed at a chosen call of the system", killed);
    });
}

/// Everything that a log does, in a process of its own, which says what was acknowledged, and how
/// often its seam was called in the end.
fn work(dir: &Path) {
    let seam = Seam::new(Lie::None);
    let options = Options::new().segment_bytes_max(65_536).create(CreateMode::IfMissing);
    let options = options.io(Arc::new(seam.clone()));
    for _ in 0..3 {
        let (log, _) = Log::open(dir, &options).unwrap();
        for n in 0..16 {
            let next = log.next_lsn().get();
            let records = [line(next), line(next + 1)];
            let durability = if n % 3 == 0 { Durability::Buffered } else { Durability::Synced };
            let records = [records[0].as_bytes(), records[1].as_bytes()];
            let batch = Batch { kind: RecordKind::RECORD, records: &records };
            let lsns = log.append_batch(batch, durability).unwrap();
            if durability == Durability::Synced {
                println!("\nappended {}", lsns.last);
            }
        }
        log.sync().unwrap();
        let mut reader = log.reader(log.oldest_lsn()).unwrap();
        while reader.next().unwrap().is_some() {}
        drop(reader);
        let oldest = Lsn::new(log.next_lsn().get() - 5).unwrap();
        log.trim(oldest).unwrap();
        println!("trimmed {oldest}");
        log.close().unwrap();
    }
    for (call, count) in seam.counts() {
        println!("counted {call} {count}");
    }
}

/// The number behind a word of the last line that begins with it.
fn last_told(told: &str, word: &str) -> u64 {
    let lines = told.lines().rev().filter_map(|line| line.strip_prefix(word));
    lines.filter_map(|number| number.trim().parse().ok()).next().unwrap_or(0)
}

/// A log that does everything, killed at one call of many.
fn kill_work(dir: &Path, call: &str, nth: u64) -> bool {
    let inject = format!("signal=KILL:when={nth}");
    let by = strace(call, &inject);
    let by: Vec<&str> = by.iter().map(String::as_str).collect();
    let name = "outside::every_call_of_the_system_is_one_of_the_seam";
    let output = child::wrapped(&by, name, "work").env(DIR, dir).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let (appended, trimmed) = (last_told(&told, "appended "), last_told(&told, "trimmed "));
    let check = |(oldest, last): (u64, u64)| {
        let what = format!("{call}:{inject}: {appended} was appended and {trimmed} trimmed");
        assert!(oldest >= trimmed && last >= appended, "{what}, {oldest} to {last} are left");
        last
    };
    let left = if dir.exists() { check(ends_of(dir)) } else { 0 };
    let next = append(&["env".to_owned()], dir, "synced", left + 1, 1);
    assert!(next.status.success(), "{call}:{inject}: {:?}", next.status);
    check(ends_of(dir));
    fs::remove_dir_all(dir).unwrap();
    output.status.signal() == Some(9)
}

#[test]
fn what_a_log_said_holds_whichever_call_of_a_roll_or_a_trim_it_is_killed_at() {
    let name = "outside::what_a_log_said_holds_whichever_call_of_a_roll_or_a_trim_it_is_killed_at";
    on_disk(name, |home| {
        let dir = home.join("log");
        let mut killed = 0;
        // As many of each as such a run makes, or some more.
        let calls =
            [("unlink", 9), ("rename", 12), ("ftruncate", 12), ("fsync", 14), ("close", 60)];
        let many = [("pwrite64", 150), ("fdatasync", 140)];
        let step = if is_release() { 1 } else { 12 };
        let many = many
            .into_iter()
            .flat_map(|(call, most)| (1..most).step_by(step).map(move |nth| (call, nth)));
        let all = calls.into_iter().flat_map(|(call, most)| (1..=most).map(move |nth| (call, nth)));
        for (call, nth) in all.chain(many) {
            killed += u32::from(kill_work(&dir, call, nth));
        }
        figure(4, "logs killed at a chosen call, rolls and trims among them", killed);
        assert!(killed > 50, "{killed}");
    });
}

/// What strace saw of a process that touches a directory: calls by name. Several names of one call
/// are one.
fn seen(trace: &str, dir: &str) -> BTreeMap<String, u64> {
    let mut seen = BTreeMap::new();
    for line in trace.lines().filter(|line| line.contains(dir)) {
        let Some((_, call)) = call_of(line) else { continue };
        let call = call.strip_suffix("at2").or_else(|| call.strip_suffix("at")).unwrap_or(call);
        let call = match call {
            // A lock is given up as its file is closed: that is no call of the seam.
            "flock" if line.contains("LOCK_UN") => continue,
            other => other,
        };
        *seen.entry(call.to_owned()).or_default() += 1;
    }
    seen
}

#[test]
fn every_call_of_the_system_is_one_of_the_seam() {
    let name = "outside::every_call_of_the_system_is_one_of_the_seam";
    if child::part().is_some() {
        return work(&PathBuf::from(std::env::var_os(DIR).unwrap()));
    }
    if let Some(reason) = missing() {
        return child::skip("calls of the system, each of them one of the seam", reason);
    }
    let home = tempfile::tempdir().unwrap();
    let (dir, out) = (home.path().join("log"), home.path().join("trace"));
    let by = ["strace", "-f", "-y", "-qq", "-o", out.to_str().unwrap()];
    let by = [&by[..], &["-e", "trace=%file,%desc,msync,sync,syncfs"]].concat();
    let output = child::wrapped(&by, name, "work").env(DIR, &dir).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    let counted: Counts = told
        .lines()
        .filter_map(|line| {
            let (call, count) = line.strip_prefix("counted ")?.split_once(' ')?;
            let call = CALLS.iter().find(|known| **known == call).expect("a call of the seam");
            Some((*call, count.parse().unwrap()))
        })
        .collect();
    let seen = seen(&fs::read_to_string(&out).unwrap(), home.path().to_str().unwrap());
    println!("counted {counted:?}, seen {seen:?}");
    let of = |call: &str| counted.get(call).copied().unwrap_or(0);
    let mut expect: BTreeMap<&str, u64> = BTreeMap::from([
        ("open", of("open") + of("open_dir") + of("list") + of("sync_dir")),
        ("pread64", of("read")),
        ("pwrite64", of("write")),
        ("fdatasync", of("sync")),
        ("fsync", of("sync_dir") + of("sync_open_dir")),
        ("ftruncate", of("set_len")),
        ("fallocate", of("allocate")),
        ("rename", of("rename")),
        ("unlink", of("remove")),
        ("mkdir", of("create_dir")),
        ("flock", of("lock") + of("lock_shared")),
        ("mmap", of("map")),
        ("fadvise64", of("evict")),
        ("statfs", of("blocks")),
    ]);
    expect.retain(|_, count| *count > 0);
    for (call, count) in &expect {
        assert_eq!(seen.get(*call), Some(count), "{call}");
    }
    // What else there is looks, lists and closes.
    let other = ["close", "fstat", "newfstat", "statx", "getdents64", "lseek", "fcntl"];
    for call in seen.keys().filter(|call| !expect.contains_key(call.as_str())) {
        assert!(other.contains(&call.as_str()), "{call} goes around the seam");
    }
    figure(5, "calls of the system, each of them one of the seam", expect.values().sum::<u64>());
}

/// The calls that a seam counts.
const CALLS: [&str; 20] = [
    "open",
    "open_dir",
    "list",
    "kind",
    "rename",
    "remove",
    "create_dir",
    "sync_dir",
    "sync_open_dir",
    "len",
    "read",
    "write",
    "sync",
    "set_len",
    "allocate",
    "lock",
    "lock_shared",
    "map",
    "evict",
    "blocks",
];
