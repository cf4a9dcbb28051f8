//! The example of `docs/adding-a-backend.md` keeps every promise.

#[path = "../examples/own_backend.rs"]
#[allow(dead_code)] // its `main`
mod own_backend;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_an_own_backend_keeps_every_promise() {
    let report = own_backend::suite().await.unwrap();
    println!("{report}");
    report.assert_passed();
}
