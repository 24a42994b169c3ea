//! Who may ask: nobody without a token, and everybody for his own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{Ask, CREATE, DESCRIBE, LIST, OTHER, Place, Reply, TOKEN};
use crate::cli::run;

/// An answer without the time of day.
fn timeless(mut reply: Reply) -> Reply {
    reply.headers.retain(|(name, _)| name != "date");
    reply
}

#[test]
fn who_is_not_allowed_gets_one_answer_whatever_key_body_or_route_he_sends() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    assert_eq!(server.create("known", "a.csv").code(), 0);
    let long = "x".repeat(20_000);
    for (family, paths) in [
        (401, &["/v1/jobs", "/v1/jobs/1", "/v1/nothing", "/metrics", "/", "/v1/keys/known"][..]),
        (1800, &[CREATE, DESCRIBE, "/v2/nothing"]),
    ] {
        let first = timeless(server.ask(&Ask::get(paths[0]).token(None)));
        assert_eq!(first.status, 401);
        assert_eq!(first.header("www-authenticate"), Some("Bearer"));
        if family == 1800 {
            assert_eq!(first.json()["code"], 1800);
        } else {
            first.problem(401, "unauthenticated");
        }
        for path in paths {
            let get = Ask::get(path);
            let post = Ask::post(path, &json!({ "collectionName": "c", "files": [["a.csv"]] }));
            for asked in [
                get.clone().token(None),
                get.clone().token(Some("wrong")),
                get.clone().token(None).header("Authorization", "Basic cm9vdDpNaWx2dXM="),
                get.clone().header("Authorization", &format!("Bearer {TOKEN}")),
                get.clone().token(None).header("X", &long),
                post.clone().token(None),
                post.clone().token(None).header("Idempotency-Key", "known"),
                post.clone().token(None).header("Idempotency-Key", "\"malformed"),
                post.clone().token(Some("Root:Milvus")).body(b"{"),
                Ask { method: "DELETE", ..get.clone().token(None) },
            ] {
                assert_eq!(timeless(server.ask(&asked)), first, "{} {path}", asked.method);
            }
        }
    }
    assert_eq!(server.post(LIST, &json!({})).data()["count"], 1);
}

#[test]
fn whether_the_server_lives_and_is_ready_is_told_to_everybody() {
    let place = Place::new();
    let server = place.serve();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.ask(&Ask::get(path).token(None)).status, 200);
        assert_eq!(server.ask(&Ask::get(path).token(Some("wrong"))).status, 200);
    }
    let head = Ask { method: "HEAD", ..Ask::get("/healthz").token(None) };
    let head = server.ask(&head);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn a_principal_sees_its_own_keys_and_jobs() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let body = json!({ "collectionName": "c", "files": [["a.csv"]] });
    let create = |token, key: &str| {
        let asked = Ask::post(CREATE, &body).token(Some(token));
        let asked = if key.is_empty() { asked } else { asked.header("Idempotency-Key", key) };
        server.ask(&asked).data()["jobId"].as_str().unwrap().to_owned()
    };
    // One key of two principals is two keys; a job without a key has an owner too.
    let jobs = [create(TOKEN, "k"), create(OTHER, "k"), create(OTHER, "")];
    for (job, owner) in [(&jobs[0], TOKEN), (&jobs[1], OTHER), (&jobs[2], OTHER)] {
        for token in [TOKEN, OTHER] {
            let describe = Ask::post(DESCRIBE, &json!({ "jobId": job })).token(Some(token));
            let code = server.ask(&describe).code();
            assert_eq!(code, if token == owner { 0 } else { 2100 });
            let path = format!("/v1/jobs/{job}");
            let shown = server.ask(&Ask::get(&path).token(Some(token)));
            assert_eq!(shown.status, if token == owner { 200 } else { 404 });
            let path = format!("/v1/jobs/{job}/cancel");
            let cancelled = server.ask(&Ask::post(&path, &json!({})).token(Some(token)));
            assert_eq!(cancelled.status, if token == owner { 200 } else { 404 });
        }
    }
    for (token, count) in [(TOKEN, 1), (OTHER, 2)] {
        let list = Ask::post(LIST, &json!({})).token(Some(token));
        assert_eq!(server.ask(&list).data()["count"], count);
        let keys = server.ask(&Ask::get("/v1/keys/k").token(Some(token))).json();
        let keys = keys["keys"].as_array().unwrap().clone();
        assert_eq!(keys.len(), 1, "{keys:?}");
        assert_eq!(keys[0]["principal"], if token == TOKEN { "default" } else { "other" });
    }
}

#[test]
fn tokens_that_others_can_read_are_refused() {
    let place = Place::new();
    let tokens = place.dir.path().join("tokens");
    let args = |command: std::process::Command| -> Vec<String> {
        command.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect()
    };
    let args = args(place.command());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    for mode in [0o604, 0o602, 0o644] {
        fs::set_permissions(&tokens, Permissions::from_mode(mode)).unwrap();
        let run = run(&args, b"");
        assert_eq!(run.code, 2, "{}", run.err);
        assert!(run.error()["message"].as_str().unwrap().contains("others can"));
        assert!(!run.err.contains(TOKEN), "{}", run.err);
    }
    fs::set_permissions(&tokens, Permissions::from_mode(0o600)).unwrap();
    fs::write(&tokens, "").unwrap();
    assert_eq!(run(&args, b"").code, 2);
    assert!(!place.store().exists(), "nothing is made where nothing is served");
}
