//! The commands of a store as scripts see them: answers, refusals, exit codes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::{fresh, has_keys, run, snapshot};

const AIRPORTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/airports.parquet");
const CARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/cars.json");

fn import(dir: &str, file: &str, key: &str) -> (i32, Value, Value) {
    let run = run(&["import", dir, file, "--collection", "c", "--key", key, "--json"], b"");
    (run.code, run.objects().pop().unwrap_or_default(), run.error())
}

fn broadcast(dir: &str, key: &str, payload: &str) -> (i32, Value, Value) {
    let args =
        ["broadcast", dir, "--type", "Noop", "--vchannels", "a,b", "--scope", "collection:1"];
    let run = run(&[&args[..], &["--key", key, "--payload", payload, "--json"]].concat(), b"");
    (run.code, run.objects().pop().unwrap_or_default(), run.error())
}

#[test]
fn an_import_answers_its_retry_and_refuses_another_file() {
    let (_dir, store) = fresh("store");
    let (code, first, error) = import(&store, AIRPORTS, "k");
    assert_eq!(code, 0, "{error}");
    has_keys(&first, "job_id state rows progress duplicated expires_at reason");
    assert_eq!((&first["state"], &first["rows"]), (&"Completed".into(), &3376.into()));
    assert_eq!(first["duplicated"], false);
    let before = snapshot(&Path::new(&store).join("channels"));
    let (code, again, _) = import(&store, AIRPORTS, "k");
    assert_eq!((code, &again["duplicated"]), (0, &true.into()));
    for key in ["job_id", "expires_at", "rows"] {
        assert_eq!(again[key], first[key], "{key}");
    }
    let records = |shot: &[(_, u64, _, Vec<u8>)]| shot.iter().map(|file| file.1).sum::<u64>();
    assert_eq!(records(&snapshot(&Path::new(&store).join("channels"))), records(&before));
    let (code, _, error) = import(&store, CARS, "k");
    assert_eq!((code, &error["kind"]), (6, &"Conflict".into()));
    assert!(!error["fields"].as_array().unwrap().is_empty());
    assert_eq!(run(&["verify", &store], b"").code, 0);
}

#[test]
fn reading_commands_of_a_store_have_their_keys_and_leave_all_as_it_was() {
    let (dir, store) = fresh("store");
    assert_eq!(import(&store, AIRPORTS, "k").0, 0);
    assert_eq!(broadcast(&store, "b", "hello").0, 0);
    let before = snapshot(Path::new(&store));
    let out = dir.path().join("rows.jsonl");
    let out = out.to_str().unwrap();
    for (args, keys) in [
        (&["jobs"] as &[&str], "job_id state rows progress duplicated expires_at reason"),
        (&["keys"], "scope key state broadcast_id accepted_at done_at expires_at cause"),
        (&["inspect"], "log status segments findings"),
        (&["stats"], "log records types vchannels"),
        (&["verify"], "summary"),
        (&["dump", "--vchannel", "a"], "log lsn segment offset bytes payload type properties"),
        (
            &["replay", "--collection", "c", "--out", out],
            "rows aborted_rows pending_rows lost_messages",
        ),
    ] {
        let args: Vec<&str> = [&args[..1], &[store.as_str()], &args[1..]].concat();
        let text = run(&args, b"");
        assert_eq!(text.code, 0, "{args:?}: {}", text.err);
        let json = run(&[&args[..], &["--json"]].concat(), b"");
        assert_eq!(json.code, 0, "{args:?}: {}", json.err);
        has_keys(json.objects().last().unwrap(), keys);
    }
    assert_eq!(snapshot(Path::new(&store)), before);
    assert_eq!(fs::read_to_string(out).unwrap().lines().count(), 3376);
}

#[test]
fn a_broadcast_answers_its_retry_and_refuses_another_payload() {
    let (_dir, store) = fresh("store");
    let (code, first, error) = broadcast(&store, "k", "p");
    assert_eq!(code, 0, "{error}");
    has_keys(&first, "broadcast_id duplicated expires_at channels");
    for vchannel in ["a", "b"] {
        has_keys(&first["channels"][vchannel], "lsn time_tick");
    }
    let (code, again, _) = broadcast(&store, "k", "p");
    assert_eq!((code, &again["duplicated"]), (0, &true.into()));
    for key in ["broadcast_id", "expires_at", "channels"] {
        assert_eq!(again[key], first[key], "{key}");
    }
    let (code, _, error) = broadcast(&store, "k", "other");
    assert_eq!((code, &error["kind"]), (6, &"Conflict".into()));
    assert_eq!(error["fields"], serde_json::json!(["payload"]));
}

