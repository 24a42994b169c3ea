//! Limits: each has an error of its own, and none consumes a key.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use serde_json::json;

use super::{Ask, CREATE, Place, Reply};

#[test]
fn a_body_above_its_limit_is_refused_and_consumes_no_key() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve_with("body_bytes_max = 1024");
    let body = json!({ "type": "Noop", "vchannels": ["a"], "payload": "x".repeat(2000) });
    let asked = Ask::post("/v1/broadcasts", &body).header("Idempotency-Key", "k");
    server.ask(&asked).problem(413, "limit");
    // Where its length is not stated, too, and before all of it is there.
    let head = "POST /v1/broadcasts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root:Milvus\r\n\
        Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(format!("7d0\r\n{}\r\n", " ".repeat(2000)).as_bytes()).unwrap();
    Reply::whole(&mut stream).problem(413, "limit");
    let large = Ask::post(CREATE, &json!({ "collectionName": "x".repeat(2000) }));
    let large = server.ask(&large.header("Idempotency-Key", "k"));
    assert_eq!(large.code(), 12_413);
    let small = json!({ "type": "Noop", "vchannels": ["a"], "payload": "other" });
    let small = Ask::post("/v1/broadcasts", &small).header("Idempotency-Key", "k");
    assert_eq!(server.ask(&small).status, 201);
}

#[test]
fn a_body_far_above_its_limit_is_answered_while_it_is_still_sent() {
    let place = Place::new();
    let server = place.serve_with("body_bytes_max = 1024");
    let mut stream = server.connect();
    let head = "POST /v1/broadcasts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root:Milvus\r\n\
        Content-Length: 1000000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[b' '; 100_000]).unwrap();
    Reply::whole(&mut stream).problem(413, "limit");
}

#[test]
fn a_head_above_its_limit_is_refused() {
    let place = Place::new();
    let server = place.serve_with("head_bytes_max = 2048");
    let asked = |bytes: usize| Ask::get("/v1/jobs").header("X", &"x".repeat(bytes));
    assert_eq!(server.ask(&asked(1000)).status, 200);
    server.ask(&asked(3000)).problem(431, "head-limit");
    let v2 = Ask::post(CREATE, &json!({})).header("X", &"x".repeat(3000));
    assert_eq!(server.ask(&v2).code(), 12_431);
    // What no buffer holds is refused before anything is known of it.
    assert_eq!(server.ask(&asked(200_000)).status, 431);
    let many = (0..200).fold(Ask::get("/v1/jobs"), |asked, _| asked.header("X", "x"));
    assert_eq!(server.ask(&many).status, 431);
}

#[test]
fn an_import_of_too_many_files_is_refused() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve_with("files_max = 2");
    let body = json!({ "collectionName": "c", "files": [["a.csv"], ["a.csv"], ["a.csv"]] });
    let asked = Ask::post(CREATE, &body).header("Idempotency-Key", "k");
    assert_eq!(server.ask(&asked).code(), 12_413);
    assert_eq!(server.create("k", "a.csv").code(), 0);
}

#[test]
fn a_head_that_does_not_come_in_time_ends_its_connection() {
    let place = Place::new();
    let server = place.serve_with("head_time_max = \"300ms\"");
    let mut part = server.connect();
    part.write_all(b"GET /healthz HTTP/1.1\r\nHo").unwrap();
    assert_eq!(Reply::whole(&mut part).status, 408);
    // Nothing was asked: nothing is answered.
    let mut silent = server.connect();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    let mut second = server.connect();
    second.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(Reply::whole(&mut second).status, 200);
}

#[test]
fn a_body_that_does_not_come_in_time_is_refused_and_consumes_no_key() {
    let place = Place::new();
    let server = place.serve_with("body_time_max = \"300ms\"");
    let head = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root:Milvus\r\n\
             Idempotency-Key: k\r\nContent-Length: 100\r\n\r\n{{\"type\":"
        )
    };
    let mut stream = server.connect();
    stream.write_all(head("/v1/broadcasts").as_bytes()).unwrap();
    Reply::whole(&mut stream).problem(408, "too-slow");
    let mut stream = server.connect();
    stream.write_all(head(CREATE).as_bytes()).unwrap();
    assert_eq!(Reply::whole(&mut stream).code(), 12_408);
    // One that is cut off is no request.
    let mut stream = server.connect();
    stream.write_all(head("/v1/broadcasts").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    drop(stream.read_to_end(&mut Vec::new()));
    assert_eq!(server.get("/v1/keys").json()["live_count"], 0);
}

#[test]
fn a_connection_too_many_is_told_so_and_the_next_one_finds_a_place() {
    let place = Place::new();
    let server = place.serve_with("connections_max = 2");
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            stream
        })
        .collect();
    let mut third = server.connect();
    let refused = Reply::whole(&mut third);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    drop(held);
    let find = || {
        let mut stream = server.connect();
        stream.write_all(&Ask::get("/healthz").bytes()).unwrap();
        Reply::whole(&mut stream).status
    };
    while find() != 200 {}
}

#[test]
fn requests_that_wait_beyond_their_places_are_told_so_at_once() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve_with("waiting_max = 1");
    // A request whose job is not over holds the only place.
    place.rows("large.csv", 200_000);
    let body = json!({ "collection": "c", "files": ["large.csv"] });
    let large = Ask::post("/v1/jobs", &body).header("Prefer", "wait=60");
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| server.ask(&large));
        while server.get("/v1/jobs").json()["jobs"].as_array().unwrap().is_empty() {}
        let refused = server.post("/v1/jobs", &json!({ "collection": "d", "files": ["a.csv"] }));
        if refused.status != 201 {
            refused.problem(503, "too-many-requests");
            assert_eq!(refused.header("retry-after"), Some("1"));
        } else {
            // The import was faster.
            assert!(waiting.is_finished());
        }
        assert_eq!(waiting.join().unwrap().status, 201);
    });
    assert_eq!(server.create("k", "a.csv").code(), 0);
}

#[test]
fn jobs_beyond_their_slots_are_refused_and_consume_no_key() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve_with("jobs_max = 1");
    place.rows("large.csv", 200_000);
    let large = server.create("large", "large.csv").data();
    let refused = server.create("k", "a.csv");
    if refused.code() != 0 {
        assert_eq!(refused.code(), 9);
        assert_eq!(server.get("/v1/keys/k").json()["keys"][0]["state"], "unknown");
    }
    server.over(large["jobId"].as_str().unwrap());
    assert_eq!(server.create("k", "a.csv").code(), 0);
}

#[test]
fn a_client_that_takes_nothing_of_its_answers_loses_its_connection() {
    let place = Place::new();
    let server = place.serve_with("connections_max = 1\nstall_time_max = \"300ms\"");
    let mut stalled = server.connect();
    stalled.set_write_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let asked = b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\
        Authorization: Bearer root:Milvus\r\n\r\n";
    // Until the server takes no more, as it can send no more, and then gives up.
    while stalled.write_all(asked).is_ok() {}
    let find = || {
        let mut stream = server.connect();
        stream.write_all(&Ask::get("/healthz").bytes()).unwrap();
        Reply::whole(&mut stream).status
    };
    while find() != 200 {}
}
