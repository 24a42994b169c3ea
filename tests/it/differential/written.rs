//! Directories that the library's own writer left: at a close, at a kill, at a power loss.

use std::fmt::Write as _;
use std::path::Path;

use oncelog::io::Io as _;
use oncelog::testing::{self, Machine, MemIo, survivors};
use oncelog::{Batch, CreateMode, Durability, ErrorKind, Log, RecordKind};

use super::library::{DIR, directory_of, options};
use super::shape::Dice;
use crate::image::Directory;

/// Writes a log in one to three lives, each of which ends as the seed says.
pub(crate) fn written(dice: &mut Dice) -> Directory {
    let io = MemIo::default();
    io.create_dir(Path::new(DIR)).unwrap();
    io.alter(Machine::sync_all);
    let mut machine = io.machine();
    let mut story = String::new();
    for _ in 0..=dice.below(3) {
        machine = live(machine, dice, &mut story);
    }
    directory_of(&machine, story)
}

/// One life of a writer.
fn live(machine: Machine, dice: &mut Dice, story: &mut String) -> Machine {
    let io = MemIo::new(machine);
    let opened = Log::open(DIR, &options(&io).create(CreateMode::IfMissing));
    let log = opened.unwrap_or_else(|error| panic!("{story}: {error}")).0;
    for _ in 0..1 + dice.below(12) {
        step(&log, &io, dice, story);
    }
    if dice.once_in(3) {
        story.push_str(" close;");
        log.close().unwrap();
        return io.machine();
    }
    let before = io.machine();
    io.kill();
    if dice.once_in(2) {
        story.push_str(" kill;");
        return before;
    }
    story.push_str(" power loss;");
    let unsynced = before.unsynced();
    let ways = survivors(&unsynced, 16, &mut testing::Dice::new(dice.word()));
    match ways.get(dice.index(ways.len())) {
        Some(way) => before.power_loss(&unsynced, way),
        None => before,
    }
}

fn step(log: &Log, io: &MemIo, dice: &mut Dice, story: &mut String) {
    let what = dice.below(11);
    match what {
        0 => {
            log.flush().unwrap();
            story.push_str(" flush;");
        }
        1 => {
            log.write_idle_slot().unwrap();
            story.push_str(" idle;");
        }
        2 => {
            let oldest = log.oldest_lsn().get();
            let end = log.next_lsn().get();
            let to = oldest + dice.below(end - oldest + 1);
            // What a cursor holds stays.
            let trimmed = log.trim(oncelog::Lsn::new(to).unwrap()).map_err(|e| e.kind());
            assert!(matches!(trimmed, Ok(()) | Err(ErrorKind::Pinned)), "{story}: {trimmed:?}");
            write!(story, " trim {to} {};", trimmed.is_ok()).unwrap();
        }
        8 => {
            let cursor = log.cursor(["a", "b"][dice.index(2)]).unwrap();
            let (from, end) = (cursor.lsn().unwrap().get(), log.next_lsn().get());
            let to = from + dice.below(end - from + 1);
            if dice.once_in(5) {
                write!(story, " remove {};", cursor.name()).unwrap();
                cursor.remove().unwrap();
            } else {
                cursor.advance(oncelog::Lsn::new(to).unwrap()).unwrap();
                write!(story, " cursor {} {to};", cursor.name()).unwrap();
            }
        }
        9 => {
            log.remove_step().unwrap();
            story.push_str(" step;");
        }
        _ => {
            let largest = if dice.once_in(3) { 20_000 } else { 200 };
            let payloads: Vec<_> = (0..=dice.below(3))
                .map(|_| match dice.below(4) {
                    0 => copy_of_frames(io, dice),
                    _ => {
                        let len = dice.index(largest);
                        dice.bytes(len)
                    }
                })
                .collect();
            let records: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            let batch = Batch { kind: RecordKind::RECORD, records: &records };
            let synced = what.is_multiple_of(2);
            let durability = if synced { Durability::Synced } else { Durability::Buffered };
            let lsns = log.append_batch(batch, durability).unwrap();
            write!(story, " {}..{} synced {synced};", lsns.first.get(), lsns.last.get()).unwrap();
        }
    }
}

/// Bytes of the log's own last segment, as a payload: frames in another place.
fn copy_of_frames(io: &MemIo, dice: &mut Dice) -> Vec<u8> {
    let directory = directory_of(&io.machine(), String::new());
    let newest = directory.files.iter().rfind(|(name, _)| name.ends_with(".seg"));
    let frames = newest.and_then(|(_, file)| file.get(12_288..)).unwrap_or_default();
    let from = dice.index(4) * 8;
    frames.iter().skip(from).take(dice.index(600)).copied().collect()
}
