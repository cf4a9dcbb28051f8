//! Wakes waiters in PostgreSQL: by notifications on a channel that their client listens to.

use std::future::ready;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use tokio_postgres::{AsyncMessage, Client};

use crate::backends::postgres::connect::Reached;
use crate::backends::postgres::{Address, fault};
use crate::backends::wakes::Subscribe;
use crate::error::{Error, ErrorKind, Result};

/// The prefix of channel names. With an id behind it, the name fits into the 63 bytes of an identifier.
pub(super) const PREFIX: &str = "leasehold_";

/// How long the server may take to confirm that it listens: as long as to connect.
const LISTEN_LIMIT: Duration = Duration::from_secs(5);

#[async_trait]
impl Subscribe for Address {
    type Connection = Client;

    async fn subscribe(&self, channel: &str) -> Result<(Client, BoxStream<'static, String>)> {
        let Reached { client, mut protocol, .. } = self.connect().await?;
        let mut messages = stream::poll_fn(move |cx| protocol.poll_message(cx));
        let listen = format!("LISTEN \"{channel}\"");
        tokio::select! {
            answer = client.batch_execute(&listen) => answer.map_err(fault::statement)?,
            () = async { while let Some(Ok(_)) = messages.next().await {} } => {
                return Err(failed("the PostgreSQL server has closed the connection for wake-ups"));
            }
            () = tokio::time::sleep(LISTEN_LIMIT) => {
                return Err(failed("the PostgreSQL server took too long to listen for wake-ups"));
            }
        }
        let payload = |message| match message {
            Ok(AsyncMessage::Notification(note)) => Some(note.payload().to_owned()),
            _ => None,
        };
        let messages = messages.take_while(|message| ready(message.is_ok()));
        Ok((client, messages.filter_map(move |message| ready(payload(message))).boxed()))
    }

    async fn check(client: &mut Client) -> bool {
        client.check_connection().await.is_ok()
    }
}

fn failed(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
