//! Tests that run in a process of their own: this binary again, told by its environment which part
//! it has to play.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

/// Names the part.
const PART: &str = "ONCELOG_MACHINE_PART";

/// The part that this process was started for; `None` in the process of the test itself. It does
/// not outlive that process.
pub(crate) fn part() -> Option<String> {
    let part = env::var(PART).ok()?;
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    Some(part)
}

/// This binary, to run the test `name` again in the part `part`.
pub(crate) fn again(name: &str, part: &str) -> Command {
    wrapped(&[], name, part)
}

/// As [`again`], started by another program, which gets the command line behind its own arguments.
pub(crate) fn wrapped(by: &[&str], name: &str, part: &str) -> Command {
    let own = env::current_exe().unwrap();
    let mut line: Vec<&std::ffi::OsStr> = by.iter().map(AsRef::as_ref).collect();
    line.push(own.as_os_str());
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).args(["--exact", name, "--nocapture", "--test-threads", "2"]);
    command.env(PART, part).stdin(Stdio::null());
    command
}

/// A directory in memory where there is one, for tests that are not about the disk.
pub(crate) fn home() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Runs a part to its end, which has to be a good one.
pub(crate) fn play(mut command: Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Says why a test did not run. It counts as skipped, never as passed.
pub(crate) fn skip(what: &str, reason: &str) {
    println!("SKIP {what}: {reason}");
}

/// True when a program can be started.
pub(crate) fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    let started = command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null());
    started.stderr(Stdio::null()).status().is_ok()
}
