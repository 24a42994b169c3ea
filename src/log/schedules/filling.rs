//! The thread that fills, beside who appends, rolls and closes.

use super::*;
use crate::sync::explored;

fn filled(machine: &Machine) -> Play {
    Play::with(machine, |options| options.background(false).fill(Fill::Zero))
}

/// What the thread that fills does, until there is nothing for it or no log any more.
fn fill(play: &Play) {
    while play.log.fill_step().unwrap_or(false) {}
}

#[test]
fn frames_and_zeros_never_meet() {
    explored("fill", || {
        let play = filled(&Machine::new());
        let other = play.beside(fill);
        play.append(&[1; 6_000]);
        play.append(&[2; 6_000]);
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_roll_takes_the_spare_or_makes_one() {
    let full = made(|play| play.append(&[1; 60_000]));
    explored("fill and roll", move || {
        let play = filled(&full);
        // Opening alone fills nothing.
        play.append(b"small");
        let other = play.beside(fill);
        play.append(&[2; 8_000]);
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_failed_sync_of_who_fills_is_a_failed_sync_of_the_log() {
    explored("failed fill", || {
        let play = filled(&Machine::new());
        play.append(b"a");
        play.fail(CallKind::Sync, 1);
        let other = play.beside(fill);
        check_outcome(&play, play.log.append(&[1; 6_000]));
        other.join().unwrap();
        assert_eq!(play.io.mem.struck(), 1);
        assert_eq!(play.log.append(b"c").unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(play.log.close().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}

#[test]
fn a_close_waits_for_who_fills() {
    explored("fill and close", || {
        let play = filled(&Machine::new());
        play.append(b"a");
        let other = play.beside(fill);
        play.log.clone().close().unwrap();
        let names = crate::io::Io::list(&play.io.mem, std::path::Path::new(DIR)).unwrap();
        let is_spare = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with("spare");
        assert!(names.iter().all(|entry| !is_spare(&entry.name)), "{names:?}");
        other.join().unwrap();
    });
}
