//! The marks of a Redis: a key for each resource, which nothing forgets.

use async_trait::async_trait;
use redis::Value;

use super::{Redis, calls, fault};
use crate::error::Result;
use crate::fence::Fence;
use crate::marks::{Checked, Marks, WriteFence};
use crate::name::Name;

#[async_trait]
impl Marks for Redis {
    async fn check(&self, resource: &Name, fence: WriteFence) -> Result<Checked> {
        let call = calls::check_fence(resource, fence.get());
        let routes = self.routes();
        let reply = match &routes.confirmed {
            None => routes.plain.call(&call).await?,
            Some(confirmed) => {
                let reply = confirmed.grants.call(&call).await?;
                // Where replicas must confirm leases, they must confirm marks too.
                confirmed.confirm(&reply).await?;
                reply
            }
        };
        match reply.value {
            Value::Int(highest) => {
                let highest = u64::try_from(highest).map_err(|_| fault::strange())?;
                Ok(Checked::against(fence, Fence::new(highest)))
            }
            _ => Err(fault::strange()),
        }
    }
}
