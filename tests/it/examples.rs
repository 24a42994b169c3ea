//! The examples do what they say, also when they are run again.

use crate::cli::{fresh, run};

#[path = "../../examples/append.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod append;
#[path = "../../examples/broadcast.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod broadcast;

#[test]
fn an_embedder_appends_and_reads_back_over_several_runs() {
    let (dir, log) = fresh("log");
    let shown = || {
        let mut out = Vec::new();
        append::run(&dir.path().join("log"), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let first = "1 12A: Ada\n2 12B: Bob\n3 12C: Cy\n";
    assert_eq!(shown(), first);
    assert_eq!(shown(), format!("{first}4 12A: Ada\n5 12B: Bob\n6 12C: Cy\n"));
    assert_eq!(run(&["verify", &log], b"").code, 0);
}

#[test]
fn an_embedder_sends_once_however_often_it_asks() {
    let (dir, store) = fresh("store");
    for first in ["false", "true"] {
        let mut out = Vec::new();
        broadcast::run(&dir.path().join("store"), &mut out).unwrap();
        let answer = |duplicated| {
            let places = "  north at LSN 1\n  south at LSN 2\n";
            format!("broadcast 1, duplicated: {duplicated}\n{places}")
        };
        assert_eq!(String::from_utf8(out).unwrap(), answer(first) + &answer("true"));
    }
    assert_eq!(run(&["verify", &store], b"").code, 0);
}
