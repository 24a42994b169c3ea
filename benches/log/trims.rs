//! Retention: dropping half of a log, and the append behind it.

use crate::raw::{write_and_sync, written_file};
use crate::reads::fill;
use crate::table::{Scale, Table, float, median, seconds};
use crate::{MIDDLE, SMALL, SMALL_FRAME, open, record};

/// W7: trim the first half of 256 MiB, then one durable append. The raw limits are three syncs, and
/// one write and sync.
pub(crate) fn trim(scale: &Scale, table: &mut Table) {
    let count = scale.count(1 << 18);
    let (mut lone, mut trims, mut appends) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds() {
        let dir = tempfile::tempdir().unwrap();
        let frame = record(usize::try_from(SMALL_FRAME).unwrap(), 1);
        let file = written_file(dir.path(), 1 << 20);
        lone.push(median(write_and_sync(&file, 0, &frame, scale.count(300))));
        let opened = open(dir.path());
        fill(&opened, MIDDLE, count);
        let half = oncelog::Lsn::new(u64::try_from(count / 2).unwrap()).unwrap();
        trims.push(seconds(|| opened.trim(half).unwrap()));
        let bytes = record(SMALL, 1);
        appends.push(seconds(|| assert!(opened.append(&bytes).unwrap() > half)));
        opened.close().unwrap();
    }
    let lone = median(lone) * 1e3;
    table.row("W7 trim of the first half", "ms", lone * float(3), median(trims) * 1e3);
    table.row("W7 the next durable append", "ms", lone, median(appends) * 1e3);
}
