//! How a server begins and ends: recovery, signals, and requests that are under way.

use std::io::Write as _;

use rustix::process::Signal;
use serde_json::json;

use super::{Ask, OTHER, Place, Reply, Server, TOKEN, committed};

#[test]
fn a_server_that_is_told_to_end_answers_what_is_under_way_and_frees_the_store() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        place.rows("large.csv", 100_000);
        let mut server = place.serve();
        let body = json!({ "collection": "c", "files": ["large.csv"] });
        let asked = Ask::post("/v1/jobs", &body).header("Idempotency-Key", "k");
        let mut waiting = server.connect();
        waiting.write_all(&asked.header("Prefer", "wait=60").bytes()).unwrap();
        // An idle connection keeps nobody up.
        let mut idle = server.connect();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        while server.get("/v1/jobs").json()["jobs"].as_array().unwrap().is_empty() {}
        server.signal(signal);
        let answered = Reply::whole(&mut waiting);
        assert_eq!(answered.status, 201, "{answered:?}");
        assert_eq!(answered.json()["state"], "Completed");
        assert_eq!(server.told()["did"], "ended");
        assert!(server.child.wait().unwrap().success());
        assert_eq!(committed(&place), 100_000);
    }
}

#[test]
fn a_policy_is_read_anew_at_a_hang_up_and_a_broken_one_changes_nothing() {
    let place = Place::new();
    let file = place.dir.path().join("policy.toml");
    let set = |text: &str| std::fs::write(&file, format!("[retention]\n{text}\n")).unwrap();
    set("window_count_max = 5");
    let mut command = place.command();
    command.args(["--config", file.to_str().unwrap()]);
    let mut server = Server::start(command);
    assert_eq!(server.told()["did"], "ready");
    let count =
        |server: &Server| server.get("/v1/config").json()["retention"]["window_count_max"].clone();
    assert_eq!(count(&server), 5);
    set("window_count_max = 7");
    server.signal(Signal::HUP);
    assert_eq!(server.told()["did"], "refreshed");
    assert_eq!(count(&server), 7);
    set("window_count_max = 9\nwindow_lifetime = \"47h\"");
    server.signal(Signal::HUP);
    let refused = server.told();
    assert_eq!(refused["did"], "refused");
    assert!(refused["reason"].as_str().unwrap().contains("task_retention"), "{refused}");
    assert_eq!(count(&server), 7);
    // The tokens are in force all the same.
    std::fs::write(place.dir.path().join("tokens"), "new-token\n").unwrap();
    server.signal(Signal::HUP);
    let refused = server.told();
    assert_eq!(refused["did"], "refused");
    assert!(!refused["reason"].as_str().unwrap().contains("the tokens"), "{refused}");
    assert_eq!(server.get("/v1/config").status, 401);
    let config = server.ask(&Ask::get("/v1/config").token(Some("new-token"))).json();
    assert_eq!(config["retention"]["window_count_max"], 7);
}

/// A token that is gone from the file is of no use on a connection that stays, either; a file that
/// is refused changes nothing, and does not hold up the policy.
#[test]
fn tokens_are_read_anew_at_a_hang_up_and_broken_ones_change_nothing() {
    let place = Place::new();
    let tokens = place.dir.path().join("tokens");
    let set = |text: &str| std::fs::write(&tokens, text).unwrap();
    let mut server = place.serve();
    let mut stays = server.connect();
    let list = Ask::get("/v1/jobs");
    assert_eq!(ask_on(&mut stays, &list).status, 200);
    set(&format!("new-token\n{OTHER} moved\n"));
    server.signal(Signal::HUP);
    assert_eq!(server.told(), json!({ "did": "refreshed", "reason": null }));
    ask_on(&mut stays, &list).problem(401, "unauthenticated");
    let status = |token| server.ask(&list.clone().token(Some(token))).status;
    assert_eq!((status(TOKEN), status("new-token"), status(OTHER)), (401, 200, 200));
    let body = json!({ "type": "Noop", "vchannels": ["a"] });
    let sent = Ask::post("/v1/broadcasts", &body).header("Idempotency-Key", "k");
    assert_eq!(server.ask(&sent.token(Some(OTHER))).status, 201);
    let seen = server.ask(&Ask::get("/v1/keys/k").token(Some(OTHER))).json();
    assert_eq!(seen["keys"][0]["principal"], "moved");
    for broken in ["", "a-secret two words\n"] {
        set(broken);
        server.signal(Signal::HUP);
        let refused = server.told();
        assert_eq!(refused["did"], "refused");
        let reason = refused["reason"].as_str().unwrap();
        assert!(reason.contains("the tokens stay") && !reason.contains("a-secret"), "{reason}");
        assert!(!reason.contains("the policy"), "{reason}");
        let list = list.clone().token(Some("new-token"));
        assert_eq!(server.ask(&list).status, 200);
    }
}

