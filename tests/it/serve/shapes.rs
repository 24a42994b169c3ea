//! The requests of clients that exist, and what they look at in the answers.

use serde_json::{Value, json};

use super::{Ask, CREATE, DESCRIBE, LIST, Place, Server};
use crate::cli::has_keys;

fn done(server: &Server, body: &Value) -> String {
    let data = server.post(CREATE, body).data();
    let job = data["jobId"].as_str().unwrap().to_owned();
    assert_eq!(server.over(&job)["state"], "Completed");
    job
}

/// What pymilvus sends, with all that it sends and no caller said.
#[test]
fn requests_of_the_python_client_are_answered_as_it_reads_them() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let body = json!({
        "collectionName": "c", "dbName": "", "partitionName": "", "files": [["a.csv"]],
        "objectUrl": "", "objectUrls": null, "clusterId": "", "projectId": "", "regionId": "",
        "accessKey": "", "secretKey": "", "token": "", "volumeName": "", "dataPaths": null,
        "options": {},
    });
    let job = done(&server, &body);
    let describe = json!({ "jobId": job, "clusterId": "", "projectId": "", "regionId": "" });
    let told = server.post(DESCRIBE, &describe);
    assert_eq!(told.json()["message"], "");
    let data = told.data();
    has_keys(&data, "jobId collectionName state progress importedRows totalRows fileSize details");
    assert_eq!((&data["progress"], &data["importedRows"]), (&100.into(), &3.into()));
    let list = json!({
        "collectionName": "c", "dbName": "", "clusterId": "", "projectId": "", "regionId": "",
        "pageSize": 10, "currentPage": 1,
    });
    let records = server.post(LIST, &list).data()["records"].clone();
    assert_eq!(records.as_array().unwrap().len(), 1);
    has_keys(&records[0], "jobId collectionName state progress");
}

/// What the Go client sends; it looks at `status`, and decodes into numbers and texts.
#[test]
fn requests_of_the_go_client_are_answered_as_it_reads_them() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let job = done(&server, &json!({ "collectionName": "c", "files": [["a.csv"]] }));
    for path in [DESCRIBE, "/v2/vectordb/jobs/import/get_progress"] {
        let reply = server.post(path, &json!({ "jobId": job, "clusterId": "" }));
        assert_eq!(reply.json()["status"], 0);
        let data = reply.data();
        for text in ["collectionName", "jobId", "completeTime", "state"] {
            assert!(data[text].is_string(), "{text}: {data}");
        }
        for number in ["progress", "importedRows", "totalRows", "fileSize"] {
            assert!(data[number].is_i64(), "{number}: {data}");
        }
        let file = &data["details"][0];
        for text in ["fileName", "completeTime", "state"] {
            assert!(file[text].is_string(), "{text}: {file}");
        }
        for number in ["fileSize", "progress", "importedRows", "totalRows"] {
            assert!(file[number].is_i64(), "{number}: {file}");
        }
        assert_eq!(file["fileName"], "a.csv");
    }
    let list = json!({ "collectionName": "c", "pageSize": 10, "currentPage": 1 });
    let record = server.post(LIST, &list).data()["records"][0].clone();
    assert!(record["progress"].is_i64() && record["jobId"].is_string(), "{record}");
    let refused = server.post(DESCRIBE, &json!({ "jobId": "77" })).json();
    assert_ne!(refused["status"], 0, "{refused}");
    assert_eq!(refused["status"], refused["code"]);
}

#[test]
fn a_body_that_is_no_request_is_refused_and_consumes_no_key() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    for body in [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b"{\"collectionName\":7}",
        b"{\"collectionName\":\"\",\"files\":[[\"a.csv\"]]}",
        b"{\"collectionName\":\"c\"}",
        b"{\"collectionName\":\"c\",\"files\":[]}",
        b"{\"collectionName\":\"c\",\"files\":[[]]}",
        b"{\"collectionName\":\"c\",\"files\":[\"a.csv\"]}",
        b"{\"collectionName\":\"c\",\"files\":[[7]]}",
        b"{\"collectionName\":\"c/d\",\"files\":[[\"a.csv\"]]}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.xyz\"]]}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"dbName\":\"other\"}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"objectUrl\":\"s3://x/y\"}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"objectUrls\":[[\"s3://x/y\"]]}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"options\":7}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"options\":{\"sep\":\";\"}}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"options\":{\"vchannels\":\"x\"}}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"options\":{\"vchannels\":0}}",
        b"{\"collectionName\":\"d\",\"files\":[[\"a.csv\"]],\"collectionName\":\"c\"}",
        b"{\"collectionName\":\"c\",\"files\":[[\"a.csv\"]],\"options\":{\"x\":1,\"x\":1}}",
    ] {
        let asked = Ask::get(CREATE).header("Idempotency-Key", "k");
        let reply = server.ask(&Ask { method: "POST", ..asked }.body(body));
        assert_eq!(reply.code(), 1100, "{:?}: {reply:?}", String::from_utf8_lossy(body));
        assert!(!reply.json()["message"].as_str().unwrap().is_empty());
    }
    assert_eq!(server.get("/v1/keys").json()["live_count"], 0);
    assert_eq!(server.create("k", "a.csv").code(), 0);
}

