//! The Lua scripts, one per verb, and how to call them.

use std::borrow::Cow;
use std::sync::LazyLock;

use redis::{Cmd, Script as Hashed};

use super::keys;
use crate::bugs;
use crate::lease_id::LeaseId;

/// A script and its hash.
pub(super) struct Script {
    source: Cow<'static, str>,
    hash: String,
}

impl Script {
    fn new(which: &str, source: &'static str) -> Self {
        let source = bugs::edited(which, source);
        Script { hash: Hashed::new(&source).get_hash().to_owned(), source }
    }

    /// Calls the script by its hash, which the server nearly always knows.
    pub(super) fn by_hash(&self, call: &Call) -> Cmd {
        call.command("EVALSHA", &self.hash)
    }

    /// Calls the script by its text, which Redis then remembers.
    pub(super) fn by_text(&self, call: &Call) -> Cmd {
        call.command("EVAL", &self.source)
    }
}

/// One call of a script: its keys and its arguments.
pub(super) struct Call {
    pub(super) script: &'static Script,
    /// The head key of the name; its other keys follow from it.
    pub(super) key: String,
    /// The id whose key to the name is passed too.
    pub(super) finder: Option<LeaseId>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Call {
    fn command(&self, verb: &str, script: &str) -> Cmd {
        let keys = keys::SUFFIXES.len() + usize::from(self.finder.is_some());
        // Allocate room for all of it once.
        let longest = keys::SUFFIXES[keys::SUFFIXES.len() - 1].len().max(keys::finder_len()) + self.key.len();
        let size = script.len() + keys * longest + self.args.iter().map(Vec::len).sum::<usize>();
        let mut cmd = Cmd::with_capacity(3 + keys + self.args.len(), size + 2 * verb.len());
        cmd.arg(verb).arg(script).arg(keys);
        let mut key = String::with_capacity(longest);
        key.push_str(&self.key);
        for suffix in keys::SUFFIXES {
            key.truncate(self.key.len());
            key.push_str(suffix);
            cmd.arg(&key);
        }
        if let Some(id) = &self.finder {
            cmd.arg(keys::finder(id));
        }
        for arg in &self.args {
            cmd.arg(arg.as_slice());
        }
        cmd
    }

    /// The key that decides where this goes in a cluster.
    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

macro_rules! script {
    ($which:literal, $short:expr, $verb:literal) => {
        LazyLock::new(|| {
            let source = concat!(
                include_str!("scripts/head.lua"),
                $short,
                include_str!("scripts/name.lua"),
                include_str!($verb),
                include_str!("scripts/finish.lua")
            );
            Script::new($which, source)
        })
    };
}

pub(super) static ACQUIRE: LazyLock<Script> = script!(
    "redis acquire",
    concat!(include_str!("scripts/acquire_free.lua"), include_str!("scripts/acquire_queued.lua")),
    "scripts/acquire.lua"
);
pub(super) static RENEW: LazyLock<Script> = script!("redis renew", "", "scripts/renew.lua");
pub(super) static RELEASE: LazyLock<Script> =
    script!("redis release", include_str!("scripts/release_alone.lua"), "scripts/release.lua");
pub(super) static REVOKE: LazyLock<Script> = script!("redis revoke", "", "scripts/revoke.lua");
pub(super) static SWEEP: LazyLock<Script> = script!("redis sweep", "", "scripts/sweep.lua");

pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new("redis inspect", include_str!("scripts/inspect.lua")));

pub(super) static CHECK_FENCE: LazyLock<Script> =
    LazyLock::new(|| Script::new("redis check_fence", include_str!("scripts/check_fence.lua")));

#[cfg(all(test, feature = "__bugs"))]
mod tests {
    use super::*;

    #[test]
    fn every_defect_of_a_script_can_still_be_planted() {
        let scripts = [
            ("redis acquire", &ACQUIRE),
            ("redis renew", &RENEW),
            ("redis release", &RELEASE),
            ("redis revoke", &REVOKE),
            ("redis sweep", &SWEEP),
        ];
        let scripts = scripts.map(|(which, script)| (which, script.source.to_string()));
        crate::bugs::can_be_planted("redis", &scripts);
    }
}
