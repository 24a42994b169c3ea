//! Which parts of what was not synced survive a power loss: all ways when they are few, else a
//! seeded choice that begins with the telling ones.

use std::collections::BTreeSet;

use super::machine::Unsynced;
use crate::io::fault::Dice;

/// Up to `limit` different ways to survive, each with one version for every element of `unsynced`:
/// every way there is, when there are no more than that.
#[must_use]
pub fn survivors(unsynced: &[Unsynced], limit: usize, dice: &mut Dice) -> Vec<Vec<usize>> {
    let ways = unsynced
        .iter()
        .try_fold(1_usize, |ways, u| ways.checked_mul(u.version_count() + 1))
        .filter(|ways| *ways <= limit);
    if ways.is_some() { every(unsynced) } else { chosen(unsynced, limit, dice) }
}

fn every(unsynced: &[Unsynced]) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new()];
    for u in unsynced {
        found = found
            .into_iter()
            .flat_map(|left: Vec<usize>| {
                (0..=u.version_count()).map(move |version| {
                    let mut left = left.clone();
                    left.push(version);
                    left
                })
            })
            .collect();
    }
    found
}

fn chosen(unsynced: &[Unsynced], limit: usize, dice: &mut Dice) -> Vec<Vec<usize>> {
    let each = |f: &mut dyn FnMut(usize, &Unsynced) -> usize| -> Vec<usize> {
        unsynced.iter().enumerate().map(|(k, u)| f(k, u)).collect()
    };
    let mut found = BTreeSet::new();
    let mut add = |way| {
        if found.len() < limit {
            found.insert(way);
        }
    };
    add(each(&mut |_, _| 0));
    add(each(&mut |_, u| u.version_count()));
    add(each(&mut |_, u| if u.is_entry() { u.version_count() } else { 0 }));
    add(each(&mut |_, u| if u.is_entry() { 0 } else { u.version_count() }));
    // Repeats cost a round and add nothing; there are more ways than `limit`.
    for round in 0..limit * 2 {
        let one = dice.index(unsynced.len());
        let versions = unsynced.get(one).map_or(0, Unsynced::version_count);
        add(match round % 6 {
            // The order of writing is kept up to some step.
            0 => {
                let step = unsynced.get(one).map_or(0, |u| u.step(dice.index(versions)));
                each(&mut |_, u| u.version_at(step))
            }
            // One thing is missing, or one thing is all there is.
            1 => each(&mut |k, u| if k == one { 0 } else { u.version_count() }),
            2 => each(&mut |k, u| if k == one { u.version_count() } else { 0 }),
            3 => {
                let version = dice.index(versions + 1);
                each(&mut |k, u| if k == one { version } else { u.version_count() })
            }
            // Half, and most.
            4 => each(&mut |_, u| dice.index(u.version_count() + 1)),
            _ => each(&mut |_, u| match dice.below(8) {
                0 => dice.index(u.version_count() + 1),
                _ => u.version_count(),
            }),
        });
    }
    found.into_iter().collect()
}