#[test]
fn a_job_that_never_was_is_no_job() {
    let place = Place::new();
    let server = place.serve();
    for id in ["1", "77", "0", "-1", "x", "18446744073709551616"] {
        assert_eq!(server.post(DESCRIBE, &json!({ "jobId": id })).code(), 2100, "{id}");
        let path = format!("/v1/jobs/{id}");
        server.get(&path).problem(404, "not-found");
    }
    assert_eq!(server.post(DESCRIBE, &json!({})).code(), 1100);
    assert_eq!(server.post(DESCRIBE, &json!({ "jobId": 77 })).code(), 2100);
}

#[test]
fn jobs_come_page_by_page_the_newest_first() {
    let place = Place::new();
    place.rows("a.csv", 3);
    let server = place.serve();
    let jobs: Vec<String> = (0..5)
        .map(|number| {
            let collection = if number % 2 == 0 { "even" } else { "odd" };
            let body = json!({ "collectionName": collection, "files": [["a.csv"]] });
            done(&server, &body)
        })
        .collect();
    let list = |body: Value| {
        let data = server.post(LIST, &body).data();
        let records = data["records"].as_array().unwrap().clone();
        let ids: Vec<String> =
            records.iter().map(|record| record["jobId"].as_str().unwrap().to_owned()).collect();
        (ids, data["count"].as_u64().unwrap())
    };
    let newest: Vec<String> = jobs.iter().rev().cloned().collect();
    assert_eq!(list(json!({})), (newest.clone(), 5));
    let page = |number| list(json!({ "pageSize": 2, "currentPage": number })).0;
    assert_eq!([page(1), page(2), page(3)].concat(), newest);
    assert!(page(4).is_empty() && page(u64::MAX).is_empty());
    assert_eq!(list(json!({ "collectionName": "odd" })).1, 2);
    assert_eq!(list(json!({ "collectionName": "none" })), (Vec::new(), 0));
    for wrong in [
        json!({ "pageSize": 0 }),
        json!({ "pageSize": 1001 }),
        json!({ "currentPage": 0 }),
        json!({ "pageSize": -1 }),
        json!({ "dbName": "other" }),
    ] {
        assert_eq!(server.post(LIST, &wrong).code(), 1100, "{wrong}");
    }
    let (mut found, mut path) = (Vec::new(), "/v1/jobs?limit=2".to_owned());
    loop {
        let page = server.get(&path).json();
        for job in page["jobs"].as_array().unwrap() {
            found.push(job["job_id"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["next_before"].as_str() else { break };
        path = format!("/v1/jobs?limit=2&before={next}");
    }
    assert_eq!(found, newest);
}

#[test]
fn what_is_no_route_says_so_in_the_form_of_its_family() {
    let place = Place::new();
    let server = place.serve();
    server.get("/v1/nothing").problem(404, "no-route");
    let other = server.post("/v1/keys", &json!({}));
    other.problem(405, "no-method");
    assert_eq!(other.header("allow"), Some("GET, HEAD"));
    let v2 = server.post("/v2/vectordb/collections/list", &json!({}));
    assert_eq!((v2.status, &v2.json()["code"]), (404, &12_404.into()));
    let v2 = server.get(CREATE);
    assert_eq!((v2.status, v2.header("allow")), (405, Some("POST")));
}

/// A value that cannot be read is not taken for one that is absent: a pager would begin anew.
#[test]
fn a_query_that_is_none_is_refused() {
    let place = Place::new();
    let server = place.serve();
    for path in [
        "/v1/jobs?before=%zz",
        "/v1/jobs?limit=%zz",
        "/v1/jobs?collection=%ff",
        "/v1/jobs?state=bogus",
        "/v1/jobs?state=completed",
        "/v1/keys/k?scope=%zz",
        "/v1/keys/k?type=%zz&scope=a:b",
    ] {
        server.get(path).problem(400, "invalid-input");
    }
    for path in ["/v1/jobs?state=Completed", "/v1/jobs?before=&limit=", "/v1/keys/k?other=%zz"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}
