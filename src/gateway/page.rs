//! The page for people: jobs, the window, channels, and what is known of a key, at a glance.
//!
//! It is whole when it is sent: no script, nothing that is loaded, and it shows itself anew by what
//! browsers have always done. Whatever a client named is escaped.

use std::fmt::Write as _;

use serde_json::Value;

use super::answer::{Answer, time};
use super::broadcasts::pair;
use super::desk::{Asked, Desk};
use super::history::{History, Sample};
use super::imports::Filter;
use super::keys::{self, Place};
use super::refusal::Refusal;
use crate::broadcast::{BroadcastStats, Broadcaster, KeyInfo, Noop};

/// Jobs that are shown.
const JOBS_MAX: usize = 50;

const STYLE: &str = include_str!("page.css");

/// What a browser may do with it: show it, and send its form.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
    base-uri 'none'; frame-ancestors 'none'";

/// `GET /`.
pub(crate) fn show(desk: &Desk, asked: &Asked, history: &History) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let stats = broadcaster.stats();
    let mut page = Page::default();
    // A search stays as it is until somebody asks again.
    let (key, scope) = (asked.queried("key")?, asked.queried("scope")?);
    let refresh = if key.is_none() { "<meta http-equiv=\"refresh\" content=\"10\">" } else { "" };
    page.raw(format_args!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>oncelog</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">{refresh}\
         <style>{STYLE}</style></head><body>"
    ));
    let now = time(broadcaster.read(|_, now_ms| now_ms));
    page.raw(format_args!(
        "<header><h1>oncelog</h1><p>as of <time>{now}</time></p><p class=\"as\">as {}</p></header>",
        Escaped(&asked.principal)
    ));
    page.alarms(&stats);
    page.window(&stats, &history.with_now(&broadcaster));
    page.jobs(desk, &broadcaster, asked);
    page.key(&broadcaster, asked, (key.as_deref(), scope.as_deref()));
    page.channels(&broadcaster, &stats);
    page.raw(format_args!("</body></html>"));
    Ok(Answer::of(200, "text/html; charset=utf-8", page.0)
        .header("content-security-policy", POLICY)
        .header("referrer-policy", "no-referrer"))
}

/// A text as it stands in HTML.
pub(crate) fn escaped(text: &str) -> String {
    Escaped(text).to_string()
}

/// Text that a browser shows as it is.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A number with its thousands apart.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted(number: usize) -> String {
    count(u64::try_from(number).unwrap_or(u64::MAX))
}

/// A duration in its largest unit.
fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{} s", ms / 1_000),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        _ => match ms % 3_600_000 / 360_000 {
            0 => format!("{} h", ms / 3_600_000),
            tenths => format!("{}.{tenths} h", ms / 3_600_000),
        },
    }
}

