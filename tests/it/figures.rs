//! What the proof measures: each figure is one line on standard output, which `scripts/proof`
//! collects, and the size of a run is chosen by `ONCELOG_PROOF`.

use std::fmt::Display;

/// States a figure of a row of the proof.
#[expect(clippy::print_stdout, reason = "the one place that prints figures")]
pub(crate) fn figure(row: u32, name: &str, value: impl Display) {
    println!("figure {row} {name}: {value}");
}

/// The part of a size of a release that `ONCELOG_PROOF_PERCENT` asks for; all of it by default.
pub(crate) fn of_release<N: TryFrom<u64>>(count: u64) -> N {
    let percent = std::env::var("ONCELOG_PROOF_PERCENT").map_or(100, |percent| {
        percent.parse().unwrap_or_else(|e| panic!("ONCELOG_PROOF_PERCENT: {percent}: {e}"))
    });
    let part: u64 = count * percent / 100;
    N::try_from(part).unwrap_or_else(|_| panic!("{part} is too many"))
}

/// True for the sizes of a release, false for those of every change.
pub(crate) fn is_release() -> bool {
    match std::env::var("ONCELOG_PROOF").as_deref() {
        Ok("release") => true,
        Ok("change") | Err(_) => false,
        Ok(other) => panic!("ONCELOG_PROOF: expected change or release, found {other}"),
    }
}
