//! A future that, if dropped early, runs to its end in the background.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

pub(super) struct Finish<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    home: Handle,
    begun: bool,
}

impl<T: Send + 'static> Finish<T> {
    pub(super) fn new(home: &Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Finish { work: Some(Box::pin(work)), home: home.clone(), begun: false }
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        // Work that never began has done nothing.
        if let Some(work) = self.work.take().filter(|_| self.begun) {
            self.home.spawn(async move { drop(work.await) });
        }
    }
}
