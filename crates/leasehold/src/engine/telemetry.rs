//! The library's telemetry: `tracing` spans and events without names, and optional metrics. `docs/metrics.md` lists
//! them.
//!
//! Names appear only as their [`digest_name`](crate::digest_name), which is computed only if a subscriber listens.
//! Lease ids never appear.
//!
//! The subscriber and the recorder are the program's own code. A panic in them is contained here. On the thread that
//! renews leases, log lines and metrics go to the [`reporter`](crate::engine::reporter), so that a log or a recorder
//! that blocks delays no renewal.

use std::fmt::Display;
use std::time::Duration;

use tracing::Span;
use tracing::level_filters::LevelFilter;

use crate::backend::{Released, Renewed};
use crate::client::acquire::Request;
use crate::clock::{Clock, Moment};
use crate::engine::held::LostReason;
use crate::engine::reporter::{self, contained};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::options::ReleaseSource;

/// The log target of events about a lease. A program that reports on its leases itself can filter it out.
const LEASES: &str = "leasehold::lease";

const ACQUIRES: &str = "leasehold_acquire_total";
const RENEWALS: &str = "leasehold_renew_total";
const RELEASES: &str = "leasehold_release_total";
const STATES: &str = "leasehold_state_total";
const WAITS: &str = "leasehold_wait_seconds";
const HOLDS: &str = "leasehold_hold_seconds";

/// Counters and histograms, through the recorder that the program has installed.
#[cfg(feature = "metrics")]
mod measure {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use metrics::{Unit, describe_counter, describe_histogram};
    use parking_lot::Mutex;

    use crate::engine::reporter::{self, contained};

    /// The most durations that wait while the recorder is blocked. Further ones are dropped; counts never are.
    const MOST_TIMES: usize = 1024;

    thread_local! {
        static TALLY: Arc<Mutex<Tally>> = Arc::default();
    }

    /// What another thread is to record for this one. It is added up, so a recorder that blocks fills no memory.
    #[derive(Default)]
    struct Tally {
        /// By name, label and value.
        counts: BTreeMap<[&'static str; 3], u64>,
        times: Vec<(&'static str, Duration)>,
    }

    impl Tally {
        fn is_empty(&self) -> bool {
            self.counts.is_empty() && self.times.is_empty()
        }

        fn record(self) {
            for ([name, label, value], count) in self.counts {
                contained(|| metrics::counter!(name, label => value).increment(count));
            }
            for (name, span) in self.times {
                contained(|| metrics::histogram!(name).record(span.as_secs_f64()));
            }
        }
    }

    pub(super) fn count(name: &'static str, label: &'static str, value: &'static str) {
        measure(|tally| *tally.counts.entry([name, label, value]).or_default() += 1);
    }

    pub(super) fn time(name: &'static str, span: Duration) {
        measure(|tally| {
            if tally.times.len() < MOST_TIMES {
                tally.times.push((name, span));
            }
        });
    }

    fn measure(add: impl FnOnce(&mut Tally)) {
        let kept = if reporter::is_beside() { TALLY.try_with(Arc::clone).ok() } else { None };
        let Some(kept) = kept else {
            let mut tally = Tally::default();
            add(&mut tally);
            return tally.record();
        };
        let mut tally = kept.lock();
        let is_first = tally.is_empty();
        add(&mut tally);
        drop(tally);
        // Otherwise a report that will take it is under way already.
        if is_first {
            reporter::call_back(move || {
                let tally = std::mem::take(&mut *kept.lock());
                tally.record();
            });
        }
    }

    pub(crate) fn describe() {
        describe_counter!(super::ACQUIRES, "Acquires that ended, by result");
        describe_counter!(super::RENEWALS, "Renewals that were answered or given up, by result");
        describe_counter!(super::RELEASES, "Releases of guards and plain leases, by result");
        describe_counter!(super::STATES, "Changes in what guards believe of their leases, by new state");
        describe_histogram!(super::WAITS, Unit::Seconds, "From the start of an acquire to its end");
        describe_histogram!(super::HOLDS, Unit::Seconds, "From the grant of a guard to its release or drop");
    }
}

#[cfg(not(feature = "metrics"))]
mod measure {
    use std::time::Duration;

    pub(super) fn count(_: &'static str, _: &'static str, _: &'static str) {}

    pub(super) fn time(_: &'static str, _: Duration) {}

    pub(crate) fn describe() {}
}

/// Describes the metrics to the program's recorder. Done for each client, since the recorder may be installed late.
pub(crate) use measure::describe;

/// An acquire under way, which is reported once, however it ends. If it is dropped before, it was aborted.
pub(crate) struct Acquiring<'a> {
    pub(crate) span: Span,
    name: &'a Name,
    clock: &'a dyn Clock,
    started: Moment,
    told: bool,
}

impl<'a> Acquiring<'a> {
    pub(crate) fn new(request: &Request<'a>, name: &'a Name, started: Moment) -> Self {
        let client = request.client;
        let span = contained(|| {
            tracing::debug_span!(
                "leasehold.acquire",
                scheme = client.info.scheme,
                name_hash = name.hash(),
                mode = %request.mode
            )
        })
        .unwrap_or_else(Span::none);
        Acquiring { span, name, clock: &*client.clock, started, told: false }
    }

