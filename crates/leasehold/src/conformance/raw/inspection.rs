//! Checks of inspection, which changes nothing.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::backend::{Attempt, Backend as _, Claim, Liveness, Mode, NameInfo, Query, Release, Renewal};
use crate::conformance::trial::{
    NOT_FOUND, Shown, Task, Trial, busy, done, granted, held, not_done, not_held, only_holder,
};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

use super::exclusion::permit;

check_list! { Raw:
    a_name_nobody_ever_used_is_one_unused_item => "J7";
    inspecting_shows_the_holder_as_it_is => "10", Ttl;
    inspecting_shows_the_queue_in_order => "1 J4", Fifo, Ttl;
    holders_are_shown_oldest_first => "10", Shared, Ttl;
    of_many_holders_the_oldest_hundred_are_shown_and_all_counted => "10", Shared, Ttl;
    looking_changes_nothing => "3", Ttl;
    inspecting_by_id_finds_leases_and_places_and_nothing_else => "10", FindById;
    inspecting_by_prefix_pages_through_the_names_in_use_in_order => "10 I11", Ttl;
    what_is_found_is_in_use_whatever_goes_on_beside => "10 J7", Ttl;
    the_version_rises_with_every_change_of_a_lease => "4", Ttl;
    owner_and_metadata_can_be_any_text => "10 I11", Ttl;
    at_rest_nothing_is_left_but_the_fence => "5 J7";
}

async fn a_name_nobody_ever_used_is_one_unused_item(t: Trial) -> Shown {
    let name = t.name();
    let unused = NameInfo::unused(name.clone());
    // Verbs on unused names leave nothing behind either.
    for _ in 0..2 {
        let info = t.a.view(&name).await?;
        ensure!(info == unused, "a name nobody used is shown as {info:?}");
        let stray = t.claim(&name, Mode::Exclusive);
        not_held(t.a.keep(&stray).await, NOT_FOUND)?;
        not_done(t.a.end(&stray).await, NOT_FOUND)?;
    }
    Ok(())
}

async fn inspecting_shows_the_holder_as_it_is(t: Trial) -> Shown {
    let name = t.name();
    let mut claim = t.claim(&name, Mode::Exclusive);
    claim.metadata = Some("for the night".into());
    let grant = granted(t.a.try_acquire(&claim).await)?;
    let renewed = held(t.a.keep(&claim).await)?;
    let info = t.b.view(&name).await?;
    let holder = only_holder(&info)?;
    ensure!(holder.id == t.shown(claim.id), "another id is shown than the holder's");
    ensure!(holder.owner == claim.owner, "the owner is shown as {:?}", holder.owner);
    ensure!(holder.metadata == claim.metadata, "the metadata is shown as {:?}", holder.metadata);
    ensure!(!holder.revoked, "it is shown as revoked");
    ensure!(holder.grant.fence == grant.fence, "the fence is shown as {}", holder.grant.fence);
    ensure!(holder.grant.mode == claim.mode, "the mode is shown as {}", holder.grant.mode);
    ensure!(holder.grant.renewals == renewed.renewals, "the renewals are shown as {}", holder.grant.renewals);
    ensure!(holder.grant.acquired_at_ms == grant.acquired_at_ms, "the time of grant is shown as another");
    let (most, is) = (renewed.left.map(|left| left + t.ms(10)), holder.grant.left);
    ensure!(is.is_some() && is <= most, "at most {most:?} are left, and {is:?} is shown");
    ensure!(holder.grant.expires_at_ms.is_some(), "when it expires is not shown");
    ensure!(info.last_fence == grant.fence, "the last fence is shown as {}", info.last_fence);
    ensure!(info.queue_length == 0 && info.waiters.is_empty(), "nobody waits, and this is shown: {info:?}");
    Ok(())
}

