//! Calls that are sent and then left alone: their runtime does nothing more.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;

/// Long enough for the slowest machine; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls a call once, which sends what it has to send.
///
/// # Panics
/// If it is over by then.
pub async fn send(mut call: Pin<&mut impl Future>) {
    poll_fn(|cx| {
        assert!(call.as_mut().poll(cx).is_pending(), "the call is over already");
        Poll::Ready(())
    })
    .await;
}

/// A thread that has sent a call and hangs, with the call's runtime, until it may go on.
#[derive(Debug)]
pub struct Blocked {
    go_on: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Blocked {
    /// Sends this call, and hangs.
    ///
    /// # Panics
    /// If the call is over at once.
    pub fn in_call<F: Future>(call: impl FnOnce() -> F + Send + 'static) -> Self {
        let (sent, is_sent) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut call = pin!(call());
                send(call.as_mut()).await;
                sent.send(()).expect("somebody waits for it");
                if goes_on.recv().is_ok() {
                    tokio::time::timeout(PATIENCE, call).await.expect("it ends once its runtime goes on");
                }
            });
        });
        is_sent.recv().expect("the call is sent");
        Blocked { go_on, thread }
    }

    /// Lets it go on, and waits for the call's end.
    ///
    /// # Panics
    /// If the call panics, or does not end.
    pub fn go_on(self) {
        self.go_on.send(()).expect("it waits for this");
        self.thread.join().expect("the call does not panic");
    }
}