#[test]
fn a_malformed_key_is_refused_before_a_store_is_made() {
    let (_dir, store) = fresh("store");
    let long = "x".repeat(257);
    for key in ["", long.as_str(), "caf\u{e9}", "a\tb"] {
        assert_eq!(broadcast(&store, key, "p").0, 2, "{key:?}");
        assert_eq!(import(&store, AIRPORTS, key).0, 2, "{key:?}");
    }
    assert!(!Path::new(&store).exists());
    assert_eq!(broadcast(&store, &"x".repeat(256), "p").0, 0);
    assert_eq!(broadcast(&store, "--json", "--help").0, 0);
}

#[test]
fn keys_show_what_is_known_and_one_unknown_otherwise() {
    let (_dir, store) = fresh("store");
    broadcast(&store, "k", "p");
    let keys = |args: &[&str]| run(&[&["keys", &store, "--json"], args].concat(), b"").objects();
    let known = keys(&["k"]);
    assert_eq!(known.len(), 1);
    assert_eq!((&known[0]["state"], &known[0]["scope"]), (&"done".into(), &"collection:1".into()));
    for args in
        [&["never"] as &[&str], &["k", "--scope", "collection:2"], &["k", "--principal", "x"]]
    {
        let unknown = keys(args);
        assert_eq!(unknown.len(), 1, "{args:?}");
        assert_eq!(
            (&unknown[0]["state"], &unknown[0]["probably_seen"]),
            (&"unknown".into(), &false.into())
        );
    }
    let far = keys(&["k", "--at", "2999-01-01T00:00:00Z"]);
    assert_eq!(far[0]["state"], "expired");
    has_keys(&keys(&["--summary"])[0], "live_count count_max lifetime_ms effective_ms");
}

#[test]
fn a_config_holds_for_the_command_and_a_broken_one_is_refused() {
    let (dir, store) = fresh("store");
    let file = dir.path().join("oncelog.toml");
    let with = |text: &str, key: &str| {
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--json"];
        run(&[&args[..], &["--key", key, "--config", file]].concat(), b"")
    };
    assert_eq!(with("[retention]\nwindow_lifetime = \"48h\"\n", "k").code, 1);
    assert!(!Path::new(&store).exists());
    let one = "[retention]\nwindow_count_max = 1\nprincipal_share_max = 100\n";
    assert_eq!(with(one, "k1").code, 0);
    let full = with(one, "k2");
    assert_eq!((full.code, &full.error()["kind"]), (6, &"WindowFull".into()), "{}", full.err);
}

#[test]
fn bad_files_are_one_clear_error_and_leave_the_store_usable() {
    let (dir, store) = fresh("store");
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    fs::create_dir(dir.path().join("folder.csv")).unwrap();
    let folder = dir.path().join("folder.csv").to_str().unwrap().to_owned();
    let parquet = fs::read(AIRPORTS).unwrap();
    let nested = [&b"{\"a\":"[..], &b"[".repeat(100_000)].concat();
    // What the request alone shows consumes no key: the call has to be changed.
    for (at, file) in [
        dir.path().join("absent.csv").to_str().unwrap().to_owned(),
        put("empty.csv", b""),
        folder,
        put("letter.txt", b"dear"),
    ]
    .iter()
    .enumerate()
    {
        let (code, _, error) = import(&store, file, &format!("refused-{at}"));
        assert_eq!((code, &error["kind"]), (2, &"InvalidInput".into()), "{file}: {error}");
        assert!(error["message"].as_str().unwrap().contains(file.as_str()), "{error}");
    }
    // What only the rows show is a failed job, which says where.
    for (at, file) in [
        put("cut.parquet", &parquet[..parquet.len() / 2]),
        put("named.parquet", b"id,name\n1,a\n"),
        put("twice.csv", b"a,a\n1,2\n"),
        put("short.csv", b"a,b\n1,2\n3\n"),
        put("open.jsonl", b"{\"a\":\"x\n"),
        put("wide.jsonl", b"{\"a\":99999999999999999999999999}\n{\"a\":1e999}\n"),
        put("latin.csv", b"a\n\xff\xfe\n"),
        put("nested.jsonl", &nested),
    ]
    .iter()
    .enumerate()
    {
        let (code, last, error) = import(&store, file, &format!("failed-{at}"));
        assert_eq!((code, &last["state"]), (1, &"Failed".into()), "{file}: {last} {error}");
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        assert!(last["reason"].as_str().unwrap().contains(name), "{last}");
    }
    let (code, good, _) = import(&store, CARS, "good");
    assert_eq!((code, &good["rows"]), (0, &406.into()));
    let out = dir.path().join("rows.jsonl");
    let replay = run(&["replay", &store, "--collection", "c", "--out", out.to_str().unwrap()], b"");
    assert_eq!(replay.code, 0, "{}", replay.err);
    assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), 406);
    assert_eq!(run(&["verify", &store], b"").code, 0);
}

