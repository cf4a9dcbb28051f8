//! Turns the server's rows into answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::record::Record;
use super::text;
use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, HolderInfo, Mode, NameInfo, Note, Released, Renewed, WaiterInfo,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::look_again;

/// The error for a row that our functions never return.
fn foreign() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the tables or functions in the database answered something that leasehold did not write",
    )
}

/// The source of an answer: a row, or the only value of a row, which is a record.
pub(super) trait Answer {
    /// A column.
    fn column<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T>;
}

impl Answer for Row {
    fn column<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T> {
        self.try_get(column).map_err(|error| foreign().with_source(error))
    }
}

impl Answer for Record<'_> {
    fn column<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T> {
        let (kind, value) = self.field(column).ok_or_else(foreign)?;
        if !T::accepts(kind) {
            return Err(foreign());
        }
        T::from_sql_nullable(kind, value).map_err(|_| foreign())
    }
}

/// A column.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a impl Answer, column: usize) -> Result<T> {
    row.column(column)
}

/// A number that is never negative.
pub(super) fn number(row: &impl Answer, column: usize) -> Result<u64> {
    u64::try_from(get::<i64>(row, column)?).map_err(|_| foreign())
}

/// How many expired leases a verb has found; null where there can be none.
pub(super) fn expired(row: &impl Answer, column: usize) -> Result<u64> {
    get::<Option<i64>>(row, column)?.map_or(Ok(0), |count| u64::try_from(count).map_err(|_| foreign()))
}

/// Microseconds since 1970.
pub(super) fn time(row: &impl Answer, column: usize) -> Result<u64> {
    micros(get(row, column)?)
}

fn micros(time: SystemTime) -> Result<u64> {
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| foreign())?;
    u64::try_from(since.as_micros()).map_err(|_| foreign())
}

fn mode(row: &impl Answer, column: usize) -> Result<Mode> {
    match get(row, column)? {
        "exclusive" => Ok(Mode::Exclusive),
        "shared" => Ok(Mode::Shared),
        "permit" => {
            let limit = u32::try_from(number(row, column + 1)?).map_err(|_| foreign())?;
            Ok(Mode::Permit { limit })
        }
        _ => Err(foreign()),
    }
}

/// How a mode is stored: a word, and the limit of a semaphore.
pub(super) fn words(mode: Mode) -> (&'static str, Option<i64>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permit { limit } => ("permit", Some(limit.into())),
    }
}

fn gone(answer: &str) -> Result<Gone> {
    let all = [Gone::Expired, Gone::NotFound, Gone::Superseded, Gone::Revoked];
    all.into_iter().find(|gone| gone.as_str() == answer).ok_or_else(foreign)
}

/// A lease from columns in this order: mode, permits, fence, renewals, granted at, expires.
fn grant(row: &impl Answer, first: usize, now: u64) -> Result<Grant> {
    let expires = time(row, first + 5)?;
    Ok(Grant {
        fence: Fence::new(number(row, first + 2)?),
        mode: mode(row, first)?,
        left: Some(Duration::from_micros(expires.saturating_sub(now))),
        waited: Duration::ZERO,
        renewals: number(row, first + 3)?,
        acquired_at_ms: time(row, first + 4)? / 1000,
        expires_at_ms: Some(expires.max(now) / 1000),
    })
}

/// The answer to an attempt.
pub(super) fn attempt(row: &Record<'_>, claim: &Claim) -> Result<Attempt> {
    let now = time(row, 1)?;
    match get(row, 0)? {
        "granted" => Ok(Attempt::Granted(fresh(row, claim, now)?)),
        "held" => Ok(Attempt::Granted(grant(row, 3, now)?)),
        "busy" => busy(row, claim, now).map(Attempt::Busy),
        "superseded" => Ok(Attempt::Gone(Gone::Superseded)),
        "mismatch" => Err(claim.mode.mismatch(mode(row, 3)?)),
        "other_mode" => {
            Err(Error::invalid("this lease id already waits for another mode; ids are never used twice"))
        }
        // The one place that has this error.
        "overflow" => Err(Fence::MAX.next(0).err().unwrap_or_else(foreign)),
        _ => Err(foreign()),
    }
}

