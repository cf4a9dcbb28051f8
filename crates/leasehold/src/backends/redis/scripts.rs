//! The scripts, one per verb, and how they are called.

use std::sync::LazyLock;

use redis::{Cmd, Script as Hashed};

/// A script and its hash.
pub(super) struct Script {
    source: &'static str,
    hash: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Script { source, hash: Hashed::new(source).get_hash().to_owned() }
    }

    /// Called by its hash, as it nearly always is known.
    pub(super) fn by_hash(&self, call: &Call) -> Cmd {
        call.command("EVALSHA", &self.hash)
    }

    /// Called by its text, which Redis then remembers.
    pub(super) fn by_text(&self, call: &Call) -> Cmd {
        call.command("EVAL", self.source)
    }
}

/// One call of a script: on which keys, with what.
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Call {
    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(verb);
        cmd.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        cmd
    }

    /// The key that says where this goes in a cluster.
    pub(super) fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }
}

macro_rules! script {
    ($short:expr, $verb:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(
                include_str!("scripts/head.lua"),
                $short,
                include_str!("scripts/name.lua"),
                include_str!($verb),
                include_str!("scripts/finish.lua")
            ))
        })
    };
}

pub(super) static ACQUIRE: LazyLock<Script> =
    script!(include_str!("scripts/acquire_free.lua"), "scripts/acquire.lua");
pub(super) static RENEW: LazyLock<Script> = script!("", "scripts/renew.lua");
pub(super) static RELEASE: LazyLock<Script> =
    script!(include_str!("scripts/release_alone.lua"), "scripts/release.lua");
pub(super) static REVOKE: LazyLock<Script> = script!("", "scripts/revoke.lua");
pub(super) static SWEEP: LazyLock<Script> = script!("", "scripts/sweep.lua");

pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/inspect.lua")));
