//! Sweeps expired leases and counts them. Only the metrics depend on it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Swept;
use tokio::time::Instant;

use crate::app::App;

pub(crate) async fn once(app: &App) -> leasehold::Result<Swept> {
    let swept = app.ask("sweep", app.backend.sweep()).await?;
    app.metrics.swept(&swept);
    Ok(swept)
}

/// The pause after a sweep is this many times as long as the sweep. A sweep may walk through all names of a store; so
/// sweeps take a twentieth of the store's time, however many names there are.
const PAUSE: u32 = 19;

/// The longest pause, however long the sweep took: the metrics are never older than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long to wait after a sweep, whether it succeeded or not. A store that is too slow for a sweep needs the pause
/// most.
fn pause(every: Duration, took: Duration) -> Duration {
    every.max(took.saturating_mul(PAUSE).min(LONGEST_PAUSE))
}

/// Sweeps at once and then repeatedly until the server ends.
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
        wait = pause(app.settings.sweep_every, took);
        // Log only sweeps that found something or failed; two empty lines a second help nobody.
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
    use leasehold::Locks;
    use leasehold::backend::Backend;
    use leasehold::backends::memory::Memory;
    use leasehold::clock::TokioClock;
    use testkit::faulty::{Act, Faulty, Verb};

    use super::*;
    use crate::settings::Settings;

    #[tokio::test(start_paused = true)]
    async fn sweeps_that_time_out_leave_the_store_most_of_its_time() {
        let store = Faulty::new(Memory::new(), Arc::new(TokioClock::new()));
        // The store never answers, so each call takes its full time limit.
        store.always(Verb::Other, Act::Never);
        let locks = Locks::builder(Arc::new(store.clone()) as Arc<dyn Backend>).build();
        let app = App::new(locks, Settings::default()).unwrap();
        let (hour, call) = (Duration::from_secs(3600), app.call);
        tokio::time::timeout(hour, run(app)).await.unwrap_err();
        let sweeps = store.count(Verb::Other);
        let share = call.as_secs_f64() * sweeps as f64 / hour.as_secs_f64();
        assert!(share < 0.1, "{sweeps} sweeps had {share} of the store's time");
        assert!(sweeps >= 3600 / 66, "only {sweeps} sweeps in an hour");
    }

    #[test]
    fn a_long_sweep_is_followed_by_a_longer_pause() {
        let every = Duration::from_millis(500);
        let after = |took| pause(every, Duration::from_millis(took)).as_millis();
        assert_eq!([after(0), after(26), after(27)], [500, 500, 513]);
        assert_eq!([after(1_000), after(10_000)], [19_000, 60_000]);
        let seldom = Duration::from_secs(600);
        assert_eq!(pause(seldom, Duration::from_secs(10)), seldom);
    }
}
