//! Defects of stores: the state machine of a name, with a change to its rows, to the verb or to the answer.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::backend::{Attempt, Claim, Mode, Release, Released, Renewal, Renewed};
use leasehold::bugs::{Bug, on};
use leasehold::state::{Answer, LeaseRow, Now, Op, Row, State, TicketRow};
use leasehold::{Fence, LeaseId, Result};

/// Two claims this close to each other do not see each other: [`Bug::TwoWinners`], in microseconds.
const UNSEEN: u64 = 5000;

type Rows = Vec<(LeaseId, Row)>;

/// [`State::apply`], with a defect.
pub(crate) fn apply(state: &mut State, now: Now, op: Op<'_>, wake: &mut Vec<LeaseId>) -> Result<Answer> {
    let woken = wake.len();
    if on(Bug::TakeoverBeforeExpiry) {
        edit_leases(state, |lease| {
            if lease.expires <= now.expiry + lease.ttl / 4 {
                lease.expires = now.expiry;
            }
        });
    }
    let lapsed = if on(Bug::TicketsNeverLapse) { lapsed_tickets(state, now) } else { BTreeMap::new() };
    if !lapsed.is_empty() {
        edit_tickets(state, |id, ticket| {
            if lapsed.contains_key(id) {
                ticket.lapses = u64::MAX;
            }
        });
    }
    let answer = match op {
        Op::Acquire(claim) => acquire(state, now, claim, wake),
        Op::Renew(renewal) => renew(state, now, renewal.clone(), wake),
        Op::Release(release) => self::release(state, now, release.clone(), wake),
        other => state.apply(now, other, wake),
    };
    if !lapsed.is_empty() {
        edit_tickets(state, |id, ticket| {
            if let Some(lapses) = lapsed.get(id).filter(|_| ticket.lapses == u64::MAX) {
                ticket.lapses = *lapses;
            }
        });
    }
    if on(Bug::NobodyWoken) {
        wake.truncate(woken);
    }
    if on(Bug::SpentIdsGranted) {
        let kept = rows(state).into_iter().filter(|(_, row)| !matches!(row, Row::Spent(_)));
        *state = State::from_rows(state.last_fence(), state.version(), kept);
    }
    answer
}

/// What a restarted store finds of a name.
pub(crate) fn restarted(state: &State) -> State {
    let fence = if on(Bug::FenceInMemoryOnly) { Fence::UNFENCED } else { state.last_fence() };
    let kept = |row: &Row| !(on(Bug::LeasesInMemoryOnly) && matches!(row, Row::Lease(_)));
    let rows = rows(state).into_iter().filter(|(_, row)| kept(row));
    State::from_rows(fence, state.version(), rows).with_note(state.note().cloned())
}

fn acquire(state: &mut State, now: Now, claim: &Claim, wake: &mut Vec<LeaseId>) -> Result<Answer> {
    if let Some(Row::Lease(lease)) = state.row(&claim.id)
        && lease.expires > now.expiry
    {
        if on(Bug::RepeatBeginsAnew) {
            edit_lease(state, claim.id, |lease| lease.expires = now.expiry + lease.ttl);
        } else if on(Bug::RepeatGrantsAgain) {
            // The fence that a name without any lease would give.
            let mut empty = State::from_rows(state.last_fence(), state.version(), Rows::new());
            empty.apply(now, Op::Acquire(claim), &mut Vec::new())?;
            edit_lease(state, claim.id, |lease| lease.fence = empty.last_fence());
            *state = State::from_rows(empty.last_fence(), state.version(), rows(state));
        }
        return state.apply(now, Op::Acquire(claim), wake);
    }
    let leases: Vec<_> = leases(state).collect();
    let all_unseen = leases.iter().all(|(_, lease)| now.wall.abs_diff(lease.acquired_wall) < UNSEEN);
    let first = leases.first().map(|(id, _)| *id);
    let is_hidden = |id: LeaseId, row: &Row| match row {
        _ if id == claim.id => false,
        Row::Lease(_) | Row::Ticket(_) if on(Bug::TwoWinners) => all_unseen,
        Row::Lease(lease) if on(Bug::WriterAmongReaders) => {
            claim.mode == Mode::Exclusive && lease.mode == Mode::Shared
        }
        Row::Lease(_) => {
            on(Bug::OnePermitTooMany) && matches!(claim.mode, Mode::Permit { .. }) && first == Some(id)
        }
        Row::Ticket(_) => on(Bug::QueueIgnored),
        _ => false,
    };
    let (hidden, seen): (Rows, Rows) = rows(state).into_iter().partition(|(id, row)| is_hidden(*id, row));
    if !hidden.is_empty() {
        let mut part = State::from_rows(state.last_fence(), state.version(), seen);
        let mut woken = Vec::new();
        let answer = part.apply(now, Op::Acquire(claim), &mut woken);
        if let Ok(Answer::Acquired(Attempt::Granted(_))) = answer {
            let all = rows(&part).into_iter().chain(hidden);
            *state = State::from_rows(part.last_fence(), part.version(), all);
            wake.extend(woken);
            return answer;
        }
    }
    state.apply(now, Op::Acquire(claim), wake)
}

