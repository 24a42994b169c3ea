//! The routes of the service's own: jobs, broadcasts, keys, channels.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{Ask, CREATE, Place, committed};
use crate::cli::has_keys;

#[test]
fn a_job_is_asked_for_waited_for_and_looked_at() {
    let place = Place::new();
    place.rows("a.csv", 1000);
    let server = place.serve();
    let body = json!({
        "collection": "c", "files": ["a.csv"], "primary_key": "id", "vchannels": 4,
    });
    let asked = Ask::post("/v1/jobs", &body).header("Idempotency-Key", "k");
    let first = server.ask(&asked.clone().header("Prefer", "wait=60"));
    assert_eq!(first.status, 201, "{first:?}");
    let job = first.json();
    assert_eq!((&job["state"], &job["rows"]), (&"Completed".into(), &1000.into()));
    has_keys(&job, "job_id state rows progress duplicated expires_at reason clock_held files");
    let place_of = first.header("location").unwrap();
    let shown = server.get(place_of).json();
    assert_eq!(shown["job_id"], job["job_id"]);
    assert_eq!(shown["files"][0]["path"], "a.csv");
    let again = server.ask(&asked);
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
    assert_eq!(again.json()["duplicated"], true);
    // A job that has committed stays.
    let cancel = format!("{place_of}/cancel");
    assert_eq!(server.post(&cancel, &json!({})).json()["state"], "Completed");
    let typo = json!({ "collection": "c", "files": ["a.csv"], "primarykey": "id" });
    server.post("/v1/jobs", &typo).problem(400, "invalid-input");
    drop(server);
    assert_eq!(committed(&place), 1000);
}

#[test]
fn a_job_that_is_cancelled_has_no_rows() {
    let place = Place::new();
    place.rows("large.csv", 300_000);
    let server = place.serve();
    let job = server.create("k", "large.csv").data();
    let cancel = format!("/v1/jobs/{}/cancel", job["jobId"].as_str().unwrap());
    let over = server.post(&cancel, &json!({})).json();
    let is_cancelled = over["state"] == "Failed";
    drop(server);
    if is_cancelled {
        assert_eq!(committed(&place), 0);
    } else {
        // The import was faster.
        assert_eq!((over["state"].as_str(), committed(&place)), (Some("Completed"), 300_000));
    }
}

#[test]
fn a_member_that_stands_twice_is_refused_and_consumes_no_key() {
    let place = Place::new();
    let server = place.serve();
    let body = br#"{"type":"Noop","vchannels":["a"],"payload":"p","payload":"q"}"#;
    let asked = Ask { method: "POST", ..Ask::get("/v1/broadcasts") };
    let asked = asked.header("Idempotency-Key", "k").body(body);
    let problem = server.ask(&asked).problem(400, "invalid-input");
    assert!(problem["detail"].as_str().unwrap().contains("a name twice"), "{problem}");
    assert_eq!(server.get("/v1/keys").json()["live_count"], 0);
}

#[test]
fn broadcasts_keys_and_channels_are_shown() {
    let place = Place::new();
    let server = place.serve();
    let body = json!({
        "type": "Noop", "vchannels": ["mail", "ledger"], "scope": "customer:42",
        "resources": ["customer:42", "books:1:shared"], "payload": "hello",
    });
    let asked = Ask::post("/v1/broadcasts", &body).header("Idempotency-Key", "a/b c%");
    let sent = server.ask(&asked.header("traceparent", "none")).json();
    assert_eq!(sent["channels"].as_object().unwrap().len(), 2);
    let id = sent["broadcast_id"].as_str().unwrap();
    let shown = server.get(&format!("/v1/broadcasts/{id}")).json();
    assert_eq!((&shown["state"], &shown["key"]), (&"done".into(), &"a/b c%".into()));
    let keys = |path: &str| server.get(path).json()["keys"].clone();
    let found = keys("/v1/keys/a%2Fb%20c%25?type=Noop&scope=customer:42");
    assert_eq!(found[0]["broadcast_id"], id);
    assert_eq!(keys("/v1/keys/a%2Fb%20c%25")[0]["state"], "unknown", "another scope");
    server.get("/v1/keys/caf%C3%A9").problem(400, "malformed-key");
    server.get("/v1/keys/k?scope=x").problem(400, "invalid-input");
    let channels = server.get("/v1/channels").json();
    assert_eq!(channels["channels"].as_array().unwrap().len(), 2);
    has_keys(&server.get("/v1/channels/mail").json(), "vchannel pchannel why_not_trimmed");
    server.get("/v1/channels/none").problem(404, "not-found");
    server.get("/v1/broadcasts/77").problem(404, "not-found");
    let config = server.get("/v1/config").json();
    assert_eq!(config["retention"]["window_lifetime_ms"], 86_400_000);
}

