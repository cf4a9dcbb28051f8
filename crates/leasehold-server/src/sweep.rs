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

/// Sweeps until the server ends: at once, and then every so often.
pub(crate) async fn run(app: Arc<App>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = app.draining.cancelled() => return,
        }
        let began = Instant::now();
        let answer = once(&app).await;
        let took = began.elapsed();
        pause = app.settings.sweep_every.max(took * PAUSE);
        // A line for each sweep that found something or failed; two a second of nothing help nobody.
        if !matches!(&answer, Ok(swept) if swept.expired == 0) {
            app.settings.log.line(|line| {
                line.text("level", if answer.is_ok() { "info" } else { "warn" });
                line.text("op", "sweep");
                line.text("result", if answer.is_ok() { "success" } else { "fail" });
                let swept = answer.unwrap_or_default();
                line.number("expired", swept.expired);
                line.number("tickets", swept.tickets);
                line.number("held", swept.held);
                line.number("waiting", swept.waiting);
                line.milliseconds("latency_ms", took);
            });
        }
    }
}
