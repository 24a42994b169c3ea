//! Kills the real binary in the midst of appending, and compares what it had acknowledged with what
//! is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use oncelog::testing::Dice;
use oncelog::{CreateMode, Log, Lsn, Options};

/// Kills of one run.
const KILLS: u64 = 500;

/// What is sent as the `n`-th line after LSN `base`.
fn line(base: u64, n: u64) -> String {
    let fill = usize::try_from(n * 37 % 700).unwrap();
    format!("{base}+{n} {}", "x".repeat(fill))
}

/// Runs the command until it has acknowledged `acks` records, kills it, and says what it had
/// acknowledged.
fn append_and_kill(dir: &Path, base: u64, acks: usize, batch: u64) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["append", "--segment-bytes", "65536", "--batch", &batch.to_string()])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let acknowledged = std::thread::scope(|scope| {
        // Ends when the pipe does.
        scope.spawn(move || (1..).try_for_each(|n| writeln!(input, "{}", line(base, n))));
        let mut lines = output.lines();
        let mut seen = Vec::new();
        for _ in 0..acks {
            match lines.next() {
                Some(line) => seen.push(line.unwrap()),
                None => break,
            }
        }
        child.kill().unwrap();
        // What was printed before the kill is acknowledged, too; the last line may be cut.
        seen.extend(lines.map_while(Result::ok));
        seen
    });
    let status = child.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(acknowledged.len() >= acks, "ended by itself: {complaint}");
    assert_eq!(status.status.signal(), Some(9), "not killed: {complaint}");
    // A line that the kill cut short is no acknowledgement, and never reads as the next LSN.
    let mut last = base;
    for line in acknowledged {
        if line.parse() == Ok(last + 1) {
            last += 1;
        }
    }
    last
}

/// Opens the log, compares every record above `base`, and says which one is the last.
fn check(dir: &Path, base: u64, acknowledged: u64, seed: u64) -> u64 {
    let options = Options::new().segment_bytes_max(65_536).create(CreateMode::IfMissing);
    let (log, _) = Log::open(dir, &options).unwrap();
    let last = log.next_lsn().get() - 1;
    assert!(last >= acknowledged, "{acknowledged} was acknowledged, {last} is left, kill {seed}");
    let mut reader = log.reader(Lsn::new(base + 1).unwrap()).unwrap();
    let mut next = base + 1;
    while let Some(found) = reader.next().unwrap() {
        assert_eq!(found.lsn.get(), next, "kill {seed}");
        assert_eq!(
            found.payload[..],
            *line(base, next - base).as_bytes(),
            "LSN {next}, kill {seed}"
        );
        next += 1;
    }
    assert_eq!(next, last + 1, "kill {seed}");
    log.trim(log.next_lsn()).unwrap();
    log.close().unwrap();
    last
}

#[test]
fn what_a_killed_process_had_acknowledged_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    let (mut base, mut records) = (0, 0);
    for kill in 1..=KILLS {
        let mut dice = Dice::new(kill);
        let acks = [0, 1, dice.index(20), dice.index(300)][dice.index(4)];
        let acknowledged = append_and_kill(&dir, base, acks, 1 + kill % 4);
        let last = check(&dir, base, acknowledged, kill);
        records += acknowledged - base;
        base = last;
    }
    println!("kill: {KILLS} kills, {records} acknowledged records, all there");
}
