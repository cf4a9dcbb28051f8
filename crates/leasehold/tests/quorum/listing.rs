//! Listing, where a node looks through many names before it finds one in use.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Claim, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept, Wake,
};
use leasehold::backends::memory::Memory;
use leasehold::layers::quorum::{Node, Quorum};
use leasehold::{Fence, Info, Name, Result};

use crate::cluster::{claim, granted};

/// A store whose first page of any list has no name, and a next page.
#[derive(Debug)]
struct Sparse(Memory);

#[async_trait]
impl Backend for Sparse {
    fn info(&self) -> Info {
        self.0.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.0.try_acquire(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.0.wait(claim).await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        self.0.release(lease).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        self.0.revoke(name, now, only).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Prefix { cursor: None, .. } => {
                let mut page = Page::default();
                page.next = Some("/".into());
                Ok(page)
            }
            _ => self.0.inspect(query).await,
        }
    }

    async fn sweep(&self) -> Result<Swept> {
        self.0.sweep().await
    }
}

#[tokio::test]
async fn an_empty_page_of_a_node_does_not_end_the_list() {
    let nodes = (0..3).map(|_| Node::new(Arc::new(Sparse(Memory::new()))));
    let quorum = Quorum::new(nodes).unwrap();
    for on in ["a", "b", "c"] {
        granted(quorum.try_acquire(&claim(on)).await.unwrap());
    }
    let (mut found, mut cursor) = (Vec::new(), None);
    for _page in 0..10 {
        let query = Query::Prefix { stored: "/".into(), limit: 2, cursor };
        let page = quorum.inspect(&query).await.unwrap();
        found.extend(page.items.into_iter().map(|item| item.name.as_str().to_owned()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, ["a", "b", "c"]);
}
