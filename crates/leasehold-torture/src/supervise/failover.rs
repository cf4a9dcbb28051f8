//! Lets replicas take the places of primaries, one after the other, and waits until all workers work again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use crate::check::WORKS_WITHIN;
use crate::history::record::{Fault, Kind, Record, read_last};
use crate::plan::Planned;
use crate::replicated::Replicated;
use crate::worker::now;

use super::faults::Making;

/// How often the histories are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many records back they are read: what a worker writes between two looks.
const RECENT: u64 = 2_000;

impl Making<'_> {
    /// One fail-over, from the end of a primary until it is back as a replica and every worker works with every name
    /// again, or has had the time for it. The judge decides which of the two it was.
    pub(super) fn fail_over(&mut self, planned: Planned) -> io::Result<()> {
        let Planned { fault, target, lasts_ms, .. } = planned;
        let Some(part) = self.ground.replicated().map(|replicated| replicated.part(target)) else {
            return Ok(());
        };
        let lasts = Duration::from_millis(lasts_ms);
        let (old, replica) = self.replicated()?.roles(part)?;
        self.note(Kind::FaultBegin, fault, part, false)?;
        match fault {
            Fault::CrashPrimary => {
                self.during(Fault::LosesLatest, part, |replicated| {
                    if !lasts.is_zero() {
                        replicated.cut(replica)?;
                        std::thread::sleep(lasts);
                    }
                    replicated.kill(old)
                })?;
                // A loss must be noticed before the lease has expired.
                self.replicated()?.promote(replica, !lasts.is_zero())?;
                self.replicated()?.come_back(old)?;
            }
            Fault::FreezePrimary => {
                self.during(Fault::LosesLatest, part, |replicated| {
                    replicated.freeze(old);
                    Ok(())
                })?;
                self.replicated()?.promote(replica, false)?;
                if self.replicated()?.has_two_primaries() {
                    self.during(Fault::TwoPrimaries, part, |replicated| replicated.go_on_beside(old, lasts))?;
                } else {
                    self.replicated()?.come_back(old)?;
                }
            }
            _ if self.replicated()?.switches_in_disorder() => {
                self.note(Kind::FaultBegin, Fault::LosesLatest, part, false)?;
                self.during(Fault::TwoPrimaries, part, |replicated| replicated.switch(replica))?;
                self.note(Kind::FaultEnd, Fault::LosesLatest, part, false)?;
            }
            _ => {
                self.replicated()?.switch(replica)?;
                if !self.replicated()?.has_two_primaries() {
                    self.replicated()?.come_back(old)?;
                }
            }
        }
        self.replicated()?.wait_for_copy(old)?;
        let landed = self.replicated()?.roles(part)? == (replica, old);
        self.landed.of(fault).landed += u64::from(landed);
        self.note(Kind::FaultEnd, fault, part, false)?;
        self.wait_until_all_work()
    }

    fn replicated(&mut self) -> io::Result<&mut Replicated> {
        self.ground.replicated().ok_or_else(|| io::Error::other("this store has no replicas"))
    }

    /// Does something and records when it began and ended, for the judge.
    fn during(
        &mut self,
        what: Fault,
        part: u64,
        go_on: impl FnOnce(&mut Replicated) -> io::Result<()>,
    ) -> io::Result<()> {
        self.note(Kind::FaultBegin, what, part, false)?;
        go_on(self.replicated()?)?;
        self.note(Kind::FaultEnd, what, part, false)
    }

    /// Waits until every worker has had an answer about every name that all use, within the time allowed. A run whose
    /// time is over does not wait for names that nobody asks for: only for an answer to each worker, and to everything
    /// it has asked.
    fn wait_until_all_work(&mut self) -> io::Result<()> {
        let since = now();
        let started = Instant::now();
        let mut workers: Vec<Answers> = (0..self.crew.workers.len())
            .map(|place| {
                // The last name is for workers that outlive their leases, once in a while.
                let names = self.crew.workers[place].task().names.len() as u16;
                Answers { place, missing: (0..names - 1).collect(), ..Answers::default() }
            })
            .collect();
        // A moment more, so that a late one is certainly late.
        while started.elapsed() < WORKS_WITHIN + LOOK_EVERY * 4 {
            std::thread::sleep(LOOK_EVERY);
            for worker in &mut workers {
                for record in read_last(&self.crew.workers[worker.place].task().history, RECENT)? {
                    worker.note(&record, since);
                }
            }
            let is_over = self.started.elapsed() >= Duration::from_millis(self.plan.lasts_ms);
            workers.retain(|worker| !worker.missing.is_empty());
            if workers.iter().all(|worker| is_over && worker.has_what_it_asked_for()) {
                break;
            }
        }
        Ok(())
    }
}

/// What a worker has heard since a fail-over.
#[derive(Default)]
struct Answers {
    place: usize,
    /// The names about which it has had no answer.
    missing: HashSet<u16>,
    /// The names it has asked for.
    asked: HashSet<u16>,
    /// Its acquires that have not returned, and their names.
    open: HashMap<u64, u16>,
    /// Whether it has had any answer.
    any: bool,
}

impl Answers {
    fn note(&mut self, record: &Record, since: u64) {
        match record.kind {
            Kind::AcquireCall => {
                self.open.insert(record.claim, record.name);
            }
            Kind::Granted | Kind::Busy | Kind::Missing | Kind::AcquireFailed | Kind::AcquireDropped => {
                self.open.remove(&record.claim);
            }
            _ => {}
        }
        if record.at < since {
            return;
        }
        self.asked.insert(record.name);
        if record.kind.is_answer() {
            self.any = true;
            self.missing.remove(&record.name);
        }
    }

    fn has_what_it_asked_for(&self) -> bool {
        let mut asked = self.asked.iter().chain(self.open.values());
        self.any && !asked.any(|name| self.missing.contains(name))
    }
}