#[test]
fn a_file_that_makes_its_decoder_panic_is_one_error_as_any_other() {
    let (_dir, store) = fresh("store");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/data/negative-column-start.parquet");
    let run = run(&["import", &store, file, "--collection", "c", "--key", "k", "--json"], b"");
    assert_eq!((run.code, run.err.as_str()), (1, ""), "{}", run.out);
    assert!(run.out.contains("the file is damaged or truncated"), "{}", run.out);
}

#[test]
fn a_directory_that_holds_something_else_is_no_store() {
    let (dir, _) = fresh("store");
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter.txt"), "dear").unwrap();
    let before = snapshot(&other);
    let path = other.to_str().unwrap();
    assert_eq!(import(path, AIRPORTS, "k").0, 2);
    assert_eq!(broadcast(path, "k", "p").0, 2);
    for command in ["jobs", "keys"] {
        let run = run(&[command, path, "--json"], b"");
        assert_eq!((run.code, &run.error()["kind"]), (2, &"InvalidInput".into()), "{command}");
    }
    assert_eq!(snapshot(&other), before);
}

#[test]
fn jobs_name_one_and_refuse_an_unknown_one() {
    let (_dir, store) = fresh("store");
    let (_, first, _) = import(&store, CARS, "k");
    let id = first["job_id"].as_str().unwrap();
    let one = run(&["jobs", &store, id, "--json"], b"").objects();
    assert_eq!((one.len(), &one[0]["job_id"]), (1, &first["job_id"]));
    assert_eq!(one[0]["rows"], 406);
    let files = one[0]["file_list"].as_array().unwrap();
    let told = (&files[0]["state"], &files[0]["rows"], &files[0]["rows_total"]);
    assert_eq!(told, (&"Completed".into(), &406.into(), &406.into()));
    let never = run(&["jobs", &store, "999999", "--json"], b"");
    assert_eq!(never.code, 2);
    assert!(never.error()["message"].as_str().unwrap().contains("never was a job"), "{never:?}");
    let page = |args: &[&str]| -> Vec<String> {
        let objects = run(&[&["jobs", &store, "--json"], args].concat(), b"").objects();
        objects.iter().map(|job| job["job_id"].as_str().unwrap().to_owned()).collect()
    };
    let (_, second, _) = import(&store, CARS, "k2");
    let second = second["job_id"].as_str().unwrap();
    assert_eq!(page(&["--limit", "1"]), [id]);
    assert_eq!(page(&["--limit", "1", "--after", id]), [second]);
    assert_eq!(page(&["--after", second]), Vec::<String>::new());
    // It has committed: nothing is left to cancel.
    let late = run(&["jobs", "cancel", &store, id, "--json"], b"");
    assert_eq!((late.code, &late.objects()[0]["state"]), (1, &"Completed".into()));
}

/// What the table of docs/cli.md names in the row of a command.
fn documented(row: &str) -> Vec<String> {
    let text = include_str!("../../docs/cli.md");
    let line = text.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap();
    line.rsplit(" | ").next().unwrap().split('`').skip(1).step_by(2).map(Into::into).collect()
}

