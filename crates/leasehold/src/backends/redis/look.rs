//! Lists and inspects many names: for people, not for locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answers;
use super::calls;
use super::known::Known;
use super::link::Link;
use super::route::Route;
use super::{fault, keys};
use crate::backend::Page;
use crate::error::Result;
use crate::name::Name;

/// How many keys one SCAN looks at, and how many names are sent together: few enough not to hold up others.
pub(super) const AT_ONCE: usize = 500;

/// How long to look for the names of one page, since many may not be in use. Then the page ends. With the look under
/// way this stays within the 5 s that a request has by default.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// The heads of all names whose stored form begins with this.
async fn names(route: &Route, prefix: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for link in route.everywhere().await? {
        let mut cursor = String::from("0");
        loop {
            let (next, mut keys) = scan(&link, &keys::pattern(prefix), &cursor).await?;
            found.append(&mut keys);
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
    }
    Ok(found)
}

/// One step of a walk through the keys of a server. Returns the next cursor ("0": the walk is over) and the keys
/// found.
pub(super) async fn scan(link: &Arc<Link>, pattern: &str, cursor: &str) -> Result<(String, Vec<String>)> {
    let mut cmd = redis::cmd("SCAN");
    cmd.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(AT_ONCE).arg("TYPE").arg("string");
    let (next, keys): (String, Vec<Vec<u8>>) =
        redis::from_redis_value(link.send(&cmd).await?.value).map_err(|_| fault::strange())?;
    // A key that belongs to no name of ours is another program's.
    Ok((next, keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect()))
}

/// A page of the names in use, in the order of their stored forms: the known names while this client sweeps, otherwise
/// by a walk.
pub(super) async fn page(
    route: &Route,
    known: &Known,
    prefix: &str,
    limit: usize,
    cursor: Option<&str>,
) -> Result<Page> {
    let began = Instant::now();
    let mut page = Page { age: known.age(), ..Page::default() };
    let walked = match page.age {
        Some(_) => Vec::new(),
        None => walked(route, prefix).await?,
    };
    let mut after = cursor.unwrap_or_default().to_owned();
    loop {
        let some = match page.age {
            Some(_) => known.after(prefix, &after, AT_ONCE)?,
            None => {
                walked.iter().filter(|name| name.stored() > after.as_str()).take(AT_ONCE).cloned().collect()
            }
        };
        let Some(last) = some.last() else { return Ok(page) };
        after = last.stored().to_owned();
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
        if began.elapsed() >= LOOK_FOR {
            page.next = Some(after);
            return Ok(page);
        }
    }
}

/// Walks through the keys for all names that begin with this, in order.
async fn walked(route: &Route, prefix: &str) -> Result<Vec<Name>> {
    let keys = names(route, prefix).await?;
    let of_key = |key: &String| Name::from_stored(&keys::stored(key)?).ok();
    let mut found: Vec<Name> =
        keys.iter().filter_map(of_key).filter(|name| name.stored().starts_with(prefix)).collect();
    // A walk may meet a key twice.
    found.sort_unstable_by(|a, b| a.stored().cmp(b.stored()));
    found.dedup();
    Ok(found)
}