async fn inspecting_shows_the_queue_in_order(t: Trial) -> Shown {
    let name = t.name();
    granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    let waiters: Vec<Claim> = (0..4)
        .map(|place| {
            let mut claim = t.queued(&name, Mode::Exclusive);
            claim.owner = format!("number {place}").into();
            claim
        })
        .collect();
    let sent = Instant::now();
    for waiter in &waiters {
        busy(t.b.try_acquire(waiter).await)?;
    }
    // Refreshing does not change the order.
    for waiter in waiters.iter().rev() {
        busy(t.b.try_acquire(waiter).await)?;
    }
    let info = t.a.view(&name).await?;
    let waited = sent.elapsed();
    ensure!(info.queue_length == 4, "four wait, and {} are counted", info.queue_length);
    ensure!(info.waiters.len() == 4, "four wait, and {} are shown", info.waiters.len());
    for (waiter, shown) in waiters.iter().zip(&info.waiters) {
        ensure!(shown.owner == waiter.owner, "{:?} is shown in the place of {:?}", shown.owner, waiter.owner);
        ensure!(shown.id == t.shown(waiter.id), "another id is shown than that of {:?}", waiter.owner);
        ensure!(shown.mode == waiter.mode, "{:?} is shown to wait for {}", waiter.owner, shown.mode);
        let most = waited + waited / 50 + t.ms(10);
        ensure!(
            shown.waited <= most,
            "it is shown to wait for {:?}, and it came {waited:?} ago",
            shown.waited
        );
    }
    Ok(())
}

async fn holders_are_shown_oldest_first(t: Trial) -> Shown {
    let name = t.name();
    let readers: Vec<Claim> = (0..5).map(|_| t.claim(&name, Mode::Shared)).collect();
    for reader in &readers {
        granted(t.a.try_acquire(reader).await)?;
    }
    // Neither a renewal nor a raised fence makes a holder younger.
    held(t.a.keep(&readers[0]).await)?;
    if t.judges("fences", t.info.fenced) {
        let mut raise = Renewal::new(name.clone(), readers[0].id, readers[0].ttl);
        raise.raise_fence = Some(Fence::new(t.b.view(&name).await?.last_fence.get() + 256));
        held(t.a.renew_one(&raise).await)?;
    }
    done(t.a.end(&readers[2]).await)?;
    let shown: Vec<LeaseId> = t.b.view(&name).await?.holders.iter().map(|holder| holder.id).collect();
    let right = [0, 1, 3, 4].map(|reader: usize| t.shown(readers[reader].id));
    ensure!(shown == right, "the holders are not shown in the order of their grants");
    Ok(())
}

async fn of_many_holders_the_oldest_hundred_are_shown_and_all_counted(t: Trial) -> Shown {
    const ALL: usize = 105;
    let name = t.name();
    let mode = if t.info.max_permits < ALL as u32 { Mode::Shared } else { permit(ALL as u32) };
    let claims: Vec<Claim> = (0..ALL).map(|_| t.claim(&name, mode)).collect();
    for claim in &claims {
        granted(t.a.try_acquire(claim).await)?;
    }
    // A holder that renews stays as old as it was, and one that ends makes room.
    held(t.a.keep(&claims[1]).await)?;
    done(t.a.end(&claims[0]).await)?;
    let ids = |info: &NameInfo| info.holders.iter().map(|holder| holder.id).collect::<Vec<_>>();
    let oldest: Vec<LeaseId> = claims[1..101].iter().map(|claim| t.shown(claim.id)).collect();
    let exact = t.judges("what is shown at once after a change", t.is_exact());
    if !exact {
        t.until(&name, "the nodes agree", |info| ids(info) == oldest).await?;
    }
    let counts = |count: u64| count == 104 || !exact && (100..105).contains(&count);
    let info = t.b.view(&name).await?;
    ensure!(counts(info.holder_count), "104 hold it, and {} are counted", info.holder_count);
    ensure!(info.holders.len() == 100, "{} holders are shown, not a hundred", info.holders.len());
    ensure!(ids(&info) == oldest, "other holders are shown than the oldest, in the order of their grants");
    for place in if t.judges("finding a lease by its id", t.info.find_by_id) {
        vec![1, 100, 101, 104]
    } else {
        Vec::new()
    } {
        let asked = claims[place].id;
        let found = t.b.inspect(&Query::LeaseId(asked)).await?.items;
        ensure!(found.len() == 1, "lease {place} of {ALL} is found {} times", found.len());
        // A caller that asks by the id sees it.
        let (mut right, found) = (oldest.clone(), &found[0]);
        right[(place - 1).min(99)] = asked;
        ensure!(ids(found).contains(&asked), "lease {place} of {ALL} is asked for, and not shown");
        ensure!(found.holders.len() <= 100, "{} holders are shown, not a hundred", found.holders.len());
        if exact {
            ensure!(ids(found) == right, "other holders are shown when lease {place} of {ALL} is asked for");
            ensure!(found.holder_count == 104, "104 hold it, and {} are counted", found.holder_count);
        }
    }
    Ok(())
}