/// The keys of an object are those of its row; each of them, when `all`.
#[track_caller]
fn check_documented(row: &str, object: &Value, all: bool) {
    let names = documented(row);
    let keys = object.as_object().unwrap();
    let unnamed: Vec<_> = keys.keys().filter(|key| !names.contains(key)).collect();
    assert!(unnamed.is_empty(), "not documented in {row}: {unnamed:?}");
    let missing: Vec<_> = names.iter().filter(|name| all && !keys.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not printed by {row}: {missing:?}");
}

#[test]
fn the_documented_keys_are_those_that_are_printed() {
    let (dir, store) = fresh("store");
    check_documented("`import` (last line)", &import(&store, AIRPORTS, "k").1, true);
    let sent = broadcast(&store, "b", "hello").1;
    let row = "`broadcast` (also without `--json`)";
    // What is in `channels` is named there, too.
    check_documented(row, &sent, false);
    check_documented(row, &sent["channels"]["a"], false);
    let out = dir.path().join("rows.csv");
    let printed = |args: &[&str]| {
        let run = run(&[&args[..1], &[&store, "--json"], &args[1..]].concat(), b"");
        assert_eq!(run.code, 0, "{args:?}: {}", run.err);
        run.objects()
    };
    for (args, row, all) in [
        (&["jobs"] as &[&str], "`jobs`, `jobs cancel`", true),
        (&["keys"], "`keys`", true),
        (&["keys", "other"], "`keys`", true),
        (&["keys", "--summary"], "`keys --summary`", true),
        (&["dump"], "`dump`", false),
        (&["inspect"], "`inspect`, a log each", false),
        (&["stats"], "`stats`, a log each", false),
        (&["replay", "--out", out.to_str().unwrap()], "`replay`", true),
    ] {
        printed(args).iter().for_each(|object| check_documented(row, object, all));
    }
    let control = &printed(&["stats"])[0];
    assert_eq!(control["log"], "control");
    has_keys(control, "broadcasts jobs parked");
    for log in printed(&["inspect"]) {
        let segments = log["segments"].as_array().unwrap();
        segments.iter().for_each(|one| check_documented("`inspect`, of `segments`", one, true));
    }
    for object in printed(&["verify"]) {
        let summary = object.get("summary").or_else(|| object.get("log_summary")).unwrap();
        check_documented("`verify`, last", summary, false);
    }
    change(&segment(&store, "channels/p0"), |bytes| bytes[12_288 + 40] ^= 1);
    let verify = run(&["verify", &store, "--json"], b"");
    check_documented("`verify`, a finding each", &verify.objects()[0], true);
    let text = run(&["verify", &store], b"").out;
    let line = text.lines().next().unwrap();
    for part in ["channels/p0/0000000001", "at 0x3000", "LSN 1", "expected", "found", "; "] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}

/// The only segment of a log of a store.
fn segment(store: &str, log: &str) -> std::path::PathBuf {
    let entries = fs::read_dir(Path::new(store).join(log)).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|ext| ext == "seg")).unwrap()
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn damage_in_one_log_of_a_store_hides_no_other_and_the_worst_decides() {
    let (_dir, store) = fresh("store");
    assert_eq!(broadcast(&store, "k", "p").0, 0);
    // The payload of the first record of control.
    change(&segment(&store, "control"), |bytes| bytes[12_288 + 40] ^= 1);
    let kinds = |run: &crate::cli::Run| -> Vec<Value> {
        let lines = run.err.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["error"]["kind"].clone()).collect()
    };
    let dump = run(&["dump", &store, "--json"], b"");
    let shown: Vec<_> = dump.objects().iter().map(|row| row["log"].clone()).collect();
    assert_eq!((dump.code, shown), (4, vec![Value::from("channels/p0"); 2]), "{}", dump.err);
    assert_eq!(kinds(&dump), ["Corrupt"]);
    let stats = run(&["stats", &store, "--json"], b"");
    assert_eq!((stats.code, stats.objects().len()), (4, 2));
    assert_eq!(stats.objects()[1]["records"], 2);

    change(&segment(&store, "channels/p0"), |bytes| {
        bytes[8] = 2;
        let crc = crate::reference::bytes::crc(0, &bytes[..76]);
        bytes[76..80].copy_from_slice(&crc.to_le_bytes());
    });
    for command in ["dump", "stats", "verify", "inspect"] {
        let run = run(&[command, &store, "--json"], b"");
        assert_eq!(run.code, 5, "{command}: {} {}", run.out, run.err);
        if ["dump", "stats"].contains(&command) {
            assert_eq!(kinds(&run), ["Corrupt", "Unsupported"]);
        }
    }
}

