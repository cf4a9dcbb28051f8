//! Checks of leases as plain data, and of lookups.

use std::time::Instant;

use crate::backend::{Gone, Liveness, Released, Renewed};
use crate::conformance::trial::{Shown, Trial};
use crate::conformance::{Failure, check_list, ensure};
use crate::name::{Name, digest_name};

use super::{gets_it, is_released};

check_list! { Client:
    a_plain_lease_is_renewed_and_released_as_data => "4 I5";
    a_plain_lease_is_renewed_and_released_by_its_id => "4 I5", FindById;
    what_is_held_is_seen_and_nothing_secret_is_shown => "10";
    what_is_held_is_listed => "10 I11", Ttl;
    a_lease_is_looked_up_by_its_id => "10", FindById;
}

async fn a_plain_lease_is_renewed_and_released_as_data(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let Some(lease) = one.leasing(name.as_str()).try_acquire().await? else {
        return Err(Failure::new("a free lock was not given".into()));
    };
    ensure!(other.leasing(name.as_str()).try_acquire().await?.is_none(), "a lease was given twice");
    match one.renew(&lease).await? {
        Renewed::Held(grant) => {
            ensure!(
                grant.fence == lease.fence,
                "renewing changed the fence {} to {}",
                lease.fence,
                grant.fence
            )
        }
        gone => return Err(Failure::new(format!("a fresh lease cannot be renewed: {gone:?}"))),
    }
    let released = one.release(&lease).await?;
    ensure!(released == Released::Done, "a live lease cannot be released: {released:?}");
    let again = (one.renew(&lease).await?, one.release(&lease).await?);
    let gone = (Renewed::Gone(Gone::NotFound), Released::Gone(Gone::NotFound));
    ensure!(again == gone, "after its release, renewing and releasing said {again:?}");
    let next = t.soon("the next lease", other.leasing(name.as_str()).acquire()).await??;
    ensure!(
        !t.judges("fences", t.info.fenced) || next.fence > lease.fence,
        "after {} came the fence {}",
        lease.fence,
        next.fence
    );
    other.release(&next).await?;
    Ok(())
}

async fn a_plain_lease_is_renewed_and_released_by_its_id(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let lease = one.leasing(name.as_str()).acquire().await?;
    let renewed = other.renew_by_id(lease.id, t.long()).await?;
    ensure!(matches!(renewed, Renewed::Held(_)), "a lease cannot be renewed by its id: {renewed:?}");
    let released = other.release_by_id(lease.id).await?;
    ensure!(released == Released::Done, "a lease cannot be released by its id: {released:?}");
    let again = other.release_by_id(lease.id).await?;
    ensure!(again == Released::Gone(Gone::NotFound), "a released lease was released again: {again:?}");
    ensure!(!t.a.is_held(&name).await?, "released by its id, and still held");
    Ok(())
}

async fn what_is_held_is_seen_and_nothing_secret_is_shown(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    ensure!(!other.is_locked(name.as_str()).await?, "a name nobody used is locked");
    ensure!(other.lookup(name.as_str()).await?.is_none(), "a name nobody used has a lease");
    let guard = gets_it(&t, &one, &name).await?;
    ensure!(other.is_locked(name.as_str()).await?, "a held lock is not seen");
    let Some(info) = other.lookup(name.as_str()).await? else {
        return Err(Failure::new("a held lock cannot be looked up".into()));
    };
    ensure!(info.name_hash == digest_name(name.as_str()), "the name's hash is {}", info.name_hash);
    if t.info.liveness == Liveness::Ttl {
        let fence = Some(guard.fence()).filter(|fence| !fence.is_unfenced());
        ensure!(info.fence == fence, "the fence is {fence:?}, and {:?} is shown", info.fence);
        ensure!(info.lease_id_hash == t.shown(guard.lease_id()).hash(), "another lease is shown");
    }
    let shown = format!("{info:?} {guard:?}");
    ensure!(!shown.contains(guard.lease_id().expose()), "the lease id is shown: {shown}");
    is_released(guard.release().await?)?;
    ensure!(!other.is_locked(name.as_str()).await?, "a released lock is seen as held");
    ensure!(other.lookup(name.as_str()).await?.is_none(), "a released lease can be looked up");
    Ok(())
}

async fn what_is_held_is_listed(t: Trial) -> Shown {
    let tag = t.name();
    let (one, other) = t.clients();
    let names: Vec<Name> = (0..5).map(|number| t.exactly(&format!("{tag}-{number}"))).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(gets_it(&t, &one, name).await?);
    }
    let (mut listed, mut cursor) = (Vec::new(), None);
    let began = Instant::now();
    loop {
        let page = other.list(tag.as_str(), 2, cursor.clone()).await?;
        // An older list may lack names that were taken since; a sweep brings it up to date.
        if page.age.is_some_and(|age| age >= began.elapsed()) {
            other.sweep().await?;
            continue;
        }
        listed.extend(page.items.into_iter().map(|info| info.name));
        cursor = page.next;
        if cursor.is_none() || listed.len() > names.len() {
            break;
        }
    }
    ensure!(listed == names, "{names:?} are held, and {listed:?} are listed");
    for guard in guards {
        is_released(guard.release().await?)?;
    }
    let page = other.list(tag.as_str(), 10, None).await?;
    ensure!(page.items.is_empty() && page.next.is_none(), "all are released, and listed is {page:?}");
    Ok(())
}

async fn a_lease_is_looked_up_by_its_id(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    let id = guard.lease_id();
    ensure!(other.owns(id).await?, "a held lease is not found by its id");
    let found = other.lookup_by_id(id).await?;
    let right = found.as_ref().is_some_and(|info| info.name_hash == name.hash());
    ensure!(right, "the lease is found as {found:?}");
    is_released(guard.release().await?)?;
    ensure!(!other.owns(id).await?, "a released lease is found by its id");
    Ok(())
}