#[test]
fn a_store_that_another_process_has_is_told_and_ends_the_server() {
    let place = Place::new();
    let _first = place.serve();
    let mut second = Server::start(place.command());
    assert_eq!(second.child.wait().unwrap().code(), Some(7));
}

/// The server listens while the store is opened: a lock that is waited for holds that up.
#[test]
fn while_the_store_is_opened_clients_are_told_to_come_back() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let first = place.serve();
    let mut command = place.command();
    command.args(["--lock-wait", "60s"]);
    let mut second = Server::start(command);
    assert_eq!(second.ask(&Ask::get("/healthz").token(None)).status, 200);
    let ready = second.ask(&Ask::get("/readyz").token(None));
    ready.problem(503, "recovering");
    assert_eq!(ready.header("retry-after"), Some("1"));
    second.get("/v1/jobs").problem(503, "recovering");
    let create = second.create("k", "a.csv");
    assert_eq!((create.code(), create.header("retry-after")), (1, Some("1")));
    assert_eq!(second.get("/metrics").status, 503);
    drop(first);
    assert_eq!(second.told()["did"], "ready");
    assert_eq!(second.ask(&Ask::get("/readyz").token(None)).status, 200);
    assert_eq!(second.create("k", "a.csv").data()["duplicated"], false);
}

/// Sends a request on a connection that stays, and reads its answer.
fn ask_on(stream: &mut std::net::TcpStream, asked: &Ask<'_>) -> Reply {
    let text = String::from_utf8(asked.bytes()).unwrap();
    stream.write_all(text.replace("Connection: close\r\n", "").as_bytes()).unwrap();
    let (mut bytes, mut some) = (Vec::new(), [0; 4096]);
    loop {
        let read = std::io::Read::read(stream, &mut some).unwrap();
        assert!(read > 0, "the connection ended");
        bytes.extend_from_slice(&some[..read]);
        let text = std::str::from_utf8(&bytes).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let len = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
        if body.len() == len.unwrap().parse::<usize>().unwrap() {
            return Reply::of(text);
        }
    }
}

#[test]
fn two_hundred_clients_that_keep_their_connections_see_no_error() {
    let place = Place::new();
    place.rows("a.csv", 3);
    place.rows("large.csv", 100_000);
    let server = place.serve();
    // Beside an import that runs.
    let large = server.create("large", "large.csv").data();
    std::thread::scope(|threads| {
        for number in 0..200 {
            let server = &server;
            threads.spawn(move || {
                let mut stream = server.connect();
                let body = json!({ "collectionName": "c", "files": [["a.csv"]] });
                let create = Ask::post(super::CREATE, &body);
                let create = create.header("Idempotency-Key", &format!("k{number}"));
                let job = ask_on(&mut stream, &create).data()["jobId"].clone();
                let describe = Ask::post(super::DESCRIBE, &json!({ "jobId": job }));
                while ask_on(&mut stream, &describe).data()["state"] != "Completed" {}
                let again = ask_on(&mut stream, &create).data();
                assert_eq!((&again["jobId"], &again["duplicated"]), (&job, &true.into()));
            });
        }
    });
    server.over(large["jobId"].as_str().unwrap());
    drop(server);
    assert_eq!(committed(&place), 100_000 + 200 * 3);
}

#[test]
fn one_connection_carries_many_requests() {
    let place = Place::new();
    let server = place.serve();
    let mut stream = server.connect();
    let many = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50);
    stream.write_all(&many).unwrap();
    stream.write_all(&Ask::get("/healthz").bytes()).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 51);
}

#[test]
fn a_job_that_is_kept_no_longer_is_told_from_one_that_never_was() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let file = place.dir.path().join("policy.toml");
    let policy = "[retention]\nwindow_lifetime = \"1ms\"\ntask_retention = \"2ms\"\n\
        check_interval = \"10ms\"\n";
    std::fs::write(&file, policy).unwrap();
    let mut command = place.command();
    command.args(["--config", file.to_str().unwrap()]);
    let mut server = Server::start(command);
    assert_eq!(server.told()["did"], "ready");
    let job = server.create("k", "a.csv").data()["jobId"].as_str().unwrap().to_owned();
    let describe = || server.post(super::DESCRIBE, &json!({ "jobId": job })).code();
    while describe() == 0 {}
    assert_eq!(describe(), 12_410);
    server.get(&format!("/v1/jobs/{job}")).problem(410, "gone");
    assert_eq!(server.post(super::DESCRIBE, &json!({ "jobId": "999" })).code(), 2100);
    // The key is free for new work.
    assert_eq!(server.create("k", "a.csv").data()["duplicated"], false);
}
