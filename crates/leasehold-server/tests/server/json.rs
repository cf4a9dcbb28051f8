//! Any JSON: well-formed requests go through unchanged, others are refused, and nothing is ever a 500.

use leasehold::wire;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::support::Server;

/// Numbers, mostly at the limits.
fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            0,
            1,
            50_000,
            600_000,
            600_001,
            1 << 31,
            1 << 32,
            1 << 53,
            u64::MAX - 1,
            u64::MAX
        ])
        .prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
    ]
}

fn limit() -> impl Strategy<Value = Value> {
    prop_oneof![Just(json!(0)), Just(json!(1)), any::<u32>().prop_map(Value::from)]
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<String>().prop_map(Value::from),
        Just(json!("")),
        Just(json!("\u{0}\u{1f}\"\\/\u{2028}é\u{10ffff}")),
        Just(json!("AAAAAAAAAAAAAAAAAAAAAA")),
    ]
}

fn mode() -> impl Strategy<Value = Value> {
    prop::sample::select(vec!["exclusive", "shared", "permit"]).prop_map(Value::from)
}

fn flag() -> impl Strategy<Value = Value> {
    any::<bool>().prop_map(Value::from)
}

/// Any JSON value.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        flag(),
        number(),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|n| json!(n)),
        text()
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

