//! Kills the real binary in the midst of appending, and compares what it had acknowledged with what
//! is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use oncelog::testing::Dice;
use oncelog::{CreateMode, Log, Lsn, Options};

use crate::figures::{figure, is_release, of_release};

/// Kills of one run, and of one before a release.
const KILLS: u64 = 500;
const KILLS_RELEASE: u64 = 20_000;

/// When a process is killed: behind so many acknowledgements, and then at a moment that nothing is
/// aligned with.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before the first: while it opens, or before it does.
    Open,
    Append(usize),
    /// Behind the end of its input, so that it closes.
    Close(usize),
}

impl Moment {
    fn of(dice: &mut Dice) -> Self {
        match dice.below(6) {
            0 => Self::Open,
            1 => Self::Close(dice.index(20)),
            2 | 3 => Self::Append(1 + dice.index(20)),
            _ => Self::Append(1 + dice.index(200)),
        }
    }

    fn acks(self) -> usize {
        match self {
            Self::Open => 0,
            Self::Append(acks) | Self::Close(acks) => acks,
        }
    }
}

/// What is sent as the `n`-th line after LSN `base`.
fn line(base: u64, n: u64) -> String {
    let fill = usize::try_from(n * 37 % 700).unwrap();
    format!("{base}+{n} {}", "x".repeat(fill))
}

/// How one run of the command is killed.
#[derive(Clone, Copy, Debug)]
struct Kill {
    moment: Moment,
    spins: u64,
    batch: u64,
    /// Printed is what was written: a kill alone does not lose it.
    buffered: bool,
}

/// Runs the command until it has acknowledged so many records, kills it, and says what it had
/// acknowledged, and whether the kill came before the end.
fn append_and_kill(dir: &Path, base: u64, kill: Kill) -> (u64, bool) {
    let durability = if kill.buffered { "buffered" } else { "synced" };
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["append", "--segment-bytes", "65536", "--batch", &kill.batch.to_string()])
        .args(["--durability", durability])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let acks = kill.moment.acks();
    let last_line = match kill.moment {
        Moment::Close(acks) => u64::try_from(acks).unwrap(),
        _ => u64::MAX,
    };
    let acknowledged = std::thread::scope(|scope| {
        // Ends when the pipe does, or with the last line, and closes it.
        scope.spawn(move || {
            (1..)
                .take_while(|n| *n <= last_line)
                .try_for_each(|n| writeln!(input, "{}", line(base, n)))
        });
        let mut lines = output.lines();
        let mut seen = Vec::new();
        for _ in 0..acks {
            match lines.next() {
                Some(line) => seen.push(line.unwrap()),
                None => break,
            }
        }
        (0..kill.spins).for_each(|_| std::hint::spin_loop());
        child.kill().unwrap();
        // What was printed before the kill is acknowledged, too; the last line may be cut.
        seen.extend(lines.map_while(Result::ok));
        seen
    });
    let status = child.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(acknowledged.len() >= acks, "ended by itself: {complaint}");
    let killed = status.status.signal() == Some(9);
    let may_end = matches!(kill.moment, Moment::Close(_)) && status.status.success();
    assert!(killed || may_end, "not killed: {complaint}");
    // A line that the kill cut short is no acknowledgement, and never reads as the next LSN.
    let mut last = base;
    for line in acknowledged {
        if line.parse() == Ok(last + 1) {
            last += 1;
        }
    }
    (last, killed)
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
    let (mut base, mut records, mut run) = (0, 0, 0);
    let mut kills = [0; 3];
    let wanted = if is_release() { of_release(KILLS_RELEASE) } else { KILLS };
    while kills.iter().sum::<u64>() < wanted {
        run += 1;
        let mut dice = Dice::new(run);
        let moment = Moment::of(&mut dice);
        // From no time at all to about that of starting a process.
        let bits = 4 + dice.below(18);
        let spins = dice.below(1 << bits);
        let kill = Kill { moment, spins, batch: 1 + run % 4, buffered: dice.below(2) == 0 };
        let (acknowledged, killed) = append_and_kill(&dir, base, kill);
        let last = check(&dir, base, acknowledged, run);
        records += acknowledged - base;
        base = last;
        let at = [moment.acks() == 0, matches!(moment, Moment::Append(_)), true];
        let at = at.into_iter().position(|is_it| is_it).unwrap();
        kills[at] += u64::from(killed);
        assert!(run < 2 * wanted, "{kills:?} kills in {run} runs");
    }
    figure(4, "kills of an append", kills.iter().sum::<u64>());
    for (moment, kills) in ["opened", "appended", "closed"].into_iter().zip(kills) {
        figure(4, &format!("kills of an append while it {moment}"), kills);
    }
    figure(4, "acknowledged records that kills left", records);
}
