//! One automaton for each lease id: which record may follow which (I5, I6, I7, I10, I11, I12, I14, J3).

use super::Invariant::{self, I5, I6, I7, I10, I11, I12, I14, J3};
use super::case::{Case, Court, Lease, SLACK};
use super::figures::Figures;
use crate::history::record::{Face, Kind, Loss, Mode, Record, SESSION};

/// A running process sends a call at most this long after it recorded it: in between it may wait for a processor.
const SENT_BY: u64 = 250_000_000;

/// Stores round up what a lease is shortened to, some to whole seconds.
const ROUNDED_UP: u64 = 2_000_000_000;

pub(super) fn judge(case: &Case<'_>, court: &mut Court, figures: &mut Figures) {
    for place in 0..case.leases.len() {
        let mut automaton = Automaton {
            case,
            place,
            lease: &case.leases[place],
            court: &mut *court,
            figures: &mut *figures,
            deadline: 0,
            ttl: 0,
            confirmed: 0,
            grant: None,
            acquire_called: 0,
            tries: false,
            renew_called: 0,
            shorten_called: None,
            release_called: 0,
            run_called: 0,
            releases: 0,
            lost: None,
            released: None,
            gone: None,
            settled: None,
            lengthened: false,
        };
        automaton.kinds();
        for op in &case.leases[place].ops {
            automaton.step(&case.records[*op as usize]);
        }
    }
}

struct Automaton<'a> {
    case: &'a Case<'a>,
    place: usize,
    lease: &'a Lease,
    court: &'a mut Court,
    figures: &'a mut Figures,
    /// The deadline that the holder saw last.
    deadline: u64,
    ttl: u64,
    /// The latest deadline that an answer gave, for leases without automatic renewal.
    confirmed: u64,
    grant: Option<Record>,
    acquire_called: u64,
    /// The last acquire does not wait: it is a single attempt.
    tries: bool,
    renew_called: u64,
    /// When the last shortening was called, and to which ttl.
    shorten_called: Option<(u64, u64)>,
    release_called: u64,
    /// When work under it was begun.
    run_called: u64,
    /// How many releases were called.
    releases: u32,
    lost: Option<u64>,
    /// When the store said that a release ended it.
    released: Option<u64>,
    /// When the store said that it does not exist.
    gone: Option<u64>,
    /// The latest moment by which the store had set the known expiry.
    settled: Option<u64>,
    /// An unanswered renewal may prolong it at any time.
    lengthened: bool,
}

