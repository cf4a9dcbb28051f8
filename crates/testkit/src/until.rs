//! Bounded waits: a test waits for exactly what it needs to see, and fails with its description if that never comes.

use std::time::{Duration, Instant};

/// How long anything may take. Far more than a loaded machine needs, so that running out of it means a defect.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How often a condition is checked.
const LOOK: Duration = Duration::from_millis(2);

/// Blocks the thread until the condition holds.
///
/// # Panics
/// If it does not hold within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(PATIENCE, what, is_so);
}

/// As [`until`], with another limit.
///
/// # Panics
/// If the condition does not hold in time.
#[track_caller]
pub fn until_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < patience, "not within {patience:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Blocks the thread until a guard is renewed, given its `valid_for`. That time falls; only a renewal makes it rise.
///
/// # Panics
/// If the guard is not renewed within [`PATIENCE`].
#[track_caller]
pub fn until_renewed(valid_for: impl Fn() -> Option<Duration>) {
    let mut last = valid_for();
    until("the guard is renewed", || {
        let before = std::mem::replace(&mut last, valid_for());
        last > before
    });
}

/// The result of work that has to end, done on a separate thread, so that work that hangs fails.
///
/// # Panics
/// If the work panics, or does not end within [`PATIENCE`].
#[track_caller]
pub fn in_time_blocking<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(work);
    until(what, || thread.is_finished());
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits until the condition holds, without blocking the thread. A check that hangs counts as false.
///
/// # Panics
/// If the condition does not hold within [`PATIENCE`].
pub async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    in_time(what, async {
        while !is_so().await {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await
}

/// The result of a future that has to end.
///
/// # Panics
/// If it does not end within [`PATIENCE`].
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(result) => result,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

/// The result of a future that has to end, and how long it took, in steps of 10 ms. A time in which this whole process
/// was stopped counts as one step, so that a bound holds on a busy machine too.
///
/// # Panics
/// If it does not end within [`PATIENCE`].
pub async fn lived<T>(future: impl Future<Output = T>) -> (T, Duration) {
    const STEP: Duration = Duration::from_millis(10);
    let mut future = std::pin::pin!(future);
    let mut took = Duration::ZERO;
    in_time("it ends", async {
        loop {
            tokio::select! {
                biased;
                result = future.as_mut() => return (result, took),
                () = tokio::time::sleep(STEP) => took += STEP,
            }
        }
    })
    .await
}
