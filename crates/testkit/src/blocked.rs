//! Calls that are sent and then never polled again, because their runtime hangs.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;

use tokio::runtime::Builder;

use crate::until::{PATIENCE, in_time};

/// Polls a call once, which sends its request.
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

/// A thread that has sent a call and hangs, with the call's runtime, until it may continue.
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
                sent.send(()).expect("the starter waits for it");
                if goes_on.recv().is_ok() {
                    in_time("the end of a call whose runtime goes on", call).await;
                }
            });
        });
        is_sent.recv_timeout(PATIENCE).expect("the call is sent");
        Blocked { go_on, thread }
    }

    /// Lets it continue, and waits for the call's end.
    ///
    /// # Panics
    /// If the call panics, or does not end.
    pub fn go_on(self) {
        self.go_on.send(()).expect("it waits for this");
        self.thread.join().expect("the call does not panic");
    }
}