/// A lease that was just granted; only its fence has to come from the server.
fn fresh(row: &Record<'_>, claim: &Claim, now: u64) -> Result<Grant> {
    let ttl = super::micros(claim.ttl).unsigned_abs();
    Ok(Grant {
        fence: Fence::new(number(row, 5)?),
        mode: claim.mode,
        left: Some(Duration::from_micros(ttl)),
        waited: Duration::ZERO,
        renewals: 0,
        acquired_at_ms: now / 1000,
        expires_at_ms: Some((now + ttl) / 1000),
    })
}

fn busy(row: &Record<'_>, claim: &Claim, now: u64) -> Result<Busy> {
    let place = get::<Option<i64>>(row, 9)?.map(|_| number(row, 9)).transpose()?;
    let lapse = get::<Option<SystemTime>>(row, 11)?.map_or(Ok(u64::MAX), micros)?;
    let owner = get::<Option<&str>>(row, 12)?.map(text::read).transpose()?;
    let holder = match owner {
        Some(_) => Some((time(row, 8)?.saturating_sub(now), number(row, 13)?)),
        None => None,
    };
    Ok(Busy {
        retry_in: Some(look_again(claim, place, holder, lapse.saturating_sub(now))),
        place,
        queue_length: number(row, 10)?,
        owner: owner.map(Into::into),
        holder_left: holder.map(|(left, _)| Duration::from_micros(left)),
    })
}

/// The answer to a release.
pub(super) fn released(row: &Record<'_>) -> Result<Released> {
    match get(row, 0)? {
        "done" => Ok(Released::Done),
        other => gone(other).map(Released::Gone),
    }
}

/// The answer to one renewal.
pub(super) fn renewed(row: &Row) -> Result<Renewed> {
    match get(row, 1)? {
        "held" => grant(row, 2, time(row, 0)?).map(Renewed::Held),
        "too_high" => Err(Fence::too_high()),
        "mismatch" => Err(Error::new(
            ErrorKind::Mismatch,
            "only an exclusive lease can change its mode, and only to shared",
        )),
        "busy" => Err(locked()),
        other => gone(other).map(Renewed::Gone),
    }
}

/// The error when another session has locked the row of a name.
pub(super) fn locked() -> Error {
    Error::new(
        ErrorKind::Overloaded,
        "another session keeps the row of this lock locked; look in pg_stat_activity for a session that is idle in a transaction",
    )
}

/// How far a listing has got, if there are more names: only its last row says so.
pub(super) fn reached(rows: &[Row]) -> Result<Option<String>> {
    match rows.last() {
        Some(row) if get(row, 16)? => get(row, 1).map(Some),
        _ => Ok(None),
    }
}

/// A note, from columns in this order: text, fence, revision.
fn note(row: &impl Answer, first: usize) -> Result<Option<Note>> {
    let Some(text) = get::<Option<&str>>(row, first)? else { return Ok(None) };
    let fence = Fence::new(number(row, first + 1)?);
    Ok(Some(Note::new(text::read(text)?, fence, number(row, first + 2)?)))
}

/// The names that an inspection has seen.
pub(super) fn seen(rows: &[Row]) -> Result<Vec<NameInfo>> {
    let mut items: Vec<NameInfo> = Vec::new();
    for row in rows {
        let now = time(row, 0)?;
        let name = Name::from_stored(&text::read(get(row, 1)?)?)?;
        if items.last().is_none_or(|item| item.name != name) {
            let version = number(row, 2)?;
            let last_fence = Fence::new(number(row, 3)?);
            items.push(NameInfo { version, last_fence, note: note(row, 17)?, ..NameInfo::unused(name) });
        }
        let (Some(item), Some(waits)) = (items.last_mut(), get::<Option<bool>>(row, 4)?) else { continue };
        let id = LeaseId::parse(get(row, 5)?).map_err(|_| foreign())?;
        let owner = text::read(get(row, 6)?)?.into();
        if waits {
            item.queue_length = number(row, 15)?;
            let waited = Duration::from_micros(now.saturating_sub(time(row, 12)?));
            item.waiters.push(WaiterInfo { id, owner, mode: mode(row, 8)?, waited });
        } else {
            let metadata = get::<Option<&str>>(row, 7)?.map(text::read).transpose()?.map(Into::into);
            let grant = grant(row, 8, now)?;
            item.holder_count = number(row, 15)?;
            item.holders.push(HolderInfo { id, owner, metadata, grant, revoked: get(row, 14)? });
        }
    }
    Ok(items)
}
