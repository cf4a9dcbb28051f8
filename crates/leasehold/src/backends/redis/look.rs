//! Lists and inspects many names: for people, not for locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answers;
use super::calls;
use super::fault;
use super::known::{Known, range};
use super::link::Link;
use super::list::Lists;
use super::route::Route;
use crate::backend::{Page, PageBuilder};
use crate::error::Result;
use crate::name::Name;

/// How many keys one SCAN looks at, and how many names at most are sent together: few enough not to hold up others.
pub(super) const AT_ONCE: usize = 500;

/// How many names a page asks for first. What each of them has is unknown: 400 KB, or nothing.
const FIRST: usize = 16;

/// The size that the answers of one part should have, because calls on the same connection wait behind them.
const PART_BYTES: usize = 512 * 1024;

/// How long to look for the names of one page, since many may not be in use. Then the page ends. With the look under
/// way this stays within the 5 s that a request has by default.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// Where a list begins, for a caller whose first page came before its names: before every name, and not empty, since
/// an empty cursor could pass for none.
const BEGINNING: &str = "\0";

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

/// A page of the names in use, in the order of their stored forms. The names are the known ones while this client
/// sweeps, and otherwise those of a walk; while that is under way, a page has none.
pub(super) async fn page(
    route: &Route,
    known: &Known,
    lists: &Arc<Lists>,
    prefix: &str,
    limit: usize,
    cursor: Option<&str>,
) -> Result<Page> {
    let began = Instant::now();
    let mut page = PageBuilder::new(limit)?;
    let mut age = known.age();
    let mut walked = None;
    if age.is_none() {
        let Some(names) = lists.names(route, cursor.is_none(), began + LOOK_FOR).await? else {
            let next = Some(cursor.unwrap_or(BEGINNING).to_owned());
            return Ok(Page { next, ..page.finish() });
        };
        known.walked(names.began, &names.all);
        age = names.age;
        walked = Some(names.all);
    }
    let mut after = cursor.unwrap_or_default().to_owned();
    let mut count = FIRST;
    loop {
        let some = match &walked {
            None => known.after(prefix, &after, count)?,
            Some(names) => {
                let some = names.range::<str, _>(range(prefix, &after)).take(count);
                let some = some.take_while(|name| name.starts_with(prefix));
                some.map(|name| Name::from_stored(name)).collect::<Result<_>>()?
            }
        };
        let Some(last) = some.last() else { return Ok(Page { age, ..page.finish() }) };
        after = last.stored().to_owned();
        let calls: Vec<_> = some.iter().map(|name| calls::inspect(name, None)).collect();
        let mut bytes = 0;
        for (name, answer) in some.iter().zip(route.call_all(&calls).await) {
            let info = answers::inspected(answer?.value, name)?.info;
            bytes += info.size();
            let is_used = !info.holders.is_empty() || info.queue_length > 0;
            if is_used && !page.take(info) {
                return Ok(Page { age, ..page.finish() });
            }
        }
        count = next_count(count, bytes);
        if began.elapsed() >= LOOK_FOR {
            return Ok(Page { age, next: Some(after), ..page.finish() });
        }
    }
}

/// How many names to ask for after a part of this many names, whose answers had this many bytes.
fn next_count(count: usize, bytes: usize) -> usize {
    if bytes < PART_BYTES { (count * 2).min(AT_ONCE) } else { (count / 2).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_small_answers_and_shrink_with_large_ones() {
        let small = std::iter::successors(Some(FIRST), |count| Some(next_count(*count, count * 100)));
        assert_eq!(small.take(7).collect::<Vec<_>>(), [16, 32, 64, 128, 256, 500, 500]);
        let large = std::iter::successors(Some(FIRST), |count| Some(next_count(*count, count * 400_000)));
        assert_eq!(large.take(6).collect::<Vec<_>>(), [16, 8, 4, 2, 1, 2]);
    }
}
