//! Logs of format 1.0 as a writer left them, kept as files for ever.
//!
//! A file is never made again: what a version has written, every later one has to read alike. The
//! scripts here say how each came to be, and make the file of a log that has none yet when
//! `ONCELOG_MAKE_DATA` is in the environment.

use std::fs;

use super::{data, images, judged, makes_files};
use crate::differential;
use crate::differential::library::directory_of;
use crate::image::{Directory, Image};
use crate::recovery::script::Script;
use crate::reference::forge::{Forge, UUID, lock_with};

/// Name, what it shows, and the script that wrote it; the zeros behind the last segment go, so
/// that the files are small, unless the name begins with `whole`.
const LOGS: &[(&str, &str, &str)] = &[
    ("empty", "a log that never had a record", "open; close"),
    ("bare", "a log whose maker was killed", "open; kill"),
    ("one", "one record, closed", "open; append 1x13; close"),
    ("killed", "one record without a witness", "open; append 1x13; kill"),
    ("idle", "records that a slot of an idle writer proves", "open; append 3x9; idle; kill"),
    ("batches", "batches of several records", "open; batch 3x10; batch 2x100; append 1x0; close"),
    (
        "flushed",
        "a batch that was written and not synced",
        "open; append 2x10; buffer 3x20; flush; kill",
    ),
    ("power", "what a power loss left of it", "open; append 2x10; buffer 3x20; flush; power"),
    (
        "cut-batch",
        "a batch whose last frame is missing",
        "open; append 1x10; batch 3x10; kill; zero 0:12432+48",
    ),
    ("torn", "a last record with another payload", "open; append 3x40; kill; flip 0:12470"),
    (
        "torn-hole",
        "a batch with a hole in it",
        "open; append 2x10; buffer 2x600; flush; kill; zero 0:12900+40",
    ),
    (
        "rolled",
        "three segments with footers",
        "open; append 3x10; close; cut 0 12432; open; append 2x70; close; cut 1 12496; open; append 1x5; close",
    ),
    (
        "rolled-torn",
        "a torn end with a segment behind it",
        "open; append 2x10; buffer 2x600; flush; kill; zero 0:12900+40; open; append 3x10; kill",
    ),
    (
        "rolled-bare",
        "a segment without a record in the middle",
        "open; append 1x10; close; cut 0 12336; open; append 1x1; kill; cut 1 12288; open; append 2x20; close",
    ),
    (
        "no-footer",
        "a segment whose footer a full disk refused",
        "open; append 2x10; close; cut 0 12384; open; append 2x10; close; cut 0 12384",
    ),
    (
        "footer-damaged",
        "a damaged footer",
        "open; append 2x10; close; cut 0 12384; open; append 2x10; close; flip 0:12400",
    ),
    (
        "sealed-tail",
        "a footer without a segment behind it",
        "open; append 3x10; close; cut 0 12432; open; append 1x10; kill; remove 1",
    ),
    (
        "trimmed",
        "records below the oldest one in a segment",
        "open; append 6x10; trim 4; append 1x10; close",
    ),
    (
        "leftover",
        "a segment that a trim left",
        "open; append 3x10; close; cut 0 12432; open; append 3x10; copy 0 keep; open; trim 5; close; rename keep 0000000001-00000000000000000001.seg",
    ),
    ("emptied", "a log that retention has emptied", "open; append 3x10; trim 4; close"),
    (
        "emptied-rolled",
        "an emptied log that went on",
        "open; append 3x10; trim 4; close; cut 0 12432; open; append 1x10; close",
    ),
    (
        "strays",
        "a spare, a stray and a name that is no segment's",
        "open; append 2x10; close; put 0000000002.spare rest; put notes.txt mine; put 1-1.seg no",
    ),
    (
        "kinds",
        "records of every kind that a caller has",
        "open; append 1x3; file 2 fuzz/corpus/decode_message/message; file 3 fuzz/corpus/decode_control/control-accepted; kind 128 1x3; kind 255 1x0; close",
    ),
    (
        "lag",
        "a long way from the durable LSN",
        "open; append 1x1; buffer 90x0; sync; append 1x1; close",
    ),
    (
        "times",
        "a clock that steps to both ends",
        "open; at 0; append 2x4; at 281474976710655; append 1x4; at 999999999999999; append 1x4; at 7; append 1x4; close",
    ),
    (
        "remainders",
        "every remainder before the end of a sector",
        "open; append 1x480; append 1x472; append 1x471; append 1x470; append 1x469; append 1x468; append 1x467; append 1x466; append 1x465; append 1x0; close",
    ),
    (
        "paddings",
        "payloads of 0 to 8 bytes",
        "open; append 1x0; append 1x1; append 1x2; append 1x3; append 1x4; append 1x5; append 1x6; append 1x7; append 1x8; close",
    ),
    (
        "end-32",
        "a file that has room for one header alone",
        "open; append 2x10; close; cut 0 12416",
    ),
    ("end-24", "a file that ends within a header", "open; append 2x10; close; cut 0 12408"),
    ("end-0", "a file that ends with its last frame", "open; append 2x10; kill; cut 0 12384"),
    ("end-unaligned", "a file of an odd length", "open; append 2x10; kill; cut 0 12391"),
    ("unidentified", "a log whose making did not finish", "open; kill; lock zeros"),
    (
        "lives",
        "three lives of a writer, each with a slot",
        "open; append 1x10; close; open; append 1x20; close; open; append 1x30; close",
    ),
    ("whole", "a whole prepared segment", "open; append 2x100; batch 2x40; close"),
    ("whole-full", "a segment filled to its end", "open; append 1x10; fill 0; append 1x10; close"),
];

