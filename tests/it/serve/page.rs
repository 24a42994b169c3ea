//! The page for people.

use serde_json::json;

use super::{Ask, OTHER, Place, TOKEN};

/// Base64 of a text whose length is a multiple of three.
fn basic(user: &str, token: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = format!("{user}:{token}");
    let mut out = String::from("Basic ");
    for three in text.as_bytes().chunks(3) {
        let bits =
            (0..3).fold(0_u32, |bits, at| bits << 8 | three.get(at).copied().map_or(0, u32::from));
        for at in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * at) & 63).unwrap();
            out.push(if at > three.len() { '=' } else { char::from(DIGITS[digit]) });
        }
    }
    out
}

#[test]
fn the_page_shows_jobs_the_window_and_channels_to_whoever_has_a_token() {
    let place = Place::new();
    place.rows("a.csv", 1234);
    place.source("b.jsonl", "{\"id\":1}\n{\"id\":\n");
    let server = place.serve();
    for (key, file) in [("good<key>", "a.csv"), ("bad", "b.jsonl")] {
        let job = server.create(key, file).data();
        server.over(job["jobId"].as_str().unwrap());
    }
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    for text in ["Completed", "1,234", "Failed", "b.jsonl", "c_v0", "live keys", "as default"] {
        assert!(page.body.contains(text), "{text}");
    }
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    assert!(!page.body.contains("<script"), "it works without");
    let found = server.get("/?key=good%3Ckey%3E").body;
    assert!(found.contains("good&lt;key&gt;") && !found.contains("<key>"), "escaped");
    assert!(found.contains("<b>done</b>") && found.contains("collection:1"));
    let unknown = server.get("/?key=never&scope=store:0").body;
    assert!(unknown.contains("<b>unknown</b>"));
    // Another principal has no jobs.
    let other = server.ask(&Ask::get("/").token(Some(OTHER)));
    assert!(other.body.contains("as other") && !other.body.contains("1,234"));
}

#[test]
fn a_browser_asks_for_the_token_as_a_password_there_and_nowhere_else() {
    let place = Place::new();
    let server = place.serve();
    let with = |path, header: &str| {
        server.ask(&Ask::get(path).token(None).header("Authorization", header)).status
    };
    for user in ["", "x", "ab", "abc", "a:b"] {
        let expect = if user == "a:b" { 401 } else { 200 };
        assert_eq!(with("/", &basic(user, TOKEN)), expect, "{user}");
    }
    assert_eq!(with("/", &basic("x", "wrong")), 401);
    assert_eq!(with("/", "Basic !"), 401);
    assert_eq!(with("/v1/jobs", &basic("x", TOKEN)), 401);
    let refused = server.ask(&Ask::get("/").token(None));
    // A line each: a browser looks at the first challenge of a line alone.
    let asks = refused.headers.iter().filter(|(name, _)| name == "www-authenticate");
    let asks: Vec<&str> = asks.map(|(_, value)| value.as_str()).collect();
    assert_eq!(asks, ["Bearer", "Basic realm=\"oncelog\""]);
    server.post("/", &json!({})).problem(405, "no-method");
}