fn renew(state: &mut State, now: Now, mut renewal: Renewal, wake: &mut Vec<LeaseId>) -> Result<Answer> {
    if on(Bug::RenewWithoutId)
        && let Some(id) = any(state, now)
    {
        (renewal.id, renewal.fence, renewal.owner) = (id, None, None);
    }
    if on(Bug::RevokedRenewed) {
        edit_lease(state, renewal.id, |lease| lease.revoked = false);
    }
    if on(Bug::RenewShortens)
        && let Some(Row::Lease(lease)) = state.row(&renewal.id)
    {
        renewal.shorten = renewal.shorten.or(Some(lease.renewals));
    }
    let answer = state.apply(now, Op::Renew(&renewal), wake);
    if let Ok(Answer::Renewed(Renewed::Held(grant))) = &answer
        && on(Bug::ReadersShareTtl)
        && grant.mode == Mode::Shared
    {
        let expires = now.expiry + renewal.ttl.as_micros() as u64;
        edit_leases(state, |lease| lease.expires = lease.expires.max(expires));
    }
    answer
}

fn release(state: &mut State, now: Now, mut release: Release, wake: &mut Vec<LeaseId>) -> Result<Answer> {
    if on(Bug::ReleaseWithoutId)
        && let Some(id) = any(state, now)
    {
        (release.id, release.fence, release.owner) = (id, None, None);
    }
    let answer = state.apply(now, Op::Release(&release), wake)?;
    match answer {
        Answer::Released(Released::Done)
            if on(Bug::FenceDroppedOnRelease) && leases(state).next().is_none() =>
        {
            *state = State::from_rows(Fence::UNFENCED, state.version(), rows(state));
        }
        Answer::Released(Released::Gone(_)) if on(Bug::ExpiredPermitFreed) => {
            let permit = leases(state).find(|(_, lease)| matches!(lease.mode, Mode::Permit { .. }));
            if let Some((id, _)) = permit {
                state.apply(now, Op::Release(&Release::new(release.name, id)), wake)?;
            }
        }
        _ => {}
    }
    Ok(answer)
}

fn rows(state: &State) -> Rows {
    let ids: BTreeSet<_> = state.ids().collect();
    ids.into_iter().filter_map(|id| Some((id, state.row(&id)?))).collect()
}

fn leases(state: &State) -> impl Iterator<Item = (LeaseId, LeaseRow)> {
    rows(state).into_iter().filter_map(|(id, row)| match row {
        Row::Lease(lease) => Some((id, lease)),
        _ => None,
    })
}

/// Any lease, for defects that ignore whose it is.
fn any(state: &State, now: Now) -> Option<LeaseId> {
    leases(state).find(|(_, lease)| lease.expires > now.expiry).map(|(id, _)| id)
}

/// Tickets that the next verb would drop, and when they lapsed.
fn lapsed_tickets(state: &State, now: Now) -> BTreeMap<LeaseId, u64> {
    let lapsed = |row: Row| match row {
        Row::Ticket(ticket) if ticket.lapses <= now.expiry => Some(ticket.lapses),
        _ => None,
    };
    rows(state).into_iter().filter_map(|(id, row)| Some((id, lapsed(row)?))).collect()
}

fn edit(state: &mut State, mut change: impl FnMut(&LeaseId, &mut Row)) {
    let mut rows = rows(state);
    rows.iter_mut().for_each(|(id, row)| change(id, row));
    *state = State::from_rows(state.last_fence(), state.version(), rows).with_note(state.note().cloned());
}

fn edit_leases(state: &mut State, mut change: impl FnMut(&mut LeaseRow)) {
    edit(state, |_, row| {
        if let Row::Lease(lease) = row {
            change(lease);
        }
    });
}

fn edit_lease(state: &mut State, id: LeaseId, mut change: impl FnMut(&mut LeaseRow)) {
    edit(state, |other, row| match row {
        Row::Lease(lease) if *other == id => change(lease),
        _ => {}
    });
}

fn edit_tickets(state: &mut State, mut change: impl FnMut(&LeaseId, &mut TicketRow)) {
    edit(state, |id, row| {
        if let Row::Ticket(ticket) = row {
            change(id, ticket);
        }
    });
}
