//! Files are imported from below a root alone, and no answer tells of any other.

use std::os::unix::fs::symlink;

use serde_json::json;

use super::{Ask, CREATE, Place};

#[test]
fn a_path_that_leads_out_of_its_root_is_refused_and_tells_nothing() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let outside = place.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret.csv"), "id\n1\n").unwrap();
    symlink(outside.join("secret.csv"), place.root().join("link.csv")).unwrap();
    symlink(&outside, place.root().join("dir")).unwrap();
    symlink("a.csv", place.root().join("inner.csv")).unwrap();
    std::fs::create_dir(place.root().join("folder.csv")).unwrap();
    let fifo = place.root().join("fifo.csv");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let server = place.serve();
    let absolute = outside.join("secret.csv");
    let absolute = absolute.to_str().unwrap();
    let home = place.dir.path().to_str().unwrap();
    for path in [
        "../outside/secret.csv",
        "x/../../outside/secret.csv",
        "./../../outside/secret.csv",
        "..",
        ".",
        "",
        "/",
        "/etc/passwd",
        absolute,
        "link.csv",
        "dir/secret.csv",
        "inner.csv",
        "folder.csv",
        "fifo.csv",
        "none.csv",
        "a.csv/x.csv",
        "a\u{0}.csv",
    ] {
        let reply = server.create("k", path);
        assert_eq!(reply.code(), 1100, "{path:?}: {reply:?}");
        assert!(!reply.body.contains(home), "{path:?}: {reply:?}");
        let body = json!({ "collection": "c", "files": [path] });
        let asked = Ask::post("/v1/jobs", &body).header("Idempotency-Key", "k");
        let problem = server.ask(&asked).problem(400, "invalid-input").to_string();
        assert!(!problem.contains(home), "{path:?}: {problem}");
    }
    // What is there and what is not there outside is one answer.
    let there = server.create("k", "../outside/secret.csv").body;
    assert_eq!(server.create("k", "../outside/nothing.csv").body, there);
    assert_eq!(server.create("k", "./x/../a.csv").code(), 0);
}

#[test]
fn a_path_that_is_changed_behind_the_look_at_it_leads_nowhere_else() {
    let place = Place::new();
    let outside = place.dir.path().join("secret.csv");
    std::fs::write(&outside, "id\n1\n2\n").unwrap();
    place.rows("a.csv", 3);
    let server = place.serve();
    let path = place.root().join("a.csv");
    for round in 0..20 {
        let (before, after) = (place.root().join("b.csv"), place.root().join("l.csv"));
        std::fs::write(&before, "id,name\n1,x\n2,y\n3,z\n").unwrap();
        symlink(&outside, &after).unwrap();
        std::fs::rename(&before, &path).unwrap();
        let body = json!({ "collectionName": format!("c{round}"), "files": [["a.csv"]] });
        let reply = server.post(CREATE, &body);
        std::fs::rename(&after, &path).unwrap();
        if reply.code() == 0 {
            let over = server.over(reply.data()["jobId"].as_str().unwrap());
            // The file of the root whole, or nothing.
            let rows = if over["state"] == "Completed" { 3 } else { 0 };
            assert_eq!(over["importedRows"], rows, "{over}");
        }
    }
}

#[test]
fn jobs_of_the_command_line_show_no_path_of_the_machine() {
    let place = Place::new();
    let secret = place.dir.path().join("secret.csv");
    std::fs::write(&secret, "id\n1\n").unwrap();
    let store = place.store();
    let args = ["import", store.to_str().unwrap(), secret.to_str().unwrap(), "--collection", "c"];
    assert_eq!(crate::cli::run(&args, b"").code, 0);
    std::fs::write(&secret, "id\n1,2\n").unwrap();
    assert_eq!(crate::cli::run(&args, b"").code, 1);
    let server = place.serve();
    let jobs = server.get("/v1/jobs").json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2, "{jobs}");
    assert_eq!(jobs["jobs"][0]["state"], "Failed");
    assert!(!jobs.to_string().contains("secret"), "{jobs}");
    let described = server.post(super::DESCRIBE, &json!({ "jobId": "1" }));
    assert!(!described.body.contains("secret"), "{described:?}");
}
