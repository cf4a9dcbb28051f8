//! Defects in scripts and SQL: each replaces a piece of the text.
//!
//! An edit is applied when a script is loaded. If the text to replace is missing, the defect can no longer be planted,
//! so loading the script panics.

use std::borrow::Cow;

use super::{Bug, on};

/// One replacement, and the scripts it applies to.
struct Edit {
    bug: Bug,
    scripts: &'static [&'static str],
    says: &'static str,
    instead: &'static str,
}

const fn edit(bug: Bug, scripts: &'static [&'static str], says: &'static str, instead: &'static str) -> Edit {
    Edit { bug, scripts, says, instead }
}

const ACQUIRE: &[&str] = &["redis acquire"];
const RENEW: &[&str] = &["redis renew"];
const RELEASE: &[&str] = &["redis release"];
const REVOKE: &[&str] = &["redis revoke"];
/// All scripts that settle a name and wake its waiters.
const VERBS: &[&str] = &["redis acquire", "redis renew", "redis release", "redis revoke", "redis sweep"];
const POSTGRES: &[&str] = &["postgres"];

const EDITS: &[Edit] = &[
    edit(
        Bug::RedisReleasesWithoutId,
        RELEASE,
        "if alone == id and not ARGV[3] then",
        "if alone and not ARGV[3] then",
    ),
    edit(Bug::RedisReleasesWithoutId, RELEASE, "if alone == id then\n  lease =", "if alone then\n  lease ="),
    edit(Bug::RedisRenewsExpired, RENEW, "if due <= now then\n  repeat", "if false then\n  repeat"),
    edit(
        Bug::RedisDropsFence,
        RELEASE,
        "call('SET', name, pack(PLAIN, PLAIN_MARK, fence, version + 1, keep), 'KEEPTTL')",
        "call('DEL', name)",
    ),
    edit(Bug::RedisPublishesNothing, VERBS, "call('PUBLISH', t.channel, t.number)", ""),
    edit(Bug::RedisPublishesNothing, RELEASE, "call('PUBLISH', channel, number)", ""),
    edit(
        Bug::RedisRepeatsAnew,
        ACQUIRE,
        "answer = { 1, l.fence, l.mode, l.expires - now,",
        "answer = { 1, l.fence, l.mode, ttl,",
    ),
    edit(
        Bug::RedisOnePermitTooMany,
        ACQUIRE,
        "return count < tonumber(string.sub(mode, 2))",
        "return count <= tonumber(string.sub(mode, 2))",
    ),
    edit(Bug::RedisIgnoresQueue, ACQUIRE, "if waiting == 0 or place == 0 then", "if true then"),
    edit(Bug::RedisIgnoresQueue, ACQUIRE, "if mode == 'x' and ARGV[3] and waiting > 0 and", "if false and"),
    edit(
        Bug::RedisRevokesAtOnce,
        REVOKE,
        "local at_once, only = ARGV[2] == '1',",
        "local at_once, only = true,",
    ),
    edit(Bug::RedisRepeatsAsShared, ACQUIRE, "answer = { 1, l.fence, l.mode,", "answer = { 1, l.fence, 's',"),
    edit(
        Bug::RedisReleasesTwice,
        RELEASE,
        "answer = { 3, why or has_expired and 'expired' or 'not_found', now }\n    if unanswered",
        "answer = now\n    if unanswered",
    ),
    edit(
        Bug::RedisReadersShareTtl,
        RENEW,
        "call('ZADD', leases, 'XX', l.expires, id)",
        "for _, other in ipairs(call('ZRANGE', leases, 0, -1)) do
        local o = read_lease(call('HGET', rows, other))
        o.expires = math.max(o.expires, l.expires)
        call('ZADD', leases, 'XX', o.expires, other)
        call('HSET', rows, other, write_lease(o))
      end",
    ),
    edit(
        Bug::RedisRevokesPolitely,
        REVOKE,
        "local at_once, only = ARGV[2] == '1',",
        "local at_once, only = false,",
    ),
    edit(Bug::PostgresNotifiesNobody, POSTGRES, "count(pg_notify(channel, numbers))", "count(numbers)"),
    edit(
        Bug::PostgresRenewsExpired,
        POSTGRES,
        "IF n.next_expiry <= p_now OR n.next_lapse <= p_now OR n.next_forget <= p_now THEN",
        "IF false THEN",
    ),
    edit(
        Bug::PostgresReleasesWithoutId,
        POSTGRES,
        "WHERE name = p_name AND id = p_id AND fence = p_fence AND owner = coalesce(p_owner, owner)\n",
        "WHERE name = p_name\n",
    ),
    edit(
        Bug::PostgresReleasesWithoutId,
        POSTGRES,
        "            IF n.id = p_id THEN\n                -- 1. and 2.",
        "            IF true THEN\n                -- 1. and 2.",
    ),
    edit(
        Bug::PostgresLocksNoRow,
        POSTGRES,
        "WHERE name = p_name FOR UPDATE;\n    IF NOT FOUND THEN\n        n := leasehold.open_name(p_name);",
        "WHERE name = p_name;\n    IF NOT FOUND THEN\n        n := leasehold.open_name(p_name);",
    ),
    edit(
        Bug::PostgresFenceByClock,
        POSTGRES,
        "fence = greatest(fence + 1, leasehold.clock_fence(o_now)), version",
        "fence = leasehold.clock_fence(o_now), version",
    ),
    edit(
        Bug::PostgresFenceByClock,
        POSTGRES,
        "a.fence := greatest(n.fence + 1, leasehold.clock_fence(o_now));",
        "a.fence := leasehold.clock_fence(o_now);",
    ),
];

/// The script or SQL to run: `text`, unless a defect in `which` is planted.
pub(crate) fn edited(which: &str, text: impl Into<Cow<'static, str>>) -> Cow<'static, str> {
    let text = text.into();
    match Bug::ALL.iter().find(|bug| on(**bug)) {
        Some(bug) => with(*bug, which, text),
        None => text,
    }
}

/// `text` with the defect, if it belongs to the script `which`.
fn with(bug: Bug, which: &str, mut text: Cow<'static, str>) -> Cow<'static, str> {
    for edit in EDITS.iter().filter(|edit| edit.bug == bug && edit.scripts.contains(&which)) {
        assert!(text.contains(edit.says), "{which} does not say {:?} any more", edit.says);
        text = Cow::Owned(text.replace(edit.says, edit.instead));
    }
    text
}

/// Checks that every defect of these scripts can be planted. `store` is how their names begin.
#[cfg(test)]
pub(crate) fn can_be_planted(store: &str, scripts: &[(&str, String)]) {
    for edit in EDITS.iter().filter(|edit| edit.scripts[0].starts_with(store)) {
        for script in edit.scripts {
            let text = scripts.iter().find(|(which, _)| which == script);
            let (_, text) = text.unwrap_or_else(|| panic!("there is no script {script}"));
            assert_ne!(&with(edit.bug, script, Cow::Owned(text.clone())), text, "{:?}", edit.bug);
        }
    }
}
