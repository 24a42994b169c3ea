//! A copy of a log, made by the program alongside its writer.

use oncelog::{CreateMode, Log, Options};

use crate::cli::{fresh, run};

#[test]
fn a_backup_alongside_a_writer_is_a_log_of_its_own() {
    let (_dir, log) = fresh("log");
    let copy = format!("{log}-copy");
    let options = Options::new().create(CreateMode::IfMissing);
    let (writer, _) = Log::open(&log, &options).unwrap();
    for n in 0..100 {
        writer.append(format!("record {n}").as_bytes()).unwrap();
    }
    let made = run(&["backup", &log, &copy, "--json"], b"");
    assert_eq!(made.code, 0, "{}", made.err);
    let object = &made.objects()[0];
    assert_eq!((&object["oldest_lsn"], &object["last_lsn"]), (&1.into(), &100.into()), "{object}");
    assert_eq!(object["path"], copy);
    writer.append(b"only in the original").unwrap();
    // The copy has no writer: it verifies, and holds what the original held.
    let verified = run(&["verify", &copy, "--json"], b"");
    assert_eq!(verified.code, 0, "{}", verified.out);
    let records = |path: &str| run(&["dump", path, "--payload", "utf8"], b"").out.lines().count();
    assert_eq!((records(&copy), records(&log)), (100, 101));
    let appended = run(&["append", &copy], b"only in the copy\n");
    assert_eq!((appended.code, appended.out.as_str()), (0, "101\n"), "{}", appended.err);
    writer.close().unwrap();
}

#[test]
fn what_cannot_be_backed_up_is_told_and_nothing_is_made() {
    let (_dir, log) = fresh("log");
    assert_eq!(run(&["append", &log], b"a\n").code, 0);
    let (_store_dir, store) = fresh("store");
    let noop = ["broadcast", &store, "--type", "Noop", "--vchannels", "a"];
    assert_eq!(run(&noop, b"").code, 0);
    let (_target_dir, to) = fresh("to");
    let check = |from: &str, to: &str, code: i32, kind: &str| {
        let run = run(&["backup", from, to, "--json"], b"");
        assert_eq!((run.code, run.out.as_str()), (code, ""), "{from}: {}", run.err);
        assert_eq!(run.error()["kind"], kind, "{from}");
    };
    check(&format!("{log}-absent"), &to, 2, "InvalidInput");
    check(&store, &to, 2, "InvalidInput");
    check(&log, &log, 2, "InvalidInput");
    check(&log, &store, 2, "InvalidInput");
    let segment = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.into_iter().find(|path| path.extension().is_some()).unwrap();
    check(segment.to_str().unwrap(), &to, 2, "InvalidInput");
    // Damage to what was promised is not copied.
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[0] ^= 1;
    bytes[4_096..12_288].fill(0);
    std::fs::write(&segment, bytes).unwrap();
    check(&log, &to, 4, "Corrupt");
    assert!(!std::path::Path::new(&to).exists());
}
