//! Bugs that only schedules show must be shown by them.

use std::process::{Command, Stdio};

use crate::planted::{Bug, plant};

/// Names the bug to a process of its own: a schedule that goes wrong may end a process.
const VARIABLE: &str = "ONCELOG_PLANTED";

/// Each bug, and a test that must fail with it.
const BUGS: &[(Bug, &str)] = &[
    #[cfg(loom)]
    (Bug::AckBeforeSync, "whoever_leads_every_append_is_durable_when_it_returns"),
    #[cfg(loom)]
    (Bug::SyncCoversLater, "whoever_leads_every_append_is_durable_when_it_returns"),
    #[cfg(loom)]
    (Bug::OneWoken, "all_whom_one_sync_covers_are_woken"),
    #[cfg(loom)]
    (Bug::ReservationLeaked, "a_refusal_hands_the_key_to_who_waits_for_it"),
    #[cfg(loom)]
    (Bug::LockLeaked, "a_refusal_behind_the_locks_hands_them_on"),
    #[cfg(loom)]
    (Bug::WaitersAllGo, "when_a_reservation_falls_exactly_one_waiter_goes_on"),
    #[cfg(loom)]
    (Bug::ToldBeforeSync, "nobody_is_told_of_an_end_that_a_power_loss_takes_back"),
    #[cfg(loom)]
    (Bug::CloseLeavesCallers, "a_close_tells_everybody_who_waits_what_is_so"),
    #[cfg(loom)]
    (Bug::SnapshotLate, "a_checkpoint_beside_decisions_is_the_state_at_its_begin"),
    #[cfg(loom)]
    (Bug::SweptAsSeen, "a_retry_beside_the_sweep_of_its_key_is_new_work_once_and_stays_known"),
    #[cfg(loom)]
    (Bug::EndUntold, "who_waits_for_an_effect_is_woken_by_the_threads_that_bring_it_about"),
    #[cfg(loom)]
    (Bug::CloseUnjoined, "a_close_waits_for_the_callback_that_runs_and_loses_no_end"),
    #[cfg(shuttle)]
    (Bug::EndUntold, "a_whole_broadcaster_keeps_its_promises"),
    #[cfg(shuttle)]
    (Bug::WorkUntold, "a_whole_broadcaster_keeps_its_promises"),
    #[cfg(shuttle)]
    (Bug::CloseUnjoined, "a_whole_broadcaster_keeps_its_promises"),
    #[cfg(shuttle)]
    (Bug::AckBeforeSync, "a_whole_log_keeps_its_promises"),
    #[cfg(shuttle)]
    (Bug::SyncCoversLater, "a_whole_log_keeps_its_promises"),
    #[cfg(shuttle)]
    (Bug::OneWoken, "a_whole_log_keeps_its_promises"),
];

/// Plants the bug that this process was started with.
#[expect(clippy::disallowed_methods, reason = "a test hands a bug to itself")]
pub(super) fn plant_ordered() {
    let Ok(name) = std::env::var(VARIABLE) else { return };
    let named = BUGS.iter().find(|(bug, _)| format!("{bug:?}") == name);
    plant(named.map_or(Bug::None, |(bug, _)| *bug));
}

#[test]
fn every_bug_of_schedules_is_caught() {
    let program = std::env::current_exe().unwrap();
    let run = |bug: Bug, test: &str| {
        let mut command = Command::new(&program);
        command.arg(test).env(VARIABLE, format!("{bug:?}"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
    };
    // That the tests pass without a bug is seen where they run by themselves.
    for (bug, test) in BUGS {
        assert!(!run(*bug, test).success(), "{bug:?} survived {test}");
        println!("caught {bug:?} by {test}");
    }
}