impl Automaton<'_> {
    fn accuse(&mut self, invariant: Invariant, seen: impl FnOnce(&str) -> String) {
        let brief = self.case.brief(self.place);
        self.court.accuse(self.case, invariant, seen(&brief), &[self.place]);
    }

    fn kinds(&mut self) {
        let limit = self.case.locks[usize::from(self.lease.name)].limit;
        self.figures.weigh(I11, true, false);
        if (limit > 0) != (self.lease.mode == Mode::Permit) {
            self.accuse(I11, |brief| format!("{brief} is on a lock of another kind"));
        }
    }

    fn step(&mut self, record: &Record) {
        let at = record.at;
        self.after_the_end(record);
        match record.kind {
            Kind::AcquireCall => {
                // The first of several names may have been renewed while the others were taken.
                let single = record.fence != Face::Multi as u64;
                (self.acquire_called, self.tries) = (at, record.value == 0 && single);
                self.ttl = self.ttl.max(record.deadline);
            }
            Kind::Granted => self.granted(record),
            Kind::Held => self.held(record),
            Kind::RenewCall | Kind::AdoptCall => {
                self.renew_called = at;
                if self.ttl != 0 {
                    self.ttl = self.ttl.max(record.value);
                }
            }
            Kind::Renewed | Kind::Adopted => {
                self.revived(record, self.renew_called, "renewed");
                self.cleared(record, self.renew_called, "renewed");
                self.outlived(record);
                self.settled = Some(at);
                self.figures.weigh(I5, self.lease.uncertain > at, false);
                self.survived(at);
                // Nobody else renews a plain lease.
                if self.plain() {
                    self.since_call(record, self.renew_called);
                }
                self.moved(record);
                self.confirmed = self.confirmed.max(record.deadline);
            }
            Kind::RenewRefused | Kind::AdoptRefused => {
                self.ended_early(record, self.renew_called, "refused a renewal");
                self.refused(at);
            }
            // The failed call may have prolonged it.
            Kind::RenewFailed | Kind::AdoptFailed => (self.settled, self.lengthened) = (None, true),
            // From here on the holder relies on no more than this.
            Kind::ShortenCall => {
                self.shorten_called = Some((at, record.value));
                self.deadline = self.deadline.min(at.saturating_add(record.value));
            }
            Kind::Shortened => self.shortened(record),
            Kind::RunCall => self.run_called = at,
            Kind::RunEnded => self.ran(record),
            Kind::Lost => self.lost(record),
            Kind::ReleaseCall => {
                self.release_called = at;
                self.releases += 1;
            }
            Kind::Released => self.released(record),
            Kind::ReleasedNothing => {
                if self.lost.is_none() && self.releases == 1 {
                    self.ended_early(record, self.release_called, "had nothing to release");
                }
                self.gone.get_or_insert(at);
            }
            _ => {}
        }
    }

    /// Counts requests about a lease that had ended: whatever the answer, the lease does not exist (I6), nor does one
    /// that was revoked at once (I14).
    fn after_the_end(&mut self, record: &Record) {
        let called = match record.kind {
            Kind::Held | Kind::Lost => record.at,
            Kind::Renewed | Kind::RenewRefused => self.renew_called,
            Kind::Released | Kind::ReleasedNothing => self.release_called,
            Kind::Granted => self.acquire_called,
            _ => return,
        };
        let by_time = self.settled.filter(|_| self.plain() && !self.lengthened && self.ttl != 0);
        let by_time = by_time.map(|settled| settled.saturating_add(self.ttl + self.ttl / 100));
        let over = [self.lost, self.released, self.gone, by_time].into_iter().flatten().min();
        if over.is_some_and(|over| over < called) {
            self.figures.weigh(I6, self.lease.uncertain > record.at, false);
        }
        let revoked = self.case.revokes(self.lease).cleared(self.lease).filter(|by| *by < called);
        let asks = !matches!(record.kind, Kind::Held | Kind::Lost | Kind::Granted);
        if let Some(by) = revoked.filter(|_| asks) {
            let sure = !self.case.quorum() && !self.may_be_back(by, record.at);
            self.figures.weigh(I14, sure, false);
        }
    }

    fn granted(&mut self, record: &Record) {
        if self.tries {
            self.since_call(record, self.acquire_called);
        }
        let Some(first) = self.grant else {
            self.grant = Some(*record);
            self.settled = (record.value == 0).then_some(record.at);
            self.confirmed = record.deadline;
            self.moved(record);
            return;
        };
        self.figures.weigh(I10, self.lease.uncertain > record.at, false);
        let own = (first.worker, first.claim) == (record.worker, record.claim);
        let chosen = record.value == 1 || self.case.records[self.lease.ops[0] as usize].lease != 0;
        if record.fence != first.fence || record.mode != first.mode {
            // The lease may have ended meanwhile, for example by a step of the store's clock; then this is another
            // one.
            if self.lease.uncertain > record.at {
                self.accuse(I10, |brief| {
                    format!("a repeat of {brief} was given fence {} as {:?}", record.fence, record.mode)
                });
            }
        } else if !own && !chosen {
            self.accuse(I10, |brief| {
                format!("{brief} was granted to worker {} too, which did not ask for it", record.worker)
            });
        } else if let Some(settled) = self.settled
            && self.ttl != 0
            && record.deadline != SESSION
            && !self.lengthened
            && self.lease.uncertain > record.at
            && record.deadline > settled.saturating_add(self.ttl)
        {
            self.accuse(I10, |brief| format!("a repeat of {brief} began its ttl anew"));
        }
        self.revived(record, self.acquire_called, "granted again");
        self.confirmed = self.confirmed.max(record.deadline);
        self.moved(record);
    }

    fn held(&mut self, record: &Record) {
        if record.deadline != 0 {
            self.figures.weigh(J3, true, false);
        }
        if let Some(lost) = self.lost.or(self.gone) {
            let later = record.at - lost;
            return self.accuse(I6, |brief| format!("{brief} was held again {later} ns after it was lost"));
        }
        if self.released.is_some() {
            return self.accuse(I6, |brief| format!("{brief} was held after it was released"));
        }
        if record.deadline != 0 && record.deadline <= record.at {
            return self.accuse(J3, |brief| format!("{brief} was relied on past its deadline"));
        }
        // Nobody else renews a plain lease.
        if self.plain() && record.deadline != SESSION && record.deadline > self.confirmed {
            let later = record.deadline - self.confirmed;
            self.accuse(I7, |brief| {
                format!("the deadline of {brief} is {later} ns later than any answer said")
            });
        }
        self.moved(record);
    }

    /// Whether its holder chose the id: the library does nothing for such a lease.
    fn plain(&self) -> bool {
        self.case.records[self.lease.ops[0] as usize].lease != 0
    }

    /// Its deadline comes from one call: at most a ttl after that was sent.
    fn since_call(&mut self, record: &Record, called: u64) {
        // A quorum may ask its nodes again within one attempt, and a lock server may ask its store later; both count
        // from then on, and say so.
        let still = self.case.asks_later() || self.case.around(record.worker).still.meets(called, record.at);
        let timed = self.ttl != 0 && record.deadline != SESSION && record.deadline > record.at;
        let latest = called.saturating_add(SENT_BY + self.ttl);
        if timed {
            self.figures.weigh(I7, true, still);
        }
        // A deadline more than a ttl from now is reported as that.
        if timed
            && !still
            && record.deadline > latest
            && record.deadline <= record.at.saturating_add(self.ttl)
        {
            let later = record.deadline - called - self.ttl;
            self.accuse(I7, |brief| {
                format!("the deadline of {brief} is {later} ns later than a ttl after it was asked for")
            });
        }
    }

    /// Sets the deadline from the record: never more than a ttl away.
    fn moved(&mut self, record: &Record) {
        // A deadline in the past is only the moment at which the loss was noticed.
        if record.deadline <= record.at {
            return;
        }
        let timed = self.ttl != 0 && record.deadline != SESSION;
        if timed {
            self.figures.weigh(I7, true, false);
        }
        // Even if the store's clock went back: nobody relies on more than was requested.
        if timed && record.deadline > record.at.saturating_add(self.ttl) {
            let away = record.deadline - record.at;
            let ttl = self.ttl;
            self.accuse(I7, |brief| {
                format!("the deadline of {brief} is {away} ns away, its ttl is {ttl} ns")
            });
        }
        let refusing = self.case.revokes(self.lease).refusing(self.lease).filter(|_| timed);
        // A fail-over may have lost the revoke.
        let refusing = refusing.filter(|by| !self.may_be_back(*by, record.at));
        if let Some(by) = refusing.filter(|by| record.deadline > by.saturating_add(self.ttl)) {
            let later = record.deadline - self.ttl - by;
            self.accuse(I6, |brief| format!("{brief} was renewed {later} ns after it had been revoked"));
        }
        self.deadline = record.deadline;
    }

    /// A lease without automatic renewal was renewed. That must not succeed after its time was over, even if nobody
    /// else came.
    fn outlived(&mut self, record: &Record) {
        let certain = self.plain() && !self.lengthened && self.ttl != 0 && self.lease.uncertain > record.at;
        let Some(settled) = self.settled.filter(|_| certain && record.deadline != SESSION) else { return };
        // Clocks run at different rates, by less than one in a hundred.
        let over = settled.saturating_add(self.ttl + self.ttl / 100);
        if self.renew_called > over {
            let late = self.renew_called - over;
            self.accuse(I6, |brief| format!("{brief} was renewed {late} ns after its time was over"));
        }
    }

    /// The store says that the lease exists. If the store was killed meanwhile, it has kept one more lease (I12).
    fn survived(&mut self, at: u64) {
        if self.case.restarts.meets(self.lease.from, at) {
            self.figures.weigh(I12, self.lease.uncertain > at, false);
        }
    }

    /// The store says that the lease exists: it must not have said before that it is gone.
    fn revived(&mut self, record: &Record, called: u64, how: &str) {
        let over = self.released.or(self.gone).filter(|over| *over < called);
        if let Some(over) = over.filter(|over| !self.may_be_back(*over, record.at)) {
            let later = record.at - over;
            self.accuse(I6, |brief| format!("{brief} was {how} {later} ns after its end"));
        }
    }

    /// A revoked lease is refused, and lasts until its time is over.
    fn refused(&mut self, at: u64) {
        if !self.revoked(at) {
            self.gone.get_or_insert(at);
        }
    }

    fn revoked(&self, at: u64) -> bool {
        self.case.revokes(self.lease).revoked(self.lease, at)
    }

    /// The store said that the lease exists: that must not happen after a revoke that frees the lock at once.
    fn cleared(&mut self, record: &Record, called: u64, how: &str) {
        let cleared = self.case.revokes(self.lease).cleared(self.lease).filter(|by| *by < called);
        let certain = |by: &u64| !self.case.quorum() && !self.may_be_back(*by, record.at);
        if let Some(by) = cleared.filter(certain) {
            let later = called - by;
            self.accuse(I14, |brief| {
                format!("{brief} was {how} {later} ns after it had been revoked at once")
            });
        }
    }

    /// The lease was shortened: to no more than requested, unless renewals kept overtaking that.
    fn shortened(&mut self, record: &Record) {
        let Some((called, ttl)) = self.shorten_called else { return };
        if record.deadline == SESSION {
            return;
        }
        let explained = self.case.around(record.worker).explained.meets(called, record.at);
        let latest = record.at.saturating_add(ttl + ROUNDED_UP);
        if record.deadline > latest && !explained {
            let later = record.deadline - latest;
            self.accuse(I7, |brief| format!("{brief} lasts {later} ns longer than it was shortened to"));
        }
        self.moved(record);
    }

    /// Work under the lease has ended: soon after the loss, if it was lost; at once, if it was lost before.
    fn ran(&mut self, record: &Record) {
        let over = self.deadline.max(self.run_called).min(record.at);
        let late = record.at - over;
        let explained = self.case.around(record.worker).explained.meets(over, record.at);
        if self.deadline != SESSION && late > SLACK && !explained {
            self.accuse(J3, |brief| format!("work under {brief} ran for {late} ns after its deadline"));
        }
    }

    fn lost(&mut self, record: &Record) {
        let at = record.at;
        let why = Loss::ALL.get(record.value as usize);
        if why == Some(&Loss::Deadline) && self.lost.is_none() && self.gone.is_none() {
            self.figures.weigh(J3, true, false);
        }
        match why {
            Some(Loss::Deadline) if self.lost.is_none() && self.gone.is_none() && at < self.deadline => {
                let early = self.deadline - at;
                self.accuse(J3, |brief| format!("{brief} was given up {early} ns before its deadline"));
            }
            Some(Loss::Refused) if self.lost.is_none() && self.gone.is_none() => {
                self.ended_early(record, at, "refused it");
                self.refused(at);
            }
            _ => {}
        }
        self.lost.get_or_insert(at);
    }

    fn released(&mut self, record: &Record) {
        // A release whose first try was unanswered reports success for a lease that is gone.
        let sure = !self.case.around(record.worker).struck.meets(self.release_called, record.at);
        let first = self.released.or(self.gone).unwrap_or(record.at);
        let sure = sure && !self.may_be_back(first, record.at);
        self.figures.weigh(I5, true, !sure);
        self.survived(record.at);
        match (self.released, self.gone) {
            (Some(_), _) if sure => {
                self.accuse(I5, |brief| format!("{brief} was released twice"));
            }
            // A minority of a quorum may have kept it.
            (None, Some(gone)) if sure && gone < self.release_called && !self.case.quorum() => {
                self.accuse(I6, |brief| {
                    format!("{brief} was there to be released after the store had said that it is gone")
                });
            }
            _ if sure => self.cleared(record, self.release_called, "released"),
            _ => {}
        }
        self.released.get_or_insert(record.at);
    }

    /// Whether a fail-over may have forgotten that it had ended by the first of these moments.
    fn may_be_back(&self, ended: u64, at: u64) -> bool {
        // The answer came a while after the event.
        self.case.lost[usize::from(self.lease.name)].meets(ended.saturating_sub(SLACK), at)
    }

    /// The store ended the lease: not before its deadline, unless it was asked to.
    fn ended_early(&mut self, record: &Record, called: u64, how: &str) {
        let at = record.at;
        let own = self.releases > u32::from(record.kind == Kind::ReleasedNothing) || self.gone.is_some();
        let around = self.case.around(self.lease.worker);
        let cut = self.lease.deadline == SESSION
            && (around.unnoticed.meets(self.lease.called, at)
                || around.disturbed.meets(self.lease.called, at));
        // An old primary does not know what the new one has granted.
        let asked_another = self.case.two_primaries[usize::from(self.lease.name)].meets(called, at);
        let unsure = own || self.revoked(at) || cut || asked_another || self.lease.uncertain <= at;
        // A late answer proves nothing.
        if at < self.deadline {
            let restarted = self.case.restarts.meets(self.lease.from, at);
            self.figures.weigh(if restarted { I12 } else { I5 }, !unsure, false);
        }
        if unsure || at >= self.deadline || called > at {
            return;
        }
        let restarted = self.case.restarts.meets(self.lease.from, at);
        let invariant = if restarted { I12 } else { I5 };
        let early = match self.deadline {
            SESSION => "before its session ended".into(),
            deadline => format!("{} ns before its deadline", deadline - at),
        };
        self.accuse(invariant, |brief| format!("{brief} was ended before its time: the store {how} {early}"));
    }
}