type Field = (&'static str, bool, BoxedStrategy<Value>);

fn must(name: &'static str, value: impl Strategy<Value = Value> + 'static) -> Field {
    (name, true, value.boxed())
}

fn may(name: &'static str, value: impl Strategy<Value = Value> + 'static) -> Field {
    (name, false, value.boxed())
}

/// Bodies with these fields; optional ones are sometimes missing.
fn object(fields: Vec<Field>) -> BoxedStrategy<Value> {
    fields.into_iter().fold(Just(json!({})).boxed(), |so_far, (name, always, value)| {
        let value = if always { value.prop_map(Some).boxed() } else { prop::option::of(value).boxed() };
        (so_far, value)
            .prop_map(move |(mut object, value)| {
                if let Some(value) = value {
                    object[name] = value;
                }
                object
            })
            .boxed()
    })
}

fn acquire() -> BoxedStrategy<Value> {
    object(vec![
        may("owner_id", text()),
        may("ttl_ms", number()),
        may("mode", mode()),
        may("limit", limit()),
        // So that no request really waits.
        may("wait_ms", Just(json!(0))),
        may("queue", number()),
        may("lease_id", text()),
        may("metadata", text()),
        may("repeat", flag()),
        may("attempt", number()),
        may("first", flag()),
    ])
}

fn renew(named: bool) -> BoxedStrategy<Value> {
    let mut fields = vec![
        may("lease_id", text()),
        may("extend_by_ms", number()),
        may("owner_id", text()),
        may("fencing_token", number()),
        may("shorten", number()),
        may("mode", mode()),
        may("limit", limit()),
        may("raise_fencing_token", number()),
        may("note", text()),
        may("note_revision", number()),
    ];
    if named {
        fields.push(may("lock_name", text()));
    }
    object(fields)
}

fn renew_many() -> BoxedStrategy<Value> {
    prop::collection::vec(renew(true), 0..4).prop_map(|leases| json!({ "leases": leases })).boxed()
}

fn release() -> BoxedStrategy<Value> {
    object(vec![
        may("lease_id", text()),
        may("owner_id", text()),
        may("fencing_token", number()),
        may("unanswered", number()),
        may("attempt", number()),
        may("note", text()),
        may("note_revision", number()),
    ])
}

fn lookup() -> BoxedStrategy<Value> {
    object(vec![may("lease_id", text())])
}

fn revoke() -> BoxedStrategy<Value> {
    object(vec![may("now", flag()), may("fencing_token", number())])
}

fn lease() -> Vec<Field> {
    vec![
        must("mode", mode()),
        may("limit", limit()),
        must("owner_id", text()),
        must("fencing_token", number()),
        must("renewals", number()),
        must("acquired_at_ms", number()),
    ]
}

fn acquired() -> BoxedStrategy<Value> {
    let mut fields = lease();
    for name in ["ttl_ms", "expires_in_ms", "lease_expiry_ms", "waited_ms"] {
        fields.push(must(name, number()));
    }
    fields.extend([must("acquired", flag()), must("lock_name", text()), must("lease_id", text())]);
    object(fields)
}

fn problem_fields() -> Vec<Field> {
    let status = any::<u16>().prop_map(Value::from);
    vec![
        must("error", text()),
        must("code", text()),
        must("retryable", flag()),
        // Older servers leave these out of some errors.
        may("type", text()),
        may("title", text()),
        may("status", status),
        may("detail", text()),
    ]
}

fn busy() -> BoxedStrategy<Value> {
    let mut fields = problem_fields();
    fields.extend([must("acquired", flag()), must("lock_name", text()), must("reason", text())]);
    fields.extend([must("current_owner_id", or_null(text())), must("current_expiry_ms", or_null(number()))]);
    fields.extend([must("current_expires_in_ms", or_null(number())), must("queue_length", number())]);
    fields.extend([must("queue_place", or_null(number())), must("recommended_retry_ms", number())]);
    object(fields)
}

fn or_null(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop_oneof![Just(Value::Null), value].boxed()
}

fn renewed() -> BoxedStrategy<Value> {
    let mut fields = vec![must("mode", mode()), may("limit", limit())];
    for name in ["lease_expiry_ms", "expires_in_ms", "fencing_token", "renewals", "acquired_at_ms"] {
        fields.push(must(name, number()));
    }
    fields.extend([must("renewed", flag()), must("lock_name", text())]);
    object(fields)
}

fn gone() -> BoxedStrategy<Value> {
    let mut fields = problem_fields();
    fields.extend([may("acquired", flag()), may("renewed", flag()), must("lock_name", text())]);
    fields.extend([must("reason", text()), must("gone", text())]);
    object(fields)
}

fn released() -> BoxedStrategy<Value> {
    object(vec![
        must("released", flag()),
        must("lock_name", text()),
        may("reason", text()),
        may("gone", text()),
    ])
}

fn lock() -> BoxedStrategy<Value> {
    let mut holder = lease();
    holder.extend([must("lease_digest", text()), must("expires_in_ms", or_null(number()))]);
    holder.extend([must("lease_expiry_ms", or_null(number())), must("metadata", or_null(text()))]);
    holder.push(must("revoked", flag()));
    let waiter = vec![
        must("lease_digest", text()),
        must("owner_id", text()),
        must("mode", mode()),
        may("limit", limit()),
        must("waited_ms", number()),
    ];
    let some = |one: BoxedStrategy<Value>| prop::collection::vec(one, 0..3).prop_map(Value::from);
    let mut fields = vec![must("holders", some(object(holder))), must("waiters", some(object(waiter)))];
    fields.extend([must("lock_name", text()), must("held", flag()), must("owner_id", or_null(text()))]);
    for name in ["fencing_token", "version", "last_fencing_token", "holder_count", "queue_length"] {
        fields.push(must(name, number()));
    }
    fields.push(must("lease_expiry_ms", or_null(number())));
    let note =
        object(vec![must("text", text()), must("fencing_token", number()), must("revision", number())]);
    fields.push(may("note", note));
    object(fields)
}

fn problem() -> BoxedStrategy<Value> {
    object(problem_fields())
}

fn check(cases: u32, bodies: &BoxedStrategy<Value>, test: impl Fn(Value)) {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
        .run(bodies, |body| {
            test(body);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

fn parse<T: DeserializeOwned>(body: &Value) -> serde_json::Result<T> {
    serde_json::from_str(&body.to_string())
}

/// Parsing and writing again gives the same value; only fields with their default may be left out.
fn round_trips<T: Serialize + DeserializeOwned>(bodies: &BoxedStrategy<Value>, strict: bool) {
    check(200, bodies, |body| {
        let read: T = parse(&body).unwrap_or_else(|error| panic!("{body}: {error}"));
        let written = serde_json::to_value(&read).unwrap();
        let fields = written.as_object().unwrap();
        for (name, value) in body.as_object().unwrap() {
            let same = fields.get(name).map_or(*value == json!(false), |now| now == value);
            assert!(same, "{name} of {body} became {written}");
        }
        let again = serde_json::to_value(parse::<T>(&written).unwrap()).unwrap();
        assert_eq!(again, written);
        // An unknown field is refused in a request, because it may be a misspelt option, and ignored in an answer,
        // because a newer server may say more.
        let mut more = body.clone();
        more["no_such_field"] = json!(1);
        assert_eq!(parse::<T>(&more).is_err(), strict, "{more}");
    });
}

#[test]
fn requests_round_trip_through_json_and_refuse_unknown_fields() {
    round_trips::<wire::Acquire>(&acquire(), true);
    round_trips::<wire::Renew>(&renew(true), true);
    round_trips::<wire::RenewMany>(
        &prop::collection::vec(full_renewal(), 0..4).prop_map(|leases| json!({ "leases": leases })).boxed(),
        true,
    );
    round_trips::<wire::Release>(&release(), true);
    round_trips::<wire::Lookup>(&lookup(), true);
    round_trips::<wire::Revoke>(&revoke(), true);
    round_trips::<wire::NoFields>(&Just(json!({})).boxed(), true);
}

/// With the fields that are always written.
fn full_renewal() -> BoxedStrategy<Value> {
    object(vec![must("lock_name", text()), must("lease_id", text()), must("extend_by_ms", number())])
}

#[test]
fn answers_round_trip_through_json_and_allow_new_fields() {
    round_trips::<wire::Acquired>(&acquired(), false);
    round_trips::<wire::Busy>(&busy(), false);
    round_trips::<wire::Renewed>(&renewed(), false);
    round_trips::<wire::LeaseGone>(&gone(), false);
    round_trips::<wire::Released>(&released(), false);
    round_trips::<wire::Lock>(&lock(), false);
    round_trips::<wire::Problem>(&problem(), false);
    let listed = object(vec![
        must("locks", prop::collection::vec(lock(), 0..3).prop_map(Value::from).boxed()),
        must("next_cursor", or_null(text())),
        may("age_ms", number()),
    ]);
    round_trips::<wire::Listed>(&listed, false);
    let found =
        object(vec![must("found", flag()), must("state", or_null(text())), must("lock", or_null(lock()))]);
    round_trips::<wire::Found>(&found, false);
    let numbers = |names: &[&'static str]| names.iter().map(|name| must(name, number())).collect::<Vec<_>>();
    round_trips::<wire::Swept>(
        &object(numbers(&["expired", "tickets", "counters", "held", "waiting"])),
        false,
    );
    let mut able = numbers(&["max_ttl_ms", "max_wait_ms"]);
    able.extend(["server", "version", "store", "time"].map(|name| must(name, text())));
    able.extend(
        ["fenced", "fifo", "shared", "downgrade", "find_by_id", "revoke", "detects_loss", "notes"]
            .map(|name| must(name, flag())),
    );
    able.extend([
        must("max_permits", limit()),
        must("min_validity_percent", any::<u8>().prop_map(Value::from)),
    ]);
    round_trips::<wire::Capabilities>(&object(able), false);
    let mut revoked = numbers(&["revoked"]);
    revoked.push(must("lock_name", text()));
    round_trips::<wire::Revoked>(&object(revoked), false);
}

/// The routes, with bodies that are nearly right for them.
fn routes() -> Vec<(&'static str, BoxedStrategy<Value>)> {
    vec![
        ("/v1/locks/a/acquire", acquire()),
        ("/v1/locks/a/renew", renew(false)),
        ("/v1/locks/a/release", release()),
        ("/v1/locks/b/revoke", revoke()),
        ("/v1/renew", renew_many()),
        ("/v1/leases/lookup", lookup()),
        ("/v1/sweep", Just(json!({})).boxed()),
    ]
}

/// A body with one field replaced by any value, or a field added.
fn bent(body: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (body, any::<prop::sample::Index>(), anything(), any::<String>())
        .prop_map(|(mut body, which, other, name)| {
            let fields: &mut Map<String, Value> = body.as_object_mut().unwrap();
            // With another `wait_ms` the request would really wait.
            let known: Vec<String> = fields.keys().filter(|name| *name != "wait_ms").cloned().collect();
            let name = if known.is_empty() { name } else { known[which.index(known.len())].clone() };
            fields.insert(name, other);
            body
        })
        .boxed()
}

#[test]
fn no_json_is_ever_a_500_and_every_answer_is_json() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start());
    for (path, good) in routes() {
        let bodies = prop_oneof![good.clone(), bent(good), anything()].boxed();
        check(150, &bodies, |body| {
            let answer = runtime.block_on(server.post(path, &body.to_string()));
            assert!((200..500).contains(&answer.status), "{path} {body}: {answer:?}");
            assert!(answer.body.is_object(), "{path} {body}: {answer:?}");
            if answer.status == 400 {
                answer.is_problem(400, "INVALID_ARGUMENT");
            }
        });
        let mut unknown = json!({});
        unknown["no_such_field"] = json!(1);
        runtime.block_on(server.post(path, &unknown.to_string())).is_problem(400, "INVALID_ARGUMENT");
    }
    // The server still works.
    assert_eq!(runtime.block_on(server.acquire("after")).status, 200);
}
