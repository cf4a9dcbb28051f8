//! Sweeping away what has expired, and counting it. Nothing depends on it but the figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::Swept;

use crate::app::App;

pub(crate) async fn once(app: &App) -> leasehold::Result<Swept> {
    let swept = app.ask("sweep", app.backend.sweep()).await?;
    app.metrics.swept(&swept);
    Ok(swept)
}

/// A sweep may walk through all names of a store. However many there are, the pause after it is so many times as long.
const PAUSE: u32 = 19;

/// The longest pause, whatever made a sweep so long: the figures are never older than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long to wait after a sweep. One that failed took as long as the store did not answer, which says nothing
/// about the next one.
fn pause(every: Duration, took: Duration, is_done: bool) -> Duration {
    if is_done { every.max(took.saturating_mul(PAUSE).min(LONGEST_PAUSE)) } else { every }
}

/// Sweeps until the server ends: at once, and then every so often.
pub(crate) async fn run(app: Arc<App>) {
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = app.draining.cancelled() => return,
        }
        let began = Instant::now();
        let answer = once(&app).await;
        let took = began.elapsed();
        wait = pause(app.settings.sweep_every, took, answer.is_ok());
        // A line for each sweep that found something or failed; two a second of nothing help nobody.
        if !matches!(&answer, Ok(swept) if swept.expired == 0) {
            app.settings.log.line(|line| {
                line.text("level", if answer.is_ok() { "info" } else { "warn" });
                line.text("op", "sweep");
                line.text("result", if answer.is_ok() { "success" } else { "fail" });
                if let Ok(swept) = &answer {
                    line.number("expired", swept.expired);
                    line.number("tickets", swept.tickets);
                    line.number("held", swept.held);
                    line.number("waiting", swept.waiting);
                }
                line.milliseconds("latency_ms", took);
                if let Err(error) = &answer {
                    // Messages hold no names, ids or passwords; sources may.
                    line.text("error", error.message());
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sweep_is_followed_by_a_longer_pause_and_one_that_failed_is_not() {
        let every = Duration::from_millis(500);
        let after = |took, is_done| pause(every, Duration::from_millis(took), is_done).as_millis();
        assert_eq!([after(0, true), after(26, true), after(27, true)], [500, 500, 513]);
        assert_eq!([after(1_000, true), after(10_000, true)], [19_000, 60_000]);
        assert_eq!([after(1, false), after(30_000, false)], [500, 500]);
        let seldom = Duration::from_secs(600);
        assert_eq!(pause(seldom, Duration::from_secs(10), true), seldom);
    }
}
