//! The promises of the contract, shown on a directory of lock files.

use std::sync::Arc;

use leasehold::backend::{Backend, Query};
use leasehold::backends::file::Directory;
use leasehold::conformance::{Harness, run_all};

use crate::process::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn file_keeps_every_promise_it_makes() {
    let temp = TempDir::fast();
    // Two stores that know of each other only by the files, as in two processes.
    let connect = || async { Ok(Arc::new(Directory::open(temp.locks())?) as Arc<dyn Backend>) };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();
    let store = Directory::open(temp.locks()).unwrap();
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.held, swept.waiting), (0, 0), "{swept:?}");
    let all = Query::Prefix { stored: String::new(), limit: 10, cursor: None };
    assert!(store.inspect(&all).await.unwrap().items.is_empty());
}
