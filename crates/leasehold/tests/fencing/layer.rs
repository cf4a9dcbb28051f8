//! The `tower` layer: what it refuses, what it lets run at the same time, and what it remembers.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response};
use leasehold::{ErrorKind, Fencing, FencingLayer, Locks};
use parking_lot::Mutex;
use testkit::until::{in_time, until_async};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::util::BoxCloneService;
use tower::{Layer as _, ServiceExt as _};

type Inner = BoxCloneService<Request<()>, Response<String>, Infallible>;

/// A service behind the layer: each request waits for a permit, then answers.
struct Service {
    fencing: Fencing<Inner>,
    /// The headers of the requests that have reached the inner service, in order.
    entered: Arc<Mutex<Vec<String>>>,
    go: Arc<Semaphore>,
}

impl Service {
    fn new(layer: &FencingLayer, permits: usize) -> Self {
        let (entered, go) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Semaphore::new(permits)));
        let (seen, gate) = (Arc::clone(&entered), Arc::clone(&go));
        let inner = tower::service_fn(move |request: Request<()>| {
            let (seen, gate) = (Arc::clone(&seen), Arc::clone(&gate));
            async move {
                let header = request.headers().get("fencing-token");
                seen.lock().push(header.map_or("none", |value| value.to_str().unwrap()).to_owned());
                gate.acquire().await.unwrap().forget();
                Ok(Response::new("done".to_owned()))
            }
        });
        Service { fencing: layer.layer(BoxCloneService::new(inner)), entered, go }
    }

    fn send(&self, method: Method, path: &str, fences: &[&str]) -> JoinHandle<Response<String>> {
        let mut request = Request::builder().method(method).uri(path);
        for fence in fences {
            request = request.header("Fencing-Token", *fence);
        }
        let answer = self.fencing.clone().oneshot(request.body(()).unwrap());
        tokio::spawn(async move { answer.await.unwrap() })
    }

    fn put(&self, fence: &str) -> JoinHandle<Response<String>> {
        self.send(Method::PUT, "/report", &[fence])
    }

    async fn entered(&self, count: usize) -> Vec<String> {
        until_async("so many requests run", async || self.entered.lock().len() >= count).await;
        self.entered.lock().clone()
    }
}

/// Lets all tasks run as far as they can: they share this thread.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn status(answer: JoinHandle<Response<String>>) -> u16 {
    in_time("an answer", answer).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn answers_follow_the_fence_in_the_header() {
    let service = Service::new(&FencingLayer::by_path(), 100);
    for (fences, expected) in [
        (&["7"][..], 200),
        (&["000000000000007"], 200),
        (&["6"], 412),
        (&["000000000000006"], 412),
        (&[], 428),
        (&["7", "7"], 400),
        (&["7, 7"], 400),
        (&[""], 400),
        (&["seven"], 400),
        (&["-7"], 400),
        (&["0"], 400),
        (&["900000000000001"], 400),
        (&["900000000000000"], 200),
    ] {
        assert_eq!(status(service.send(Method::PUT, "/report", fences)).await, expected, "{fences:?}");
    }
    // Other paths are other resources, and reads need no fence.
    assert_eq!(status(service.send(Method::DELETE, "/other", &["1"])).await, 200);
    assert_eq!(status(service.send(Method::GET, "/report", &[])).await, 200);
    assert_eq!(service.entered.lock().len(), 5, "what was refused did not reach the service");
}

#[tokio::test]
async fn refusal_is_a_problem_that_names_the_highest_fence() {
    let service = Service::new(&FencingLayer::by_path(), 100);
    assert_eq!(status(service.put("459475822995123")).await, 200);
    let answer = service.put("459475822995008").await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let body: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
    assert_eq!((&body["status"], &body["code"]), (&412.into(), &"STALE_FENCE".into()), "{body}");
    assert_eq!(body["highest_fencing_token"], 459_475_822_995_123_u64);
    assert!(body["detail"].as_str().unwrap().contains("459475822995008 is stale"), "{body}");
}

#[tokio::test]
async fn a_higher_fence_runs_after_the_lower_ones_have_ended() {
    let service = Service::new(&FencingLayer::by_path(), 0);
    let (one, two) = (service.put("5"), service.put("5"));
    assert_eq!(service.entered(2).await, ["5", "5"], "one holder may do several things at once");
    let higher = service.put("6");
    settle().await;
    // From the moment that the higher one has arrived, the lower one is refused.
    assert_eq!(status(service.put("5")).await, 412);
    assert_eq!(service.entered.lock().len(), 2, "the higher fence ran beside lower ones");
    service.go.add_permits(1);
    until_async("one of them has ended", async || one.is_finished() || two.is_finished()).await;
    settle().await;
    assert_eq!(service.entered.lock().len(), 2, "the higher fence ran beside a lower one");
    service.go.add_permits(1);
    assert_eq!(service.entered(3).await[2], "6");
    service.go.add_permits(1);
    for answer in [one, two, higher] {
        assert_eq!(status(answer).await, 200);
    }
}

#[tokio::test]
async fn a_cancelled_request_holds_up_no_other() {
    let service = Service::new(&FencingLayer::by_path(), 0);
    let cancelled = service.put("5");
    service.entered(1).await;
    let waiting = service.put("6");
    let behind = service.put("7");
    settle().await;
    waiting.abort();
    cancelled.abort();
    assert_eq!(service.entered(2).await[1], "7");
    service.go.add_permits(1);
    assert_eq!(status(behind).await, 200);
}

#[tokio::test]
async fn marks_that_are_kept_outlive_the_layer() {
    let locks = Locks::connect("memory:").await.unwrap();
    let layer = || FencingLayer::by_path().keep_in(locks.clone()).unwrap();
    assert_eq!(status(Service::new(&layer(), 1).put("7")).await, 200);
    let restarted = Service::new(&layer(), 2);
    let answer = in_time("an answer", restarted.put("6")).await.unwrap();
    assert_eq!(answer.status(), 412);
    assert!(answer.body().contains("\"highest_fencing_token\":7"), "{}", answer.body());
    assert_eq!(status(restarted.put("7")).await, 200);
    // Without that, the first fence after a restart is believed.
    assert_eq!(status(Service::new(&FencingLayer::by_path(), 1).put("6")).await, 200);
}

#[tokio::test]
async fn marks_that_cannot_be_kept_refuse_the_request() {
    let mut server = testkit::redis::Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let service = Service::new(&FencingLayer::by_path().keep_in(locks).unwrap(), 2);
    assert_eq!(status(service.put("7")).await, 200);
    server.kill();
    assert_eq!(status(service.put("7")).await, 200, "this fence is kept already");
    assert_eq!(status(service.put("8")).await, 503);
    assert_eq!(service.entered.lock().len(), 2);
    let directory = tempfile::tempdir().unwrap();
    let file = Locks::connect(&format!("file:{}", directory.path().join("l").display())).await.unwrap();
    let error = FencingLayer::by_path().keep_in(file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