/// Runs a script of commands that `;` divides.
fn play(about: &str, commands: &str, whole: bool) -> Directory {
    let mut script = Script::new();
    for command in commands.split(';') {
        let words: Vec<&str> = command.split_whitespace().collect();
        script.run(&words).unwrap_or_else(|e| panic!("{command}: {e}"));
    }
    let mut directory = directory_of(&script.end(), about.to_owned());
    let tail = directory.files.iter_mut().rfind(|(name, _)| name.ends_with(".seg"));
    if let Some((_, file)) = tail.filter(|_| !whole) {
        let used = file.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let len = used.max(12_288).next_multiple_of(512);
        if file.len() > len {
            file.truncate(len);
        }
    }
    directory
}

/// Logs whose numbers no script reaches.
fn forged() -> Vec<(&'static str, Directory)> {
    let of = |segments: Vec<Forge>, story: &str| Directory {
        files: segments.into_iter().map(Forge::done).collect(),
        lock: Some(lock_with(UUID)),
        story: story.to_owned(),
    };
    let mut large = Forge::new(u64::MAX - 7, u64::MAX - 9, (1 << 48) - 40, u64::MAX - 9);
    large.frame(1, b"near", false);
    large.frame(2, b"the end", true);
    large.batch(u32::MAX, &[b"of all numbers"]);
    large.fill();
    let mut lags = Forge::new(9, 1 << 40, 5_000, 1 << 40);
    lags.batch(1, &[b"one"]);
    lags.batch(u32::MAX, &[b"states nothing"]);
    lags.batch(u32::MAX - 1, &[b"states the most"]);
    lags.file.extend([0; 40]);
    vec![
        ("forged-large", of(vec![large], "numbers at the end of their range")),
        ("forged-lags", of(vec![lags], "the least and the greatest lag")),
    ]
}

/// Makes the files that are not there.
fn make() {
    let scripts = LOGS
        .iter()
        .map(|(name, about, commands)| (*name, play(about, commands, name.starts_with("whole"))));
    fs::create_dir_all(data("golden")).unwrap();
    for (name, directory) in scripts.chain(forged()) {
        let path = data("golden").join(format!("{name}.txt"));
        if !path.exists() {
            let verdict = judged(&directory);
            fs::write(path, Image { directory, verdict }.print()).unwrap();
        }
    }
}

#[test]
fn every_golden_log_reads_as_it_was_written() {
    if makes_files() {
        make();
    }
    let logs = images("golden");
    assert!(logs.len() >= 20 && logs.len() == LOGS.len() + forged().len(), "{}", logs.len());
    for (name, image) in logs {
        assert_eq!(judged(&image.directory), image.verdict, "{name}");
        differential::check(&image.directory, &name);
    }
}