async fn looking_changes_nothing(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&claim).await)?;
    let before = t.b.view(&name).await?;
    let prefix = Query::Prefix { stored: name.stored().to_owned(), limit: 5, cursor: None };
    for _ in 0..3 {
        t.a.inspect(&prefix).await?;
        if t.judges("finding a lease by its id", t.info.find_by_id) {
            t.a.inspect(&Query::LeaseId(claim.id)).await?;
        }
        t.a.view(&name).await?;
    }
    let after = t.b.view(&name).await?;
    ensure!(
        after.version == before.version || !t.is_exact(),
        "looking changed version {} to {}",
        before.version,
        after.version
    );
    let (before, after) = (&only_holder(&before)?.grant, &only_holder(&after)?.grant);
    ensure!(after.renewals == before.renewals, "looking renewed the lease");
    let most = before.left.map(|left| left + t.ms(10));
    ensure!(after.left <= most, "looking changed the time left from {:?} to {:?}", before.left, after.left);
    Ok(())
}

async fn inspecting_by_id_finds_leases_and_places_and_nothing_else(t: Trial) -> Shown {
    let find = async |id: LeaseId| -> Result<Option<NameInfo>, Failure> {
        let mut found = t.b.inspect(&Query::LeaseId(id)).await?.items;
        ensure!(found.len() <= 1, "one id is found on {} names", found.len());
        Ok(found.pop())
    };
    let names = [t.name(), t.name()];
    let claims = [t.claim(&names[0], Mode::Exclusive), t.claim(&names[1], Mode::Exclusive)];
    for claim in &claims {
        ensure!(find(claim.id).await?.is_none(), "an id that claimed nothing yet is found");
        granted(t.a.try_acquire(claim).await)?;
    }
    for claim in &claims {
        let found = find(claim.id).await?;
        let right = found.as_ref().is_some_and(|found| found.name == claim.name);
        ensure!(right, "a lease is not found where it is, but at {found:?}");
    }
    if t.judges("places in a queue", t.info.fifo && t.info.liveness == Liveness::Ttl) {
        let waiter = t.queued(&names[0], Mode::Exclusive);
        busy(t.a.try_acquire(&waiter).await)?;
        let found = find(waiter.id).await?;
        let right = found.as_ref().is_some_and(|found| found.name == names[0]);
        ensure!(right, "a place in the queue is not found where it is, but at {found:?}");
        done(t.a.end(&waiter).await)?;
        ensure!(find(waiter.id).await?.is_none(), "a place that was given up is found");
    }
    done(t.a.end(&claims[0]).await)?;
    ensure!(find(claims[0].id).await?.is_none(), "a released lease is found");
    ensure!(find(LeaseId::random()).await?.is_none(), "an id nobody has is found");
    Ok(())
}

/// All names in use that begin with this, page by page.
pub(super) async fn list(t: &Trial, prefix: &str, limit: usize) -> Result<Vec<Name>, Failure> {
    Ok(list_all(t, prefix, limit).await?.into_iter().map(|info| info.name).collect())
}

