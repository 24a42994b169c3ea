//! What the library tells of itself has the same names in the sources and in `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, is_for_tests, none, read, short, without_tests};

/// The rows of the document's tables that begin with a name in backquotes, cell by cell.
fn rows() -> Vec<Vec<String>> {
    let text = read("docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// Sources of the library, without tests.
fn sources() -> Vec<(String, String)> {
    let paths = files("src", &[".rs"]).into_iter();
    let library = paths.filter(|path| !short(path).starts_with("src/bin/") && !is_for_tests(path));
    library.map(|path| (short(&path), without_tests(&read(&path)).to_owned())).collect()
}

#[test]
fn metrics_have_the_same_names_in_the_sources_and_in_their_table() {
    let mut named = BTreeSet::new();
    for (_, source) in sources() {
        let after = source.split("\"oncelog_").skip(1);
        named.extend(after.filter_map(|rest| Some(format!("oncelog_{}", rest.split_once('"')?.0))));
    }
    let (mut documented, mut wrong) = (BTreeSet::new(), Vec::new());
    for row in rows().iter().filter(|row| row[0].starts_with("`oncelog_")) {
        let name = row[0].trim_matches('`');
        if row.len() != 6 || !documented.insert(name.to_owned()) {
            wrong.push(format!("{name}: expected one row of six cells"));
        }
        let of_kind = match row[1].as_str() {
            "counter" => name.ends_with("_total"),
            kind => ["gauge", "histogram"].contains(&kind) && !name.ends_with("_total"),
        };
        if !of_kind {
            wrong.push(format!("{name}: {} is not what its name says", row[1]));
        }
        let units = ["seconds", "microseconds", "bytes"];
        let unit = units.into_iter().find(|unit| name.contains(&format!("_{unit}")));
        if unit.unwrap_or("count") != row[2] {
            wrong.push(format!("{name}: {} is not the unit that its name says", row[2]));
        }
        for place in row[5].split('`').skip(1).step_by(2) {
            if !std::path::Path::new(super::ROOT).join(place).is_file() {
                wrong.push(format!("{name}: there is no {place}"));
            }
        }
    }
    none(&wrong);
    assert!(named.len() > 40, "{named:?}");
    assert_eq!(named, documented, "the sources, and docs/metrics.md");
}

/// What of a file sets each metric of the broadcaster.
const SETTERS: [(&str, &str); 36] = [
    ("broadcasts_accepted_total", "counts.accepted("),
    ("broadcasts_ended_total", "counts.ended("),
    ("broadcasts_parked_total", "counts.parked("),
    ("callbacks_total", "counts.called("),
    ("acks_ignored_total", "counts.acks_ignored."),
    ("copies_total", "counts.copies_appended."),
    ("key_lookups_total", "counts.key_hits."),
    ("submit_errors_total", "counts.error("),
    ("keys_dropped_total", "self.expired += "),
    ("lock_waits_total", "counts.waited_for_locks("),
    ("lock_wait_timeouts_total", "counts.waited_for_locks("),
    ("lock_wait_refusals_total", "counts.waited_for_locks("),
    ("lock_wait_microseconds_total", "counts.waited_for_locks("),
    ("lock_wait_longest_seconds", "counts.waited_for_locks("),
    ("checkpoints_total", "counts.checkpointed("),
    ("checkpoint_failing", "counts.checkpoint_failed("),
    ("checkpoint_bytes", "counts.checkpointed("),
    ("checkpoint_behind_bytes", "core.unchecked_bytes"),
    ("broadcasts", "of_type.in_flight += "),
    ("callers_waiting", "callers_waiting: "),
    ("keys", "fn live_count("),
    ("keys_max", "window_count_max"),
    ("keys_beyond_max", "beyond_count: "),
    ("window_bytes", "fn key_bytes("),
    ("window_bytes_max", "fn key_bytes("),
    ("window_effective_seconds", "fn effective_ms("),
    ("window_lifetime_seconds", "window_lifetime"),
    ("lock_waiters", "core.lock_waiters.len()"),
    ("replay_progress_ratio", "oncelog_replay_progress_ratio"),
    ("replay_records", "counts.replayed("),
    ("replay_seconds", "counts.replayed("),
    ("jobs", "job_counts("),
    ("job_rows", "job_counts("),
    ("jobs_stopped", "stats.jobs_stopped"),
    ("clock_offset_seconds", "fn offset_ms("),
    ("clock_held", "fn clock_held("),
];

#[test]
fn metrics_of_the_broadcaster_are_set_where_their_table_says() {
    let text = read("docs/metrics.md");
    let of_it = text.split("\n## ").find(|part| part.starts_with("The broadcaster")).unwrap();
    let mut wrong = Vec::new();
    let named = of_it.lines().filter_map(|line| line.strip_prefix("| `oncelog_"));
    for (name, row) in named.filter_map(|row| row.split_once('`')) {
        let Some((_, setter)) = SETTERS.iter().find(|(metric, _)| *metric == name) else {
            wrong.push(format!("{name}: what sets it is not known here"));
            continue;
        };
        let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        for place in cell.split('`').skip(1).step_by(2) {
            if !without_tests(&read(place)).contains(setter) {
                wrong.push(format!("{name}: no {setter} in {place}"));
            }
        }
    }
    none(&wrong);
}

/// The arguments of a macro that begins here, up to its closing parenthesis.
fn arguments(code: &str) -> &str {
    let (mut depth, mut in_text) = (1, false);
    for (at, c) in code.char_indices() {
        match c {
            '"' => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &code[..at];
        }
    }
    code
}

/// Name, kind and fields of each span and event in a source.
fn told(source: &str) -> Vec<(String, String)> {
    let calls = source.split("tracing::").skip(1).filter_map(|rest| {
        let (kind, code) = rest.split_once("!(")?;
        let levels = ["error", "warn", "info", "debug", "trace"];
        let level = kind.strip_suffix("_span").unwrap_or(kind);
        if !levels.contains(&level) {
            return None;
        }
        let arguments = arguments(code);
        let (before, rest) = arguments.split_once('"')?;
        let (name, after) = rest.split_once('"')?;
        let fields = [before, after].into_iter().flat_map(|part| part.split(','));
        let fields = fields.filter_map(|field| {
            let field = field.split('=').next()?.trim().trim_start_matches(['%', '?']);
            (!field.is_empty()).then(|| format!("`{field}`"))
        });
        let fields: Vec<String> = fields.collect();
        let fields = if fields.is_empty() { "-".to_owned() } else { fields.join(", ") };
        let kind = if kind == level { kind.to_owned() } else { format!("{level} span") };
        Some((format!("`{name}`"), format!("{kind} | {fields}")))
    });
    calls.collect()
}

#[test]
fn spans_and_events_have_the_same_names_and_fields_in_the_sources_and_in_their_table() {
    let mut wrong = Vec::new();
    let mut in_sources: BTreeMap<String, String> = BTreeMap::new();
    for (path, source) in sources() {
        for (name, rest) in told(&source) {
            let known = in_sources.entry(name.clone()).or_insert_with(|| rest.clone());
            if *known != rest {
                wrong.push(format!("{path}: {name} is told as {rest}, elsewhere as {known}"));
            }
        }
    }
    let mut documented = BTreeMap::new();
    for row in rows().into_iter().filter(|row| row.len() == 4) {
        documented.insert(row[0].clone(), format!("{} | {}", row[1], row[2]));
    }
    for (name, rest) in &in_sources {
        if documented.get(name) != Some(rest) {
            wrong.push(format!("docs/metrics.md has no row | {name} | {rest} | when |"));
        }
    }
    let only = documented.keys().filter(|name| !in_sources.contains_key(*name));
    wrong.extend(only.map(|name| format!("{name} is told nowhere")));
    none(&wrong);
    assert!(in_sources.len() > 40, "{in_sources:?}");
}