#[test]
fn a_store_is_followed_in_one_channel_or_the_call_is_refused() {
    let (_dir, store) = fresh("store");
    assert_eq!(broadcast(&store, "k", "p").0, 0);
    let follow = |extra: &[&str]| {
        let args = ["dump", &store, "--json", "--follow", "--to", "2"];
        run(&[&args, extra].concat(), b"")
    };
    let both = follow(&[]);
    assert_eq!((both.code, both.objects().len()), (0, 2), "{}", both.err);
    fs::create_dir(Path::new(&store).join("channels/p1")).unwrap();
    let refused = follow(&[]);
    assert_eq!((refused.code, refused.out.as_str()), (2, ""));
    assert!(refused.error()["message"].as_str().unwrap().contains("--vchannel"));
    let one = follow(&["--vchannel", "a"]);
    assert_eq!((one.code, one.objects().len()), (0, 1), "{}", one.err);
    assert_eq!(one.objects()[0]["vchannel"], "a");
    assert_eq!(follow(&["--vchannel", "none"]).code, 2);
}

#[test]
fn plain_records_are_kept_out_of_a_store() {
    let (_dir, store) = fresh("store");
    assert_eq!(broadcast(&store, "k", "p").0, 0);
    let before = snapshot(Path::new(&store));
    for log in ["", "control", "channels/p0", "channels/new", "new"] {
        let path = Path::new(&store).join(log);
        let append = run(&["append", path.to_str().unwrap(), "--json"], b"x\n");
        assert_eq!((append.code, append.out.as_str()), (2, ""), "{log}: {}", append.err);
    }
    assert_eq!(snapshot(Path::new(&store)), before);
    assert_eq!(broadcast(&store, "k", "p").1["duplicated"], true);
}

/// Its rows were hidden for ever, under a job that was `Completed`.
#[test]
fn a_broadcast_of_an_import_cannot_be_asked_for_beside_its_collection() {
    let (_dir, store) = fresh("store");
    assert_eq!(import(&store, AIRPORTS, "k").0, 0);
    let payload = format!(r#"{{"collection":"c","collection_id":1,"files":["{CARS}"]}}"#);
    let ask = |vchannel: &str, more: &[&str]| {
        let args = ["broadcast", &store, "--type", "Import", "--vchannels", vchannel, "--json"];
        let asked = ["--key", "other", "--payload", &payload];
        let refused = run(&[&args[..], &asked, more].concat(), b"");
        let error = refused.error();
        assert_eq!((refused.code, &error["kind"]), (2, &"InvalidInput".into()), "{error}");
        error["message"].as_str().unwrap().to_owned()
    };
    assert!(ask("x", &[]).contains("expected collection:1, found store:0"));
    let scoped = ["--scope", "collection:1"];
    assert!(ask("c_v0", &scoped).contains("expected collection:1:shared, found none"));
    let held = [&scoped[..], &["--resource", "collection:1:shared"]].concat();
    assert!(ask("x", &held).contains("by the fields of its request"));
    for of_type in ["CommitImport", "AbortImport"] {
        let args = ["broadcast", &store, "--type", of_type, "--vchannels", "c_v0", "--json"];
        let refused = run(&args, b"");
        assert_eq!((refused.code, &refused.error()["kind"]), (2, &"InvalidInput".into()));
    }
    let jobs = run(&["jobs", &store, "--json"], b"").objects();
    assert_eq!(jobs.len(), 1);
    let keys = run(&["keys", &store, "other", "--json"], b"").objects();
    assert_eq!((keys.len(), &keys[0]["state"]), (1, &"unknown".into()), "the key is free");
}

#[test]
fn a_payload_that_is_no_import_is_a_wrong_call_and_no_damage() {
    let (_dir, store) = fresh("store");
    let args = ["broadcast", &store, "--type", "Import", "--vchannels", "a", "--json"];
    let refused = run(&args, b"");
    assert_eq!((refused.code, refused.error()["kind"].as_str()), (2, Some("InvalidInput")));
}
