//! How much is run, and the table of what it took.

use std::time::{Duration, Instant};

/// A workload and its name.
pub(crate) type Workload = (&'static str, fn(&Scale, &mut Table));

/// Runs the workloads that the command line names, or all of them, and prints their table.
pub(crate) fn play(workloads: &[Workload]) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let scale = Scale::new(args.iter().any(|arg| arg == "--test"));
    let named: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let mut table = Table::new();
    for (name, run) in workloads {
        if named.is_empty() || named.iter().any(|wanted| wanted == name) {
            run(&scale, &mut table);
        }
    }
    table.print();
}

/// How much a run does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    smoke: bool,
}

impl Scale {
    pub(crate) fn new(smoke: bool) -> Self {
        Self { smoke }
    }

    /// Rounds of each side of a row.
    pub(crate) fn rounds(&self) -> usize {
        if self.smoke { 1 } else { 5 }
    }

    /// A count, or a small one.
    pub(crate) fn count(&self, full: usize) -> usize {
        if self.smoke { (full / 1000).max(4) } else { full }
    }

    /// How long a round of many threads lasts.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_millis(if self.smoke { 20 } else { 700 })
    }
}

/// Rows of results.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A row: what was measured, the raw limit and the log in one unit, and their ratio.
    pub(crate) fn row(&mut self, name: impl Into<String>, unit: &str, raw: f64, log: f64) {
        let row = [name.into(), unit.to_owned(), figure(raw), figure(log), ratio(raw, log)];
        println!("{}", row.join("  "));
        self.rows.push(row);
    }

    /// A row that has no raw limit.
    pub(crate) fn alone(&mut self, name: impl Into<String>, unit: &str, log: f64) {
        let row = [name.into(), unit.to_owned(), "-".to_owned(), figure(log), "-".to_owned()];
        println!("{}", row.join("  "));
        self.rows.push(row);
    }

    /// Prints the table as Markdown.
    pub(crate) fn print(&self) {
        println!("\n| workload | unit | raw | log | log / raw |\n| --- | --- | --- | --- | --- |");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
    }
}

fn figure(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn ratio(raw: f64, log: f64) -> String {
    format!("{:.2}", log / raw)
}

/// Seconds that a call takes.
pub(crate) fn seconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

/// The value at a share of the sorted values, 0.5 for the median.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index from 0 to last"
    )]
    let at = (last as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// Counts as figures.
pub(crate) fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a count of a bench"))
}
