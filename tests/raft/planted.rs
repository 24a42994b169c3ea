//! Each planted bug of raft's log must break what the model expects. Built by `scripts/proof-raft`.

use std::panic::catch_unwind;

use oncelog::planted::{Bug, plant};

use crate::figures::figure;
use crate::model;

#[test]
fn every_planted_bug_is_caught() {
    let mut survivors = Vec::new();
    for bug in Bug::RAFT {
        plant(bug);
        let caught = catch_unwind(|| model::play_many(600, 0)).is_err();
        plant(Bug::None);
        println!("{} {bug:?}", if caught { "caught" } else { "SURVIVED" });
        if !caught {
            survivors.push(bug);
        }
    }
    figure(12, "planted bugs of raft caught", Bug::RAFT.len() - survivors.len());
    figure(12, "planted bugs of raft that survive", survivors.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}
