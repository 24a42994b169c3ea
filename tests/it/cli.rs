//! The command line as scripts see it: exit codes, JSON keys, and what is left alone.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use serde_json::Value;
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_oncelog");

/// What a finished command left.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn objects(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn error(&self) -> Value {
        let line = self.err.lines().last().unwrap_or_default();
        let error: Value = serde_json::from_str(line).unwrap_or_default();
        error["error"].clone()
    }
}

/// Runs the command with an input to its end.
pub(crate) fn run(args: &[&str], input: &[u8]) -> Run {
    let mut child = Command::new(BIN)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // A command that refuses does not read its input.
    drop(writer.join().unwrap());
    Run {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A path below a fresh directory that goes away with the test.
pub(crate) fn fresh(name: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    (dir, path)
}

fn log_of(records: usize) -> (TempDir, String) {
    let (dir, log) = fresh("log");
    let lines: String = (0..records).map(|i| format!("record {i}\n")).collect();
    let run = run(&["append", &log], lines.as_bytes());
    assert_eq!(run.code, 0, "{}", run.err);
    (dir, log)
}

/// An append that goes on until it is killed or its input is closed.
struct Appender {
    child: Child,
    lsns: BufReader<std::process::ChildStdout>,
}

impl Appender {
    fn new(log: &str) -> Self {
        let mut child = Command::new(BIN)
            .args(["append", log])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lsns = BufReader::new(child.stdout.take().unwrap());
        Self { child, lsns }
    }

    fn append(&mut self, line: &str) -> u64 {
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut lsn = String::new();
        self.lsns.read_line(&mut lsn).unwrap();
        lsn.trim().parse().unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Names, sizes, times and bytes of everything below a directory.
pub(crate) fn snapshot(dir: &Path) -> Vec<(PathBuf, u64, SystemTime, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(path) = left.pop() {
        let meta = fs::metadata(&path).unwrap();
        let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.push((path, meta.len(), meta.modified().unwrap(), bytes));
    }
    all.sort();
    all
}

fn segment(log: &str, row: &Value) -> PathBuf {
    Path::new(log).join(row["segment"].as_str().unwrap())
}

fn rows(log: &str) -> Vec<Value> {
    run(&["dump", log, "--json"], b"").objects()
}

fn change(file: &Path, offset: u64, with: impl Fn(u8) -> u8) {
    let mut bytes = fs::read(file).unwrap();
    let at = usize::try_from(offset).unwrap();
    bytes[at] = with(bytes[at]);
    fs::write(file, bytes).unwrap();
}

pub(crate) fn has_keys(object: &Value, keys: &str) {
    for key in keys.split_whitespace() {
        assert!(object.get(key).is_some(), "no {key} in {object}");
    }
}

#[test]
fn lsns_are_dense_from_one_over_several_runs() {
    let (_dir, log) = log_of(3);
    let again = run(&["append", &log], b"a\nb\n");
    assert_eq!((again.code, again.out.as_str()), (0, "4\n5\n"));
    let lsns: Vec<u64> = rows(&log).iter().map(|row| row["lsn"].as_u64().unwrap()).collect();
    assert_eq!(lsns, [1, 2, 3, 4, 5]);
}

#[test]
fn a_line_is_a_record_of_raw_bytes() {
    let (_dir, log) = fresh("log");
    let input = b"\n\xff\x00\r\n\tno newline";
    assert_eq!(run(&["append", &log], input).out, "1\n2\n3\n");
    let dump = run(&["dump", &log, "--json", "--payload", "hex"], b"");
    let payloads: Vec<_> = dump.objects().iter().map(|row| row["payload"].clone()).collect();
    assert_eq!(payloads, ["", "ff000d", "096e6f206e65776c696e65"]);
    let dump = run(&["dump", &log, "--json", "--payload", "utf8"], b"").objects();
    assert_eq!(dump[1]["payload_lossy"], true);
    assert_eq!(dump[2]["payload"], "\tno newline");
    let dump = run(&["dump", &log, "--json", "--payload", "none"], b"").objects();
    assert!(dump[0].get("payload").is_none());
}

#[test]
fn no_input_is_no_record() {
    let (_dir, log) = fresh("log");
    let append = run(&["append", &log], b"");
    assert_eq!((append.code, append.out.as_str()), (0, ""));
    assert_eq!(run(&["verify", &log], b"").code, 0);
    assert!(rows(&log).is_empty());
}

#[test]
fn a_batch_is_as_long_as_asked_and_an_incomplete_one_goes_at_the_end() {
    let (_dir, log) = fresh("log");
    run(&["append", &log, "--batch", "2"], b"a\nb\nc\nd\ne\n");
    let ends: Vec<bool> = rows(&log).iter().map(|row| row["batch_end"] == true).collect();
    assert_eq!(ends, [false, true, false, true, true]);
}

#[test]
fn batches_are_whole_however_long_the_input_is() {
    let (_dir, log) = fresh("log");
    let lines: String = (0..9_000).map(|i| format!("{i} {}\n", "b".repeat(500))).collect();
    let append = run(&["append", &log, "--batch", "7"], lines.as_bytes());
    assert_eq!((append.code, append.out.lines().count()), (0, 9_000), "{}", append.err);
    let ends = rows(&log).iter().filter(|row| row["batch_end"] == true).count();
    // A pipe may run dry in between, which ends a batch early.
    assert!((9_000 / 7..=9_000).contains(&ends), "{ends}");
}

#[test]
fn a_line_above_the_largest_record_is_refused_behind_those_before_it() {
    let (_dir, log) = fresh("log");
    let input = [&b"small\n"[..], &vec![b'x'; (16 << 20) + 1], b"\nnever\n"].concat();
    let append = run(&["append", &log, "--json"], &input);
    assert_eq!((append.code, append.out.as_str()), (1, "1\n"));
    assert_eq!(append.error()["kind"], "Limit");
    assert_eq!(rows(&log).len(), 1);
}

#[test]
fn buffered_records_are_durable_when_the_command_ends() {
    let (_dir, log) = fresh("log");
    let append = run(&["append", &log, "--durability", "buffered"], b"a\nb\n");
    assert_eq!((append.code, append.out.as_str()), (0, "1\n2\n"));
    assert!(rows(&log).iter().all(|row| row["durable"] == true));
}

#[test]
fn small_segments_roll_and_read_as_one_log() {
    let (_dir, log) = fresh("log");
    let lines: String = (0..400).map(|i| format!("{i} {}\n", "x".repeat(1_000))).collect();
    run(&["append", &log, "--segment-bytes", "65536"], lines.as_bytes());
    let verify = run(&["verify", &log, "--json"], b"").objects();
    let summary = &verify.last().unwrap()["summary"];
    assert_eq!((&summary["status"], &summary["records"]), (&"clean".into(), &400.into()));
    assert!(summary["segments"].as_u64().unwrap() > 5);
    let part = run(&["dump", &log, "--json", "--from", "399", "--to", "399"], b"").objects();
    assert_eq!(part.len(), 1);
    assert_eq!(part[0]["lsn"], 399);
}

#[test]
fn every_reading_command_has_its_keys_and_leaves_all_as_it_was() {
    let (_dir, log) = log_of(20);
    let before = snapshot(Path::new(&log));
    let file = segment(&log, &rows(&log)[0]);
    for path in [log.as_str(), file.to_str().unwrap()] {
        for (command, keys) in [
            ("dump", "lsn segment offset bytes payload time kind durable batch_end"),
            ("verify", "summary"),
            ("inspect", "status oldest_lsn last_lsn durable_lsn segments findings why_not_trimmed"),
            ("stats", "records payload_bytes payload_histogram batch_histogram kinds"),
        ] {
            let text = run(&[command, path], b"");
            assert_eq!(text.code, 0, "{command} {path}: {}", text.err);
            let json = run(&[command, path, "--json"], b"");
            assert_eq!(json.code, 0, "{command} {path}: {}", json.err);
            has_keys(json.objects().last().unwrap(), keys);
        }
    }
    let verify = run(&["verify", &log, "--json"], b"").objects();
    let keys = "status segments records first_lsn last_lsn durable_lsn";
    has_keys(&verify.last().unwrap()["summary"], keys);
    assert_eq!(snapshot(Path::new(&log)), before);
}

#[test]
fn a_flipped_bit_of_a_promised_frame_is_corrupt_and_named() {
    let (_dir, log) = log_of(30);
    let row = rows(&log)[9].clone();
    change(&segment(&log, &row), row["offset"].as_u64().unwrap() + 33, |byte| byte ^ 4);
    let before = snapshot(Path::new(&log));
    let dump = run(&["dump", &log, "--json"], b"");
    assert_eq!((dump.code, dump.objects().len()), (4, 9));
    has_keys(&dump.error(), "kind message retryable path offset lsn");
    assert_eq!((&dump.error()["kind"], &dump.error()["lsn"]), (&"Corrupt".into(), &10.into()));
    let verify = run(&["verify", &log, "--json"], b"");
    assert_eq!(verify.code, 4);
    let finding = verify.objects().into_iter().find(|found| found["lsn"] == 10).unwrap();
    has_keys(&finding, "kind severity segment offset lsn expected found consequence");
    assert_eq!(finding["offset"], row["offset"]);
    assert_eq!(verify.objects().last().unwrap()["summary"]["status"], "corrupt");
    let append = run(&["append", &log, "--json"], b"x\n");
    assert_eq!((append.code, append.out.as_str()), (4, ""));
    assert_eq!(snapshot(Path::new(&log)), before);
}

#[test]
fn every_damaged_record_is_named_not_only_the_first() {
    let (_dir, log) = log_of(30);
    let all = rows(&log);
    for at in [4, 9, 19] {
        let offset = all[at]["offset"].as_u64().unwrap();
        // A payload, then a header, then a length.
        change(&segment(&log, &all[at]), offset + [33, 8, 17][at % 3], |byte| byte ^ 4);
    }
    let found = run(&["verify", &log, "--json"], b"").objects();
    let lsns: Vec<_> = found.iter().filter_map(|finding| finding["lsn"].as_u64()).collect();
    assert_eq!(lsns, [5, 10, 20]);
}

#[test]
fn skipping_damage_shows_every_valid_record_behind_it_marked() {
    let (_dir, log) = log_of(30);
    let all = rows(&log);
    for at in [4, 9, 19] {
        let offset = all[at]["offset"].as_u64().unwrap();
        change(&segment(&log, &all[at]), offset + [33, 8, 17][at % 3], |byte| byte ^ 4);
    }
    assert_eq!(rows(&log).len(), 4);
    let dump = run(&["dump", &log, "--json", "--skip-damage"], b"");
    assert_eq!((dump.code, &dump.error()["lsn"]), (4, &5.into()), "{}", dump.err);
    let found = dump.objects();
    let shown: Vec<u64> = found.iter().map(|row| row["lsn"].as_u64().unwrap()).collect();
    let expect: Vec<u64> = (1..=30).filter(|lsn| ![5, 10, 20].contains(lsn)).collect();
    assert_eq!(shown, expect);
    for row in &found {
        let lsn = row["lsn"].as_u64().unwrap();
        assert_eq!(row["behind_damage"] == true, lsn > 5, "{row}");
        assert_eq!(row["payload"], format!("record {}", lsn - 1));
        assert_eq!(row["offset"], all[usize::try_from(lsn).unwrap() - 1]["offset"]);
    }
    let text = run(&["dump", &log, "--skip-damage", "--from", "6", "--to", "7"], b"");
    assert_eq!(text.code, 4);
    assert_eq!(text.out.matches("(behind damage)").count(), 2, "{}", text.out);
}

#[test]
fn a_zeroed_stretch_with_promised_frames_behind_it_is_corrupt() {
    let (_dir, log) = fresh("log");
    let lines: String = (0..600).map(|i| format!("{i} {}\n", "z".repeat(1_000))).collect();
    run(&["append", &log], lines.as_bytes());
    let row = rows(&log)[20].clone();
    let (file, offset) = (segment(&log, &row), row["offset"].as_u64().unwrap());
    let mut bytes = fs::read(&file).unwrap();
    let at = usize::try_from(offset).unwrap();
    bytes[at..at + 300_000].fill(0);
    fs::write(&file, bytes).unwrap();
    let verify = run(&["verify", &log, "--json"], b"");
    assert_eq!(verify.code, 4);
    assert!(verify.objects().iter().any(|finding| finding["lsn"] == 21));
    let found = run(&["dump", &log, "--json", "--skip-damage"], b"").objects();
    assert_eq!(found.last().unwrap()["lsn"], 600);
    let lost = 600 - found.len();
    assert!((280..300).contains(&lost), "{lost}");
}

#[test]
fn a_damaged_slot_is_degraded_and_stops_nobody() {
    let (_dir, log) = log_of(5);
    let file = segment(&log, &rows(&log)[0]);
    change(&file, 4096 + 20, |byte| byte ^ 1);
    let verify = run(&["verify", &log, "--json"], b"");
    assert_eq!(verify.code, 4);
    assert!(verify.objects().iter().any(|finding| finding["severity"] == "degraded"));
    assert_eq!(run(&["dump", &log], b"").code, 0);
    assert_eq!(run(&["append", &log], b"x\n").out, "6\n");
}

#[test]
fn junk_behind_the_last_record_of_a_killed_writer_is_torn() {
    let (_dir, log) = log_of(5);
    let mut appender = Appender::new(&log);
    assert_eq!(appender.append("z\n"), 6);
    appender.kill();
    let row = rows(&log).pop().unwrap();
    let end = row["offset"].as_u64().unwrap() + row["bytes"].as_u64().unwrap();
    change(&segment(&log, &row), end, |_| 1);
    let dump = run(&["dump", &log, "--json"], b"");
    assert_eq!((dump.code, dump.objects().len()), (3, 6));
    let verify = run(&["verify", &log, "--json"], b"");
    assert_eq!(verify.code, 3);
    assert_eq!(verify.objects().last().unwrap()["summary"]["status"], "torn");
    assert_eq!(run(&["append", &log], b"x\n").out, "7\n");
    assert_eq!(run(&["verify", &log], b"").code, 0);
}

#[test]
fn a_later_format_version_is_unsupported_not_corrupt() {
    let (_dir, log) = log_of(5);
    let file = segment(&log, &rows(&log)[0]);
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 2;
    let crc = crate::reference::bytes::crc(0, &bytes[..76]);
    bytes[76..80].copy_from_slice(&crc.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    for command in ["dump", "verify", "inspect", "append"] {
        let run = run(&[command, &log, "--json"], b"x\n");
        assert_eq!(run.code, 5, "{command}: {} {}", run.out, run.err);
    }
}

#[test]
fn a_second_writer_is_told_to_come_back() {
    let (_dir, log) = fresh("log");
    let mut appender = Appender::new(&log);
    assert_eq!(appender.append("a\n"), 1);
    let second = run(&["append", &log, "--json"], b"b\n");
    assert_eq!((second.code, second.out.as_str()), (7, ""));
    let error = second.error();
    assert_eq!((&error["kind"], &error["retryable"]), (&"Busy".into(), &true.into()));
    assert_eq!(rows(&log).len(), 1);
    assert_eq!(run(&["verify", &log], b"").code, 0);
    drop(appender.child.stdin.take());
    assert!(appender.child.wait().unwrap().success());
}

#[test]
fn wrong_calls_are_usage_and_name_the_place() {
    let (dir, log) = log_of(1);
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter.txt"), "dear").unwrap();
    let (other, letter) = (other.to_str().unwrap(), other.join("letter.txt"));
    let letter = letter.to_str().unwrap();
    let absent = dir.path().join("absent");
    let absent = absent.to_str().unwrap();
    for args in [
        &["dump", absent] as &[&str],
        &["verify", absent],
        &["inspect", other],
        &["stats", letter],
        &["append", other],
        &["append", letter],
        &["append", &log, "--segment-bytes", "65535"],
        &["append", &log, "--batch", "0"],
        &["dump", &log, "--from", "0"],
        &["dump", &log, "--since", "yesterday"],
        &["dump"],
        &["no-such-command"],
    ] {
        let mut args = args.to_vec();
        args.push("--json");
        let run = run(&args, b"x\n");
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{args:?}: {}", run.err);
        has_keys(&run.error(), "kind message retryable");
        assert_eq!(run.error()["kind"], "InvalidInput", "{args:?}");
    }
    assert_eq!(fs::read_dir(other).unwrap().count(), 1);
    assert!(!Path::new(absent).exists());
}

#[test]
fn a_directory_that_may_not_be_written_is_one_clear_error() {
    let (dir, _) = fresh("log");
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let mut mode = fs::metadata(&closed).unwrap().permissions();
    mode.set_readonly(true);
    fs::set_permissions(&closed, mode).unwrap();
    // Who may do everything becomes somebody who may not, with a program that is in reach of all.
    let is_root = fs::write(closed.join("probe"), "").is_ok();
    let program = dir.path().join("oncelog");
    fs::copy(BIN, &program).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut append = Command::new(&program);
    append.arg("append").arg(closed.join("log")).arg("--json").stdin(Stdio::null());
    if is_root {
        append.uid(65_534).gid(65_534);
    }
    let append = append.output().unwrap();
    let told = String::from_utf8(append.stderr).unwrap();
    let error: Value = serde_json::from_str(told.trim_end()).unwrap();
    let error = &error["error"];
    assert_eq!((append.status.code(), &error["kind"]), (Some(1), &"Io".into()), "{told}");
    assert!(error["path"].as_str().unwrap().contains("closed"), "{told}");
}

#[test]
fn a_terminal_never_sees_a_command_of_a_payload() {
    let (_dir, log) = fresh("log");
    run(&["append", &log], b"\x1b[31mred\x07\xc2\x9b2J\xe2\x80\xae\n");
    for args in [&["dump", &log] as &[&str], &["dump", &log, "--json"]] {
        let shown = run(args, b"").out;
        let is_plain = |c: char| c == '\n' || (!c.is_control() && c != '\u{202e}');
        assert!(shown.chars().all(is_plain), "{shown:?}");
        assert!(shown.contains("red"));
    }
}

#[test]
fn a_reader_that_goes_away_ends_a_dump_quietly() {
    let (_dir, log) = fresh("log");
    let lines: String = (0..3_000).map(|i| format!("{i} {}\n", "p".repeat(200))).collect();
    run(&["append", &log], lines.as_bytes());
    let mut dump = Command::new(BIN)
        .args(["dump", &log])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    dump.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let mut err = String::new();
    dump.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((dump.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn records_of_a_time_are_found_by_it() {
    let (_dir, log) = log_of(3);
    let early = run(&["dump", &log, "--json", "--until", "2001-01-01T00:00:00Z"], b"");
    assert_eq!((early.code, early.out.as_str()), (0, ""));
    let late = run(&["dump", &log, "--json", "--since", "2001-01-01T00:00:00Z"], b"");
    assert_eq!(late.objects().len(), 3);
}

#[test]
fn a_follower_sees_what_becomes_durable() {
    let (_dir, log) = fresh("log");
    let mut appender = Appender::new(&log);
    assert_eq!(appender.append("first\n"), 1);
    let mut follower = Command::new(BIN)
        .args(["dump", &log, "--json", "--follow", "--to", "3"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BufReader::new(follower.stdout.take().unwrap()).lines();
    // The slot of an idle log, or the next record, vouches for the last one.
    for lsn in 1..=3_u64 {
        let row: Value = serde_json::from_str(&seen.next().unwrap().unwrap()).unwrap();
        assert_eq!((&row["lsn"], &row["durable"]), (&lsn.into(), &true.into()));
        if lsn < 3 {
            assert_eq!(appender.append("more\n"), lsn + 1);
        }
    }
    assert!(follower.wait().unwrap().success());
    appender.kill();
}

#[test]
fn a_policy_is_explained_or_every_broken_rule_is_told() {
    let (dir, _) = fresh("log");
    let file = dir.path().join("oncelog.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        run(&["config", "check", file.to_str().unwrap(), "--json"], b"")
    };
    let good = check("[retention]\nwindow_lifetime = \"12h\"\ntask_retention = \"24h\"\n");
    assert_eq!(good.code, 0, "{}", good.err);
    assert_eq!(good.objects().last().unwrap()["valid"], true);
    let bad = check(
        "[retention]\nwindow_lifetime = \"48h\"\ncheck_interval = 5\nwindow_counts = 1\n[other]\n",
    );
    assert_eq!(bad.code, 1);
    let rules = bad.objects();
    for name in ["task_retention", "check_interval", "window_counts", "other"] {
        let rule = rules.iter().find(|rule| rule["name"] == name);
        has_keys(rule.unwrap(), "name rule expected found");
    }
    assert_eq!(check("not toml [").code, 1);
}

#[test]
fn the_documented_configuration_is_the_default_and_names_everything() {
    let (dir, _) = fresh("log");
    let file = dir.path().join("oncelog.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let checked = run(&["config", "check", file.to_str().unwrap(), "--json"], b"");
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
        checked.objects().pop().unwrap()
    };
    let page = include_str!("../../docs/config.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    assert_eq!(check(text), check(""));
    for name in oncelog::broadcast::Policy::NAMES {
        assert!(text.contains(&format!("{name} = ")), "{name}");
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// The command panicked where its error could not be printed, and ended with 101.
#[test]
fn the_exit_code_tells_what_failed_where_standard_error_is_full() {
    let (_dir, missing) = fresh("missing");
    let check = |args: &[&str]| {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = Command::new(BIN)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(full)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(run(args, b"").code), "{args:?}");
        assert_ne!(status.code(), Some(0), "{args:?}");
    };
    check(&["dump", &missing]);
    check(&["--json", "dump", &missing]);
    check(&["--json", "dump", "--no-such"]);
    check(&["no-such"]);
}