#[test]
fn a_broadcast_that_is_none_is_refused() {
    let place = Place::new();
    let server = place.serve();
    for body in [
        json!({}),
        json!({ "type": "Noop" }),
        json!({ "type": "Noop", "vchannels": [] }),
        json!({ "type": "Noop", "vchannels": "a" }),
        json!({ "type": "Noop", "vchannels": ["a"], "scope": "a" }),
        json!({ "type": "Noop", "vchannels": ["a"], "resources": ["a"] }),
        json!({ "type": "Noop", "vchannels": ["a"], "else": 1 }),
        json!({ "type": "Unheard", "vchannels": ["a"] }),
        // Their payloads name files of this machine.
        json!({ "type": "Import", "vchannels": ["a"], "payload": "{}" }),
        json!({ "type": "AbortImport", "vchannels": ["a"] }),
    ] {
        let asked = Ask::post("/v1/broadcasts", &body).header("Idempotency-Key", "k");
        let problem = server.ask(&asked).problem(400, "invalid-input");
        assert!(!problem["detail"].as_str().unwrap().is_empty(), "{body}");
    }
    assert_eq!(server.get("/v1/channels").json()["channels"], json!([]));
    assert_eq!(server.get("/v1/keys").json()["live_count"], 0);
}

#[test]
fn metrics_are_those_of_the_broadcaster() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let job = server.create("k", "a.csv").data();
    server.over(job["jobId"].as_str().unwrap());
    let text = server.get("/metrics");
    assert!(text.header("content-type").unwrap().starts_with("text/plain"));
    for line in [
        "oncelog_keys 1",
        "oncelog_broadcasts_accepted_total{type=\"Import\"} 1",
        "# TYPE oncelog_log_sync_seconds histogram",
    ] {
        assert!(text.body.lines().any(|of| of == line), "{line} in {}", text.body);
    }
}

/// What `/metrics` says of each metric of the gateway: its type, the names of its labels, what it is.
fn told_of_http(text: &str) -> BTreeMap<String, (String, BTreeSet<String>, String)> {
    let mut told: BTreeMap<String, (String, BTreeSet<String>, String)> = BTreeMap::new();
    for line in text.lines() {
        let of = |line: &str| line.split([' ', '{']).next().unwrap().to_owned();
        if let Some((name, what)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            told.entry(name.to_owned()).or_default().2 = what.to_owned();
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        {
            told.entry(name.to_owned()).or_default().0 = kind.to_owned();
        } else if let Some((labels, _)) =
            line.split_once('{').and_then(|(_, it)| it.split_once('}'))
        {
            let name = of(line);
            let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = name.map_or_else(|| of(line), str::to_owned);
            let names = labels.split("\",").filter_map(|label| label.split('=').next());
            let names = names.filter(|name| *name != "le").map(str::to_owned);
            told.entry(name).or_default().1.extend(names);
        }
    }
    told.retain(|name, _| name.starts_with("oncelog_http_"));
    told
}

#[test]
fn metrics_of_the_service_are_documented_and_count_what_was_asked() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    server.create("k", "a.csv").data();
    assert_eq!(server.create("k", "none.csv").code(), 1100);
    server.ask(&Ask::get("/v1/jobs").token(None)).problem(401, "unauthenticated");
    for path in ["/v1/jobs/7", "/v1/jobs/8", "/nothing", "/else"] {
        assert_eq!(server.get(path).status, 404);
    }
    let text = server.get("/metrics").body;
    for line in [
        &format!(
            "oncelog_http_requests_total{{method=\"POST\",route=\"{CREATE}\",status=\"200\"}} 2"
        ),
        "oncelog_http_requests_total{method=\"GET\",route=\"/v1/jobs\",status=\"401\"} 1",
        "oncelog_http_requests_total{method=\"GET\",route=\"/v1/jobs/{id}\",status=\"404\"} 2",
        "oncelog_http_requests_total{method=\"(any)\",route=\"(none)\",status=\"404\"} 2",
        "oncelog_http_refusals_total{problem=\"conflict\"} 1",
        "oncelog_http_refusals_total{problem=\"window-full\"} 0",
        "oncelog_http_connections_total{result=\"taken\"} 8",
        "oncelog_http_requests 1",
        "oncelog_http_requests_waiting 0",
        "oncelog_http_request_seconds_count{method=\"GET\",route=\"/v1/jobs/{id}\"} 2",
    ] {
        assert!(text.lines().any(|of| of == line), "{line} in {text}");
    }
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let document = std::fs::read_to_string(document).unwrap();
    let rows = document.lines().filter(|line| line.starts_with("| `oncelog_http_"));
    let documented = rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let labels = cells[3].split(';').filter_map(|label| label.split('`').nth(1));
        let labels = labels.map(str::to_owned).collect();
        (cells[0].trim_matches('`').to_owned(), (cells[1].to_owned(), labels, cells[4].to_owned()))
    });
    assert_eq!(told_of_http(&text), documented.collect());
}
