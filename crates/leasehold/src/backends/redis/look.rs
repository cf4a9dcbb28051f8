//! Looking at many names: for people, not for locks. It walks all keys of the server.

use std::sync::Arc;

use super::answers::{self, Answer};
use super::calls;
use super::link::Link;
use super::route::Route;
use super::{fault, keys};
use crate::backend::{Page, Swept};
use crate::error::Result;
use crate::name::Name;

/// Keys that one SCAN looks at, and names that go out together: short enough not to hold up others.
const AT_ONCE: usize = 500;

/// The heads of all names whose stored form begins with this.
async fn names(route: &Route, prefix: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for link in route.everywhere().await? {
        scan(&link, &keys::pattern(prefix), &mut found).await?;
    }
    Ok(found)
}

async fn scan(link: &Arc<Link>, pattern: &str, found: &mut Vec<String>) -> Result<()> {
    let mut cursor = String::from("0");
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(AT_ONCE).arg("TYPE").arg("string");
        let answer: (String, Vec<Vec<u8>>) =
            redis::from_redis_value(link.send(&cmd).await?.value).map_err(|_| fault::strange())?;
        cursor = answer.0;
        // What no name of ours has for a key is somebody else's.
        found.extend(answer.1.into_iter().filter_map(|key| String::from_utf8(key).ok()));
        if cursor == "0" {
            return Ok(());
        }
    }
}

/// Names in use, in the order of their stored forms.
pub(super) async fn page(route: &Route, prefix: &str, limit: usize, cursor: Option<&str>) -> Result<Page> {
    let keys = names(route, prefix).await?;
    let mut found: Vec<Name> = keys
        .iter()
        .filter_map(|key| Name::from_stored(&keys::stored(key)?).ok())
        .filter(|name| {
            name.stored().starts_with(prefix) && cursor.is_none_or(|cursor| name.stored() > cursor)
        })
        .collect();
    // A walk may meet a key twice.
    found.sort_unstable_by(|a, b| a.stored().cmp(b.stored()));
    found.dedup();
    let mut page = Page::default();
    for some in found.chunks(AT_ONCE) {
        let calls: Vec<_> = some.iter().map(|name| calls::inspect(name, None)).collect();
        for (name, answer) in some.iter().zip(route.call_all(&calls).await) {
            let info = answers::inspected(answer?.value, name)?.info;
            if info.holders.is_empty() && info.queue_length == 0 {
                continue;
            }
            if page.items.len() >= limit {
                page.next = page.items.last().map(|info| info.name.stored().to_owned());
                return Ok(page);
            }
            page.items.push(info);
        }
    }
    Ok(page)
}

/// Settles every name; also says when the last was.
pub(super) async fn sweep(route: &Route) -> Result<(Swept, u64)> {
    let mut found = names(route, "").await?;
    found.sort_unstable();
    found.dedup();
    found.retain(|key| keys::stored(key).is_some_and(|stored| Name::from_stored(&stored).is_ok()));
    let (mut total, mut time) = (Swept::default(), 0);
    for some in found.chunks(AT_ONCE) {
        let calls: Vec<_> = some.iter().map(|key| calls::sweep(key.clone())).collect();
        for answer in route.call_all(&calls).await {
            let mut answer = Answer::new(answer?.value)?;
            time = answer.time().unwrap_or(time);
            total += answers::swept(&mut answer)?;
        }
    }
    Ok((total, time))
}
