//! Wakes waiters in Redis: by messages on a channel that their client subscribes to.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use redis::aio::PubSubSink;
use tokio::time::timeout;

use super::fault;
use super::link::Link;
use super::route::Route;
use crate::backends::wakes::Subscribe;
use crate::error::{Error, ErrorKind, Result};

#[async_trait]
impl Subscribe for Route {
    type Connection = PubSubSink;

    /// In a cluster a message reaches all nodes, so any node will do.
    async fn subscribe(&self, channel: &str) -> Result<(PubSubSink, BoxStream<'static, String>)> {
        let mut last = Error::new(ErrorKind::Unavailable, "no node of the cluster is known");
        for link in self.known()? {
            match timeout(link.address.connect_timeout, subscribe(&link, channel)).await {
                Ok(Ok(made)) => return Ok(made),
                Ok(Err(error)) => last = error,
                Err(_) => {
                    last = Error::new(
                        ErrorKind::NetworkTimeout,
                        "Redis did not confirm the subscription in time",
                    )
                }
            }
        }
        Err(last)
    }

    async fn check(sink: &mut PubSubSink) -> bool {
        sink.ping::<redis::Value>().await.is_ok()
    }
}

async fn subscribe(link: &Arc<Link>, channel: &str) -> Result<(PubSubSink, BoxStream<'static, String>)> {
    let client = link.client().await?;
    let pubsub = client.get_async_pubsub().await.map_err(|fault| fault::connecting(&fault))?;
    let (mut sink, messages) = pubsub.split();
    sink.subscribe(channel).await.map_err(|fault| fault::connecting(&fault))?;
    let payload = |message: redis::Msg| String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
    Ok((sink, messages.map(payload).boxed()))
}
