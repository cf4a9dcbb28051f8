//! Sweeping away what has expired, and counting it. Nothing depends on it but the figures.

use std::sync::Arc;
use std::time::Instant;

use leasehold::backend::Swept;
use serde::Serialize;

use crate::app::App;

#[derive(Serialize)]
struct Line {
    level: &'static str,
    op: &'static str,
    result: &'static str,
    expired: u64,
    tickets: u64,
    held: u64,
    waiting: u64,
    latency_ms: f64,
}

pub(crate) async fn once(app: &App) -> leasehold::Result<Swept> {
    let swept = app.ask("sweep", app.backend.sweep()).await?;
    app.metrics.swept(&swept);
    Ok(swept)
}

/// Sweeps until the server ends: at once, and then every so often.
pub(crate) async fn run(app: Arc<App>) {
    let mut ticks = tokio::time::interval(app.settings.sweep_every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.draining.cancelled() => return,
        }
        let began = Instant::now();
        let answer = once(&app).await;
        let latency_ms = (began.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        // A line for each sweep that found something or failed; two a second of nothing help nobody.
        if !matches!(&answer, Ok(swept) if swept.expired == 0) {
            let result = if answer.is_ok() { "success" } else { "fail" };
            let swept = answer.unwrap_or_default();
            app.settings.log.line(|| Line {
                level: if result == "success" { "info" } else { "warn" },
                op: "sweep",
                result,
                expired: swept.expired,
                tickets: swept.tickets,
                held: swept.held,
                waiting: swept.waiting,
                latency_ms,
            });
        }
    }
}
