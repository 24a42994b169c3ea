//! What a key promises, over HTTP.

use std::sync::Barrier;

use serde_json::{Value, json};

use super::{Ask, CREATE, DESCRIBE, Place, Server, committed};

fn broadcast(server: &Server, key: &str, payload: &str) -> super::Reply {
    let body = json!({ "type": "Noop", "vchannels": ["a", "b"], "payload": payload });
    server.ask(&Ask::post("/v1/broadcasts", &body).header("Idempotency-Key", key))
}

#[test]
fn twenty_four_requests_of_one_key_at_once_are_one_job_and_its_answers() {
    let place = Place::new();
    place.rows("a.csv", 2000);
    let server = place.serve();
    let all = Barrier::new(24);
    let answers: Vec<(Value, bool)> = std::thread::scope(|threads| {
        let asks: Vec<_> = (0..24)
            .map(|_| {
                threads.spawn(|| {
                    all.wait();
                    let reply = server.create("k", "a.csv");
                    let replayed = reply.header("idempotency-replayed") == Some("true");
                    (reply.data(), replayed)
                })
            })
            .collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|(_, replayed)| *replayed).count(), 23);
    for (data, replayed) in &answers {
        assert_eq!(data["duplicated"], *replayed);
        assert_eq!(data["jobId"], answers[0].0["jobId"]);
        assert_eq!(data["expiresAt"], answers[0].0["expiresAt"]);
    }
    let over = server.over(answers[0].0["jobId"].as_str().unwrap());
    assert_eq!((&over["state"], &over["importedRows"]), (&"Completed".into(), &2000.into()));
    drop(server);
    assert_eq!(committed(&place), 2000);
}

#[test]
fn a_server_that_is_killed_behind_an_accepted_create_has_the_job_and_its_rows_once() {
    let place = Place::new();
    place.rows("a.csv", 50_000);
    let server = place.serve();
    let first = server.create("k", "a.csv").data();
    server.kill();
    let server = place.serve();
    let again = server.create("k", "a.csv").data();
    assert_eq!((&again["jobId"], &again["expiresAt"]), (&first["jobId"], &first["expiresAt"]));
    assert_eq!((&first["duplicated"], &again["duplicated"]), (&false.into(), &true.into()));
    let over = server.over(first["jobId"].as_str().unwrap());
    assert_eq!((&over["state"], &over["importedRows"]), (&"Completed".into(), &50_000.into()));
    drop(server);
    assert_eq!(committed(&place), 50_000);
}

#[test]
fn both_spellings_of_a_key_are_one() {
    let place = Place::new();
    let server = place.serve();
    let first = broadcast(&server, "a", "p");
    assert_eq!((first.status, first.header("idempotency-replayed")), (201, Some("false")));
    let again = broadcast(&server, "\"a\"", "p");
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
    let (first, again) = (first.json(), again.json());
    for same in ["broadcast_id", "channels", "expires_at", "done_at"] {
        assert_eq!(first[same], again[same], "{same}");
    }
    let expires = broadcast(&server, "a", "p");
    assert_eq!(expires.header("idempotency-expires"), first["expires_at"].as_str());
}

#[test]
fn a_key_that_is_none_is_refused_where_it_is_used_and_ignored_elsewhere() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let long = "x".repeat(257);
    for key in ["", "\"\"", "\"a", "\"a\" b", "\"a\";p=1", "caf\u{e9}", "a\tb", &long] {
        broadcast(&server, key, "p").problem(400, "malformed-key");
        assert_eq!(server.create(key, "a.csv").code(), 1100, "{key:?}");
    }
    let body = json!({ "type": "Noop", "vchannels": ["a"] });
    let twice = Ask::post("/v1/broadcasts", &body);
    let twice = twice.header("Idempotency-Key", "k").header("idempotency-key", "k");
    server.ask(&twice).problem(400, "malformed-key");
    // Nothing of it was accepted.
    assert_eq!(server.get("/v1/keys").json()["live_count"], 0);
    for asked in [Ask::get("/v1/jobs"), Ask::post(DESCRIBE, &json!({ "jobId": "1" }))] {
        let status = server.ask(&asked).status;
        let with_key = asked.header("Idempotency-Key", "\"a").header("Idempotency-Key", "b");
        assert_eq!(server.ask(&with_key).status, status);
    }
}

