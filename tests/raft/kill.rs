//! Kills the key-value database of `examples/kv` in the midst of its work, and compares what it
//! had acknowledged with what is there.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _, stderr, stdin};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use oncelog::testing::Dice;

use crate::figures::{figure, is_release, of_release};
use crate::kv;

/// Where a child finds its arguments, one a line.
const ARGS: &str = "ONCELOG_TEST_KV";
/// Keys that are set again and again.
const KEYS: u64 = 97;

/// No test of its own: this binary, started again by the tests below. It answers on standard error,
/// which the test harness leaves alone.
#[test]
fn a_child_runs_the_database() {
    let Ok(args) = std::env::var(ARGS) else { return };
    let args: Vec<&str> = args.lines().collect();
    kv::run(&args, stdin().lock(), &mut stderr()).unwrap();
}

fn child(args: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kill::a_child_runs_the_database", "--nocapture"]).env(ARGS, args);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Sends numbered writes from `first` on until `acks` are acknowledged, and kills the database; says
/// how many were, at least.
fn write_and_kill(args: &str, first: u64, acks: usize) -> u64 {
    let mut child = child(args).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stderr.take().unwrap());
    let (acknowledged, rest) = std::thread::scope(|scope| {
        // Ends when the pipe breaks.
        scope.spawn(move || (first..).try_for_each(|n| writeln!(input, "set k{} {n}", n % KEYS)));
        let mut lines = output.lines();
        let mut seen: Vec<String> = lines.by_ref().take(acks).map_while(Result::ok).collect();
        child.kill().unwrap();
        // What was answered before the kill is acknowledged, too; the last line may be cut.
        seen.extend(lines.map_while(Result::ok));
        let acknowledged = seen.iter().take_while(|line| *line == "ok").count();
        (acknowledged, seen.split_off(acknowledged))
    });
    let status = child.wait().unwrap();
    assert!(acknowledged >= acks, "ended by itself: {rest:?}");
    assert_eq!(status.signal(), Some(9), "not killed: {rest:?}");
    u64::try_from(acknowledged).unwrap()
}

/// Reads all keys, and says which write is the last.
async fn check(dir: &Path, nodes: u64, acknowledged: &BTreeMap<u64, u64>, kill: u64) -> u64 {
    let database = kv::Database::open(dir, nodes).await.unwrap();
    let mut last = 0;
    for key in 0..KEYS {
        let found = database.get(&format!("k{key}")).await.unwrap();
        let found = found.map(|value| value.parse::<u64>().unwrap());
        let expected = acknowledged.get(&key).copied();
        // Writes of a key ascend: a later one that nobody was told of may have come before the kill.
        assert!(found >= expected, "key {key}: {found:?} of {expected:?}, kill {kill}");
        assert!(found.is_none_or(|n| n % KEYS == key), "key {key}: {found:?}, kill {kill}");
        last = last.max(found.unwrap_or(0));
    }
    database.close().await.unwrap();
    last
}

/// Says how many writes were acknowledged.
fn kill_often(nodes: u64, kills: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let args = format!("--nodes\n{nodes}\n{}", dir.to_str().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut next, mut sets, mut acknowledged) = (1, 0, BTreeMap::new());
    for kill in 1..=kills {
        let mut dice = Dice::new(kill);
        let acks = [0, 1, dice.index(20), dice.index(300)][dice.index(4)];
        let count = write_and_kill(&args, next, acks);
        acknowledged.extend((next..next + count).map(|n| (n % KEYS, n)));
        sets += count;
        let last = runtime.block_on(check(&dir, nodes, &acknowledged, kill));
        // What was found is read again by the checks to come.
        next = last.max(next + count) + 1;
    }
    sets
}

/// Of three nodes, a leader that was started again in its own term read without the writes that it
/// had answered last: what it knew as committed had been saved without a sync.
#[test]
fn a_database_has_every_acknowledged_write_after_each_kill() {
    let kills = if is_release() { [of_release(2000), of_release(200)] } else { [60, 12] };
    let mut writes = 0;
    for (nodes, kills) in [1, 3].into_iter().zip(kills) {
        writes += kill_often(nodes, kills);
    }
    figure(4, "kills of a database on raft", kills.iter().sum::<u64>());
    figure(4, "acknowledged writes of a database on raft, all there", writes);
}

/// One command each, as a shell runs them.
#[test]
fn the_database_answers_single_commands() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let dir = dir.to_str().unwrap();
    let answers = |command: &[&str]| {
        let mut out = Vec::new();
        let args: Vec<&str> = [dir].iter().chain(command).copied().collect();
        kv::run(&args, b"".as_slice(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(answers(&["get", "color"]), "(none)\n");
    assert_eq!(answers(&["set", "color", "blue"]), "ok\n");
    assert_eq!(answers(&["get", "color"]), "blue\n");
    assert_eq!(answers(&["remove", "color"]), "blue\n");
    assert_eq!(answers(&["get", "color"]), "(none)\n");
}

#[test]
fn a_database_of_three_nodes_is_opened_with_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let dir = dir.to_str().unwrap();
    let mut out = Vec::new();
    kv::run(&["--nodes", "3", dir, "set", "color", "blue"], b"".as_slice(), &mut out).unwrap();
    kv::run(&[dir, "get", "color"], b"".as_slice(), &mut out).unwrap();
    assert_eq!(out, b"ok\nblue\n");
}
