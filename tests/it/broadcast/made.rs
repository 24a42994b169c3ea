//! What a request has made is made with its acceptance, or not at all.

use oncelog::ErrorKind;
use oncelog::broadcast::Request;

use super::desk::{Desk, request, scope};

fn asked(key: &str, vchannels: &[&str]) -> Request {
    let mut request = request(key, "p").making_vchannels();
    request.vchannels = vchannels.iter().map(|name| (*name).to_owned()).collect();
    request
}

fn vchannels(desk: &Desk) -> Vec<String> {
    desk.broadcaster.read(|state, _| state.vchannels().map(|(name, _)| name.to_owned()).collect())
}

/// A broadcast of an unknown type made its vchannels before it was refused.
#[test]
fn a_refused_request_makes_no_vchannel_and_an_accepted_one_does() {
    let desk = Desk::open();
    let mut unknown = asked("k", &["new"]);
    unknown.message_type = "Unknown".into();
    unknown.scope = Some(std::sync::Arc::new(oncelog::broadcast::Scope {
        message_type: "Unknown".into(),
        ..scope("k")
    }));
    let refused = desk.broadcaster.submit(&unknown, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    desk.script.validates(|| Err(oncelog::Error::invalid_input("no")));
    assert!(desk.broadcaster.submit(&asked("k", &["new"]), None).is_err());
    desk.script.rechecks(|| Err(oncelog::Error::invalid_input("no")));
    assert!(desk.broadcaster.submit(&asked("k", &["new"]), None).is_err());
    let mut large = asked("k", &["new"]);
    large.payload = vec![0; 17 << 20];
    assert_eq!(desk.broadcaster.submit(&large, None).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(
        desk.broadcaster.submit(&asked("k", &[""]), None).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(vchannels(&desk), ["a", "b"]);

    let answer = desk.broadcaster.submit(&asked("k", &["new", "a", "newer"]), None).unwrap();
    assert_eq!(answer.channels.len(), 3);
    assert_eq!(desk.copies(answer.id), 3);
    // One batch: whatever crashes, there is no acceptance without its vchannels.
    let desk = desk.reopen();
    assert_eq!(vchannels(&desk), ["a", "b", "new", "newer"]);
    assert!(desk.broadcaster.submit(&asked("k", &["new", "a", "newer"]), None).unwrap().duplicated);
    let unmade = request("other", "p");
    let mut unmade = unmade;
    unmade.vchannels = vec!["none".into()];
    assert_eq!(desk.broadcaster.submit(&unmade, None).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_checkpoint_that_is_written_meanwhile_does_not_know_what_is_made() {
    let desk = Desk::open();
    for key in 0..8 {
        let name = format!("made {key}");
        std::thread::scope(|threads| {
            let written = threads.spawn(|| desk.broadcaster.checkpoint());
            drop(desk.broadcaster.submit(&asked(&name, &[&name]), None).unwrap());
            written.join().unwrap().unwrap();
        });
    }
    desk.broadcaster.checkpoint().unwrap();
    desk.broadcaster.close().unwrap();
    assert!(desk.view().verify_checkpoints().unwrap() > 0);
}