    /// Reports the end: with this fence after so many attempts, with an error, or because another client holds the
    /// name.
    pub(crate) fn end(mut self, ended: std::result::Result<Option<(Fence, u32)>, &Error>) {
        match ended {
            Ok(Some((fence, attempts))) => {
                near_fence_limit(self.name, fence);
                self.tell("granted", |waited| tracing::debug!(%fence, attempts, ?waited, "lease granted"));
            }
            Ok(None) => self.tell("busy", |waited| {
                tracing::debug!(?waited, "lease not granted: another client holds it");
            }),
            Err(error) if error.kind() == ErrorKind::Aborted => self.abort(),
            Err(error) => self.tell("error", |waited| tracing::debug!(%error, ?waited, "acquire failed")),
        }
    }

    fn abort(&mut self) {
        self.tell("aborted", |waited| tracing::debug!(?waited, "acquire aborted"));
    }

    fn tell(&mut self, result: &'static str, event: impl FnOnce(Duration)) {
        self.told = true;
        let waited = self.clock.now().since(self.started);
        measure::count(ACQUIRES, "result", result);
        measure::time(WAITS, waited);
        // A panic here would lose a lease that was just granted.
        contained(|| self.span.in_scope(|| event(waited)));
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.abort();
        }
    }
}

/// Counts a renewal that was answered, or that timed out.
pub(crate) fn renewed(answer: Option<&Result<Renewed>>) {
    let result = match answer {
        Some(Ok(Renewed::Held(_))) => "ok",
        Some(Ok(Renewed::Gone(_))) => "gone",
        Some(Err(_)) | None => "error",
    };
    measure::count(RENEWALS, "result", result);
}

/// Counts a release, whether it succeeded or not; a guard's lease was held for this long.
pub(crate) fn released(name: &Name, answer: &Result<Released>, held: Option<Duration>) {
    let result = match answer {
        Ok(Released::Done) => "released",
        Ok(Released::Gone(_)) => "gone",
        Err(_) => "error",
    };
    measure::count(RELEASES, "result", result);
    if let Some(held) = held {
        measure::time(HOLDS, held);
    }
    let name = name.clone();
    let line = move || tracing::debug!(name_hash = name.hash(), result, ?held, "release ended");
    if LevelFilter::current() >= LevelFilter::DEBUG {
        reporter::log(line);
    } else {
        // No subscriber listens, so do not wake another thread for each release.
        contained(line);
    }
}

pub(crate) fn at_risk(name: &Name, fence: Fence, why: &dyn Display) {
    measure::count(STATES, "state", "at_risk");
    let (name, why) = (name.clone(), why.to_string());
    reporter::log(move || {
        tracing::warn!(target: LEASES, name_hash = name.hash(), %fence, %why, "lease at risk: the last renewal was not confirmed");
    });
}

pub(crate) fn held_again(name: &Name, fence: Fence) {
    measure::count(STATES, "state", "held_again");
    let name = name.clone();
    reporter::log(move || {
        tracing::info!(target: LEASES, name_hash = name.hash(), %fence, "lease held again: a renewal was confirmed");
    });
}

pub(crate) fn lost(name: &Name, fence: Fence, reason: Option<LostReason>) {
    measure::count(STATES, "state", "lost");
    let (name, reason) = (name.clone(), reason.map(LostReason::as_str));
    reporter::log(
        move || tracing::warn!(target: LEASES, name_hash = name.hash(), %fence, reason, "lease lost"),
    );
}

/// Reports that the background work of a client has ended before the client.
pub(crate) fn died() {
    reporter::log(|| {
        tracing::error!(
            target: LEASES,
            "the background work of a client has ended: its leases are lost, and it can acquire no more"
        );
    });
}

/// Logged where the callback is called, because they belong together.
pub(crate) fn release_failed(name: &Name, source: ReleaseSource, error: &Error) {
    contained(|| {
        tracing::warn!(
            target: LEASES,
            name_hash = name.hash(),
            source = source.as_str(),
            %error,
            "a release failed; the lease ends when its ttl passes"
        );
    });
}

fn near_fence_limit(name: &Name, fence: Fence) {
    if fence > Fence::WARN {
        contained(|| {
            tracing::warn!(target: "leasehold::fence", name_hash = name.hash(), %fence, "fence near its limit: a clock was far in the future");
        });
    }
}