/// The same, with all that is shown of them.
pub(super) async fn list_all(t: &Trial, prefix: &str, limit: usize) -> Result<Vec<NameInfo>, Failure> {
    let stored = Name::stored_prefix(t.namespace(), prefix)?;
    let (mut items, mut cursor) = (Vec::new(), None);
    let began = Instant::now();
    for _ in 0..1000 {
        let query = Query::Prefix { stored: stored.clone(), limit, cursor: cursor.clone() };
        let page = t.b.inspect(&query).await?;
        // An older list may lack names that were taken since; a sweep brings it up to date.
        if page.age.is_some_and(|age| age >= began.elapsed()) {
            t.b.sweep().await?;
            continue;
        }
        ensure!(page.items.len() <= limit, "a page of {limit} has {} items", page.items.len());
        items.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(items);
        }
    }
    Err(Failure::new(format!("the pages of {prefix:?} do not end")))
}

async fn inspecting_by_prefix_pages_through_the_names_in_use_in_order(t: Trial) -> Shown {
    let tag = t.name();
    // Characters that query languages take for a pattern, and letters that sort differently elsewhere.
    let ends = [
        "",
        "%",
        "_",
        "*",
        "?",
        "[a]",
        "\\",
        ".",
        "^",
        "x",
        "X",
        "a",
        "B",
        "é",
        "z",
        "\u{1f512}",
        "/",
        "//x",
    ];
    let names: BTreeSet<Name> = ends.iter().map(|end| t.exactly(&format!("{tag}{end}"))).collect();
    let mut claims = Vec::new();
    for name in &names {
        let claim = t.claim(name, Mode::Exclusive);
        granted(t.a.try_acquire(&claim).await)?;
        claims.push(claim);
    }
    let right: Vec<Name> = names.iter().cloned().collect();
    for limit in [1, 4, 1000] {
        let listed = list(&t, tag.as_str(), limit).await?;
        ensure!(listed == right, "in pages of {limit} these are listed: {listed:?}");
    }
    let stored = Name::stored_prefix(t.namespace(), tag.as_str())?;
    let none = t.b.inspect(&Query::Prefix { stored, limit: 0, cursor: None }).await;
    let is_refused = none.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidArgument);
    ensure!(is_refused, "a page without room for a name must be InvalidArgument, not {none:?}");
    for pattern in ["%", "_", "*", "?", "[", "\\", ".", "^", "X", "é"] {
        let prefix = format!("{tag}{pattern}");
        let listed = list(&t, &prefix, 4).await?;
        let right: Vec<Name> =
            names.iter().filter(|name| name.as_str().starts_with(&prefix)).cloned().collect();
        ensure!(listed == right, "these are listed as beginning with {prefix:?}: {listed:?}");
    }
    // Only names in use are listed; a name with a waiter is in use.
    for claim in claims.iter().skip(1) {
        done(t.a.end(claim).await)?;
    }
    let listed = list(&t, tag.as_str(), 4).await?;
    ensure!(listed == [claims[0].name.clone()], "one is in use, and these are listed: {listed:?}");
    Ok(())
}

