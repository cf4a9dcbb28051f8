//! Leases and the state machine survive JSON unchanged.
#![cfg(feature = "serde")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Attempt, Claim, Release, Released, Renewed};
use leasehold::state::{Answer, Now, Op, State};
use leasehold::{Lease, LeaseId, Locks, Mode, Name};

#[tokio::test]
async fn a_lease_sent_as_json_to_another_client_still_works() {
    let locks = Locks::connect("memory:").await.unwrap();
    for (name, mode) in [
        ("job/ä\0\"'", Mode::Exclusive),
        ("shared", Mode::Shared),
        ("permit", Mode::Permit { limit: u32::MAX }),
    ] {
        let lease =
            locks.leasing(name).mode(mode).ttl(Duration::from_millis(90_500)).acquire().await.unwrap();
        let text = serde_json::to_string(&lease).unwrap();
        let read: Lease = serde_json::from_str(&text).unwrap();
        assert_eq!(read, lease);
        assert_eq!(read.name.as_str(), name);
        let mut parts = Lease::new(read.name.clone(), read.id, read.mode, read.fence, "me", read.ttl);
        (parts.owner, parts.expires_at_ms) = (Arc::clone(&read.owner), read.expires_at_ms);
        assert_eq!(parts, lease);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["lease_id"].as_str().unwrap().len(), LeaseId::LEN);
        assert_eq!((&json["ttl_ms"], &json["namespace"]), (&90_500.into(), &"leasehold".into()));
        assert!(json["fence"].is_u64());
        assert!(matches!(locks.renew(&read).await.unwrap(), Renewed::Held(_)));
        assert_eq!(locks.release(&read).await.unwrap(), Released::Done);
    }
}

#[test]
fn a_malformed_lease_is_refused() {
    let good = r#"{"name":"x","lease_id":"AAAAAAAAAAAAAAAAAAAAAA","mode":"exclusive","fence":7,"owner":"o","ttl_ms":1}"#;
    assert_eq!(serde_json::from_str::<Lease>(good).unwrap().name, Name::new("x").unwrap());
    for bad in
        [good.replace("AAAAAA\"", "\""), good.replace("\"x\"", "\"\""), good.replace("exclusive", "other")]
    {
        assert!(serde_json::from_str::<Lease>(&bad).is_err(), "{bad}");
    }
}

#[test]
fn the_state_of_a_name_can_be_kept_as_one_record() {
    let name = Name::new("x").unwrap();
    let claim =
        |mode| Claim::new(name.clone(), mode, Duration::from_secs(1), "o").queued(Duration::from_secs(1));
    let (first, second) = (claim(Mode::Shared), claim(Mode::Exclusive));
    let now = Now { expiry: 5, wall: 1_793_000_000_000_000 };
    let mut state = State::new();
    // What a store with compare-and-swap does: read, apply, write.
    let mut apply = |op: Op<'_>| {
        let mut read: State = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        let mut wake = Vec::new();
        let answer = read.apply(now, op, &mut wake).unwrap();
        state = read;
        (answer, wake)
    };
    assert!(matches!(apply(Op::Acquire(&first)).0, Answer::Acquired(Attempt::Granted(_))));
    assert!(matches!(apply(Op::Acquire(&second)).0, Answer::Acquired(Attempt::Busy(_))));
    let (answer, wake) = apply(Op::Release(&Release::new(name.clone(), first.id)));
    assert!(matches!(answer, Answer::Released(Released::Done)));
    assert_eq!(wake, [second.id]);
    assert!(matches!(apply(Op::Acquire(&second)).0, Answer::Acquired(Attempt::Granted(_))));
}