#[test]
fn a_key_that_was_used_for_something_else_names_what_differs() {
    let place = Place::new();
    place.rows("a.csv", 3);
    place.rows("b.csv", 3);
    let server = place.serve();
    let first = broadcast(&server, "k", "p").json();
    let problem = broadcast(&server, "k", "a secret").problem(422, "conflict");
    assert_eq!(problem["fields"], json!(["payload"]));
    assert!(!problem.to_string().contains("secret"));
    assert_eq!(broadcast(&server, "k", "p").json()["broadcast_id"], first["broadcast_id"]);

    let first = server.create("k", "a.csv").data();
    let other = server.create("k", "b.csv");
    assert_eq!(other.code(), 1100);
    assert_eq!(other.json()["data"]["fields"], json!(["files"]));
    assert_eq!(server.create("k", "a.csv").data()["jobId"], first["jobId"]);
}

#[test]
fn a_known_key_answers_also_when_its_files_are_gone_and_says_so_of_no_other() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let first = server.create("k", "a.csv").data();
    server.over(first["jobId"].as_str().unwrap());
    std::fs::remove_file(place.root().join("a.csv")).unwrap();
    assert_eq!(server.create("k", "a.csv").data()["jobId"], first["jobId"]);
    assert_eq!(server.create("new", "a.csv").code(), 1100);
    assert_eq!(server.get("/v1/keys/new").json()["keys"][0]["state"], "unknown");
}

#[test]
fn a_full_window_refuses_new_keys_and_answers_the_old_ones() {
    let place = Place::new();
    let file = place.dir.path().join("policy.toml");
    std::fs::write(&file, "[retention]\nwindow_count_max = 1\n").unwrap();
    let mut command = place.command();
    command.args(["--config", file.to_str().unwrap()]);
    let server = Server::start(command);
    while server.ask(&Ask::get("/readyz")).status != 200 {}
    assert_eq!(broadcast(&server, "k1", "p").status, 201);
    let refused = broadcast(&server, "k2", "p");
    let problem = refused.problem(429, "window-full");
    assert_eq!(problem["retryable"], true);
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    place.rows("a.csv", 3);
    assert_eq!(server.create("k2", "a.csv").code(), 9);
    assert_eq!(broadcast(&server, "k1", "p").status, 200);
}

#[test]
fn a_failed_job_stays_failed_until_its_retry_is_asked_for() {
    let place = Place::new();
    place.source("a.jsonl", "{\"id\":1}\n{\"id\":\n");
    let server = place.serve();
    let first = server.create("k", "a.jsonl").data();
    let job = first["jobId"].as_str().unwrap();
    let over = server.over(job);
    assert_eq!(over["state"], "Failed");
    assert!(over["reason"].as_str().unwrap().contains("a.jsonl"), "{over}");
    let told = over.to_string();
    assert!(!told.contains(place.dir.path().to_str().unwrap()), "{told}");
    place.source("a.jsonl", "{\"id\":1}\n{\"id\":2}\n");
    assert_eq!(server.create("k", "a.jsonl").data()["duplicated"], true);
    assert_eq!(server.over(job)["state"], "Failed");
    let body = json!({ "collectionName": "c", "files": [["a.jsonl"]] });
    let asked = Ask::post(CREATE, &body).header("Idempotency-Key", "k");
    let wrong = server.ask(&asked.clone().header("Idempotency-Retry", "all"));
    assert_eq!(wrong.code(), 1100);
    let again = server.ask(&asked.header("Idempotency-Retry", "failed-only")).data();
    assert_eq!((&again["jobId"], &again["expiresAt"]), (&first["jobId"], &first["expiresAt"]));
    let over = server.over(job);
    assert_eq!((&over["state"], &over["importedRows"]), (&"Completed".into(), &2.into()));
    drop(server);
    assert_eq!(committed(&place), 2);
}