/// The page as far as it is written.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    fn raw(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.0.write_fmt(text).unwrap_or_default();
    }

    fn alarms(&mut self, stats: &BroadcastStats) {
        for (name, _) in stats.logs.iter().filter(|(_, log)| log.poisoned) {
            let name = Escaped(name);
            self.raw(format_args!(
                "<p class=\"alarm\"><b>The log {name} is poisoned.</b> A write or a sync failed: \
                 it takes nothing until it is opened again.</p>"
            ));
        }
        let parked: u64 = stats.types.values().map(|of| of.parked).sum();
        if parked > 0 {
            self.raw(format_args!(
                "<p class=\"alarm\"><b>{} parked.</b> Work waits for a person: see \
                 <code>oncelog stats</code> and <code>oncelog tasks</code>.</p>",
                count(parked)
            ));
        }
        if stats.window.effective_ms < stats.window.lifetime_ms {
            self.raw(format_args!(
                "<p class=\"alarm\"><b>Keys are evicted before their time.</b> A retry that comes \
                 later than {} is new work.</p>",
                span(stats.window.effective_ms)
            ));
        }
        if stats.clock_held {
            self.raw(format_args!(
                "<p class=\"alarm\"><b>The clock is not believed.</b> Nothing expires until it \
                 is.</p>"
            ));
        }
    }

    fn fact(&mut self, value: &str, what: &str) {
        self.raw(format_args!("<div class=\"fact\"><b>{value}</b><span>{what}</span></div>"));
    }

    fn window(&mut self, stats: &BroadcastStats, samples: &[Sample]) {
        let window = &stats.window;
        self.raw(format_args!("<h2>Window</h2><div class=\"facts\">"));
        let of = format!("live keys of {}", count(window.count_max));
        self.fact(&counted(window.live_count), &of);
        self.fact(&span(window.effective_ms), "a key is known, effectively");
        self.fact(&span(window.lifetime_ms), "a key is known, by the policy");
        self.fact(&count(window.expired_count), "expired");
        self.fact(&count(window.evicted_count), "evicted");
        let (hits, conflicts) = (stats.keys.hits, stats.keys.conflicts);
        self.fact(&count(hits), "answers to retries");
        self.fact(&count(conflicts), "conflicts");
        self.raw(format_args!("</div>"));
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return };
        let past = match last.at_ms.saturating_sub(first.at_ms) {
            // The service began just now.
            0..1_000 => "Over time".to_owned(),
            past => format!("Over the last {}", span(past)),
        };
        self.raw(format_args!("<h2>{past}</h2><div class=\"charts\">"));
        let live: Vec<u64> = samples.iter().map(|sample| sample.live).collect();
        let effective: Vec<u64> = samples.iter().map(|sample| sample.effective_ms).collect();
        self.chart("live keys", &[("live", &live)], &|most| count(most));
        self.chart("effective window", &[("live", &effective)], &span);
        let gained = |of: fn(&Sample) -> u64| -> Vec<u64> {
            let pairs = samples.iter().zip(samples.iter().skip(1));
            pairs.map(|(one, next)| of(next).saturating_sub(of(one))).collect()
        };
        let (expired, evicted) = (gained(|of| of.expired), gained(|of| of.evicted));
        let lines = [("expired", &expired[..]), ("evicted", &evicted[..])];
        self.chart("dropped, by cause", &lines, &|most| count(most));
        self.raw(format_args!("</div>"));
    }

    /// Lines over time, from zero to their greatest value.
    fn chart(&mut self, what: &str, lines: &[(&str, &[u64])], told: &dyn Fn(u64) -> String) {
        let most = lines.iter().flat_map(|(_, values)| values.iter()).max().copied().unwrap_or(0);
        self.raw(format_args!("<figure><figcaption>{what}, up to {}", told(most)));
        for (name, _) in lines.iter().filter(|_| lines.len() > 1) {
            self.raw(format_args!(" <span class=\"legend\"><b class=\"{name}\">{name}</b></span>"));
        }
        self.raw(format_args!(
            "</figcaption><svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{what}\">"
        ));
        for (name, values) in lines.iter().filter(|(_, values)| !values.is_empty()) {
            self.raw(format_args!("<path class=\"{name}\" d=\"M"));
            let steps = values.len().saturating_sub(1).max(1);
            for (at, value) in values.iter().enumerate() {
                let x = at.saturating_mul(1000) / steps;
                // Two units of room for the width of the line.
                let height = u128::from(*value) * 96 / u128::from(most.max(1));
                let y = 98_u128.saturating_sub(height);
                self.raw(format_args!(" {x},{y}"));
            }
            if values.len() == 1 {
                let height = u128::from(values.first().copied().unwrap_or(0)) * 96;
                let y = 98_u128.saturating_sub(height / u128::from(most.max(1)));
                self.raw(format_args!(" 1000,{y}"));
            }
            self.raw(format_args!("\"/>"));
        }
        self.raw(format_args!("</svg></figure>"));
    }

    fn jobs(&mut self, desk: &Desk, broadcaster: &Broadcaster, asked: &Asked) {
        let filter = Filter::new(broadcaster, &asked.principal, None, None);
        let (jobs, next) = filter.page(desk, broadcaster, None, (0, JOBS_MAX));
        self.raw(format_args!("<h2>Jobs</h2>"));
        if jobs.is_empty() {
            self.raw(format_args!("<p class=\"none\">None yet.</p>"));
            return;
        }
        self.raw(format_args!(
            "<div class=\"wide\"><table><thead><tr><th>job</th><th>collection</th><th>state</th>\
             <th>progress</th><th class=\"n\">rows</th><th class=\"n\">files</th><th>asked for</th>\
             <th class=\"n\">took</th><th>why</th></tr></thead><tbody>"
        ));
        for told in &jobs {
            let (job, state) = (&told.job, told.job.phase.name());
            let rows = match job.rows_total {
                Some(total) if total != job.rows => {
                    format!("{} of {}", count(job.rows), count(total))
                }
                _ => count(job.rows),
            };
            let took = job.over_at_ms.map(|at_ms| span(at_ms.saturating_sub(job.made_at_ms)));
            let why = job.stopped.as_ref().unwrap_or(&job.reason);
            self.raw(format_args!(
                "<tr class=\"{state}\"><td>{id}</td><td>{collection}</td>\
                 <td class=\"state\">{state}</td>\
                 <td class=\"t\"><progress max=\"100\" value=\"{percent}\">{percent}%</progress> {percent}%</td>\
                 <td class=\"n\">{rows}</td><td class=\"n\">{files}</td><td class=\"t\">{made}</td>\
                 <td class=\"n\">{took}</td><td class=\"why\">{why}</td></tr>",
                id = job.id,
                collection = Escaped(&job.collection),
                percent = job.progress,
                files = counted(job.file_count),
                made = time(job.made_at_ms),
                took = took.unwrap_or_default(),
                why = Escaped(why),
            ));
        }
        self.raw(format_args!("</tbody></table></div>"));
        if next.is_some() {
            self.raw(format_args!("<small>The newest {JOBS_MAX}; /v1/jobs has all.</small>"));
        }
    }

    fn key(
        &mut self,
        broadcaster: &Broadcaster,
        asked: &Asked,
        (key, scope): (Option<&str>, Option<&str>),
    ) {
        self.raw(format_args!(
            "<h2>Look a key up</h2><form method=\"get\" action=\"/\"><label>\
             <input name=\"key\" value=\"{}\" placeholder=\"key\" aria-label=\"key\" required>\
             </label><label><input name=\"scope\" value=\"{}\" aria-label=\"scope\" \
             placeholder=\"DOMAIN:ID, all collections without it\"></label>\
             <button>Look up</button></form>",
            Escaped(key.unwrap_or_default()),
            Escaped(scope.unwrap_or_default()),
        ));
        let Some(key) = key else { return };
        let of_scope = |(domain, identity): (&str, &str)| {
            Place::Scope(Noop::NAME.to_owned(), domain.to_owned(), identity.to_owned())
        };
        let place = scope.and_then(pair).map_or(Place::Any, of_scope);
        let found = keys::look(broadcaster, &asked.principal, key, &place);
        self.raw(format_args!(
            "<div class=\"wide\"><table><thead><tr><th>state</th><th>type</th><th>scope</th>\
             <th>broadcast</th><th>accepted</th><th>done</th><th>expires</th><th>why</th></tr>\
             </thead><tbody>"
        ));
        for info in &found {
            self.key_row(info);
        }
        self.raw(format_args!("</tbody></table></div>"));
    }

    fn key_row(&mut self, info: &KeyInfo) {
        let shown = keys::object(info);
        let text = |name: &str| shown.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
        let seen = if shown.get("state") == Some(&Value::from("unknown")) && info.probably_seen {
            ", but probably seen"
        } else {
            ""
        };
        self.raw(format_args!("<tr><td><b>{}</b>{seen}</td>", text("state")));
        for name in
            ["type", "scope", "broadcast_id", "accepted_at", "done_at", "expires_at", "cause"]
        {
            self.raw(format_args!("<td>{}</td>", Escaped(&text(name))));
        }
        self.raw(format_args!("</tr>"));
    }

    fn channels(&mut self, broadcaster: &Broadcaster, stats: &BroadcastStats) {
        self.raw(format_args!(
            "<h2>Channels and segments</h2><div class=\"wide\"><table><thead><tr><th>log</th>\
             <th>vchannels</th><th class=\"n\">segments</th><th class=\"n\">bytes</th>\
             <th class=\"n\">records since the start</th><th class=\"n\">syncs</th>\
             <th>what keeps the oldest</th></tr></thead><tbody>"
        ));
        for (name, log) in &stats.logs {
            let pchannel = name.strip_prefix("channels/");
            let of_log: Vec<String> = broadcaster.read(|state, _| {
                let all = state.vchannels().filter(|(_, of)| Some(*of) == pchannel);
                all.map(|(name, _)| name.to_owned()).collect()
            });
            let holders = match pchannel {
                Some(pchannel) => broadcaster.why_not_trimmed(pchannel).unwrap_or_default(),
                None => broadcaster.why_control_is_not_trimmed(),
            };
            let holder = holders.first().map(ToString::to_string).unwrap_or_default();
            self.raw(format_args!(
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
                Escaped(name),
                Escaped(&of_log.join(", ")),
                count(log.segment_count),
                count(log.segment_bytes),
                count(log.record_count),
                count(log.syncs),
                Escaped(&holder),
            ));
        }
        self.raw(format_args!("</tbody></table></div>"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_named_is_shown_and_never_obeyed() {
        let shown = Escaped("<b a='1' c=\"2\">&").to_string();
        assert_eq!(shown, "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
    }

    #[test]
    fn numbers_and_durations_are_easy_to_read() {
        assert_eq!(
            [count(0), count(999), count(1_000), count(1_234_567)].join(" "),
            "0 999 1,000 1,234,567"
        );
        assert_eq!(
            [span(5), span(61_000), span(5_400_000), span(86_400_000)].join(" "),
            "5 ms 1 min 1.5 h 24 h"
        );
    }

    #[test]
    fn a_chart_of_one_value_of_none_and_of_the_largest_is_drawn() {
        let mut page = Page::default();
        for values in [&[][..], &[0], &[7], &[u64::MAX, 0, u64::MAX]] {
            page.chart("x", &[("live", values)], &count);
        }
        assert_eq!(page.0.matches("<path").count(), 3);
        assert!(page.0.contains("M 0,2 500,98 1000,2"), "{}", page.0);
    }
}