async fn what_is_found_is_in_use_whatever_goes_on_beside(t: Trial) -> Shown {
    let tag = t.name();
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let (t, name) = (t.clone(), t.exactly(&format!("{tag}-{number}")));
            let rounds = t.rounds(200);
            t.clone().spawn(async move {
                for _ in rounds {
                    let claim = t.claim(&name, Mode::Exclusive);
                    granted(t.a.try_acquire(&claim).await)?;
                    tokio::task::yield_now().await;
                    done(t.a.end(&claim).await)?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    let stored = Name::stored_prefix(t.namespace(), tag.as_str())?;
    while !tasks.iter().all(Task::is_finished) {
        let page = t.b.inspect(&Query::Prefix { stored: stored.clone(), limit: 10, cursor: None }).await?;
        for info in page.items {
            ensure!(!info.holders.is_empty(), "a name that nobody uses is listed: {info:?}");
            let id = info.holders[0].id;
            if t.info.find_by_id && t.info.shows_ids {
                for found in t.b.inspect(&Query::LeaseId(id)).await?.items {
                    let there = found.holders.iter().any(|holder| holder.id == id);
                    ensure!(there, "a lease is found by its id where it is not: {found:?}");
                }
            }
        }
        tokio::task::yield_now().await;
    }
    for task in tasks {
        t.soon("the end of the stress", task).await???;
    }
    Ok(())
}

async fn the_version_rises_with_every_change_of_a_lease(t: Trial) -> Shown {
    let name = t.name();
    let mut last = t.b.view(&name).await?.version;
    let mut rises = async |what: &str, should: bool| -> Shown {
        let version = if should && !t.is_exact() {
            t.until(&name, "the version rises", |info| info.version > last).await?.version
        } else {
            t.b.view(&name).await?.version
        };
        let right = if should { version > last } else { version == last || !t.is_exact() };
        ensure!(right, "after {what} the version went from {last} to {version}");
        last = version;
        Ok(())
    };
    let claim = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&claim).await)?;
    rises("a grant", true).await?;
    busy(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    rises("a refused attempt", false).await?;
    granted(t.a.try_acquire(&claim).await)?;
    rises("a repeat", false).await?;
    held(t.a.keep(&claim).await)?;
    rises("a renewal", true).await?;
    not_held(t.a.keep(&t.claim(&name, Mode::Exclusive)).await, NOT_FOUND)?;
    rises("a refused renewal", false).await?;
    if t.judges("revocation", t.info.revoke) {
        t.b.revoke(&name, false, None).await?;
        rises("a revocation", true).await?;
    }
    done(t.a.end(&claim).await)?;
    rises("a release", true).await?;
    not_done(t.a.end(&claim).await, NOT_FOUND)?;
    rises("a refused release", false).await?;
    let grant = granted(t.a.try_acquire(&t.brief(&name, Mode::Exclusive)).await)?;
    rises("a grant", true).await?;
    t.past(Instant::now(), grant.left.unwrap_or_default()).await;
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    rises("an expiry and the next grant", true).await
}

async fn owner_and_metadata_can_be_any_text(t: Trial) -> Shown {
    let long = "m\u{e4}\0'\"\\".repeat(585); // 4095 bytes
    let texts = [
        "a'b",
        "\"quoted\"",
        "back\\slash",
        "{\"json\": [1]}",
        "line\nbreak\r\t",
        "nul\0nul",
        "\u{1f512} é",
        "%s $1 :x",
    ];
    for text in texts.into_iter().chain([long.as_str()]) {
        let name = t.name();
        let mut claim = t.claim(&name, Mode::Exclusive);
        claim.metadata = Some(text.into());
        if text.len() <= 256 {
            claim.owner = text.into();
        }
        granted(t.a.try_acquire(&claim).await)?;
        let info = t.b.view(&name).await?;
        let holder = only_holder(&info)?;
        ensure!(holder.owner == claim.owner, "the owner {:?} is shown as {:?}", claim.owner, holder.owner);
        ensure!(
            holder.metadata == claim.metadata,
            "metadata {:?} is shown as {:?}",
            claim.metadata,
            holder.metadata
        );
        let mut release = Release::new(name, claim.id);
        release.owner = Some(claim.owner.clone());
        done(t.a.release(&release).await)?;
    }
    Ok(())
}

async fn at_rest_nothing_is_left_but_the_fence(t: Trial) -> Shown {
    let name = t.name();
    let claims: Vec<Claim> = (0..4).map(|_| t.queued(&name, Mode::Exclusive)).collect();
    let mut highest = Fence::UNFENCED;
    for claim in &claims {
        if let Attempt::Granted(grant) = t.a.try_acquire(claim).await? {
            highest = highest.max(grant.fence);
        }
    }
    // The ones behind give up first, so that none is let in meanwhile.
    for claim in claims[1..].iter().rev() {
        t.a.end(claim).await?;
    }
    done(t.a.end(&claims[0]).await)?;
    let info = t.b.view(&name).await?;
    let free = info.holders.is_empty() && info.waiters.is_empty() && info.queue_length == 0;
    ensure!(free, "everybody has gone, and this is left: {info:?}");
    if t.judges("fences", t.info.fenced) {
        ensure!(info.last_fence == highest, "the last fence was {highest}, and {} is left", info.last_fence);
    }
    Ok(())
}
