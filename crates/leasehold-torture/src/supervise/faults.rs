//! Injects the faults of a plan, each at its time, and undoes them when they are over.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::clock::Clocks;
use crate::ground::Ground;
use crate::history::record::{Fault, Kind, Log, Record};
use crate::plan::{Plan, Planned};
use crate::worker::now;
use leasehold_testbed::proxy::{Direction, HeldRequest};

use super::crew::{At, Crew};
use super::landed::Faults;

/// How long a fault waits for a worker that holds a lock.
const SEARCH: Duration = Duration::from_millis(150);

/// The state of the fault injection.
pub(super) struct Making<'a> {
    pub(super) plan: &'a Plan,
    pub(super) ground: &'a mut Ground,
    pub(super) crew: &'a mut Crew,
    pub(super) log: &'a Log,
    pub(super) clocks: Option<&'a Clocks>,
    pub(super) landed: Faults,
    pub(super) started: Instant,
    /// Faults that are due and still look for a worker.
    searching: Vec<(Instant, Planned)>,
    /// Faults that must be undone.
    active: Vec<Active>,
    /// When every server was last seen running.
    all_ran: u64,
}

struct Active {
    until: Instant,
    fault: Fault,
    value: u64,
    held: bool,
    undo: Undo,
}

enum Undo {
    GoOn(usize),
    Pass(usize, u64),
    Trap(usize, u64),
    Deliver(HeldRequest),
    Thaw(usize),
    Memory(usize),
    Descriptors(usize, u32, Rlimit),
    Clock(u64),
    Room,
}

/// Whether it happens between workers and store.
fn is_of_network(fault: Fault) -> bool {
    use Fault::{Blackhole, Cut, Delay, Hold, Reset, Swallow};
    matches!(fault, Delay | Reset | Blackhole | Cut | Swallow | Hold)
}

impl<'a> Making<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        ground: &'a mut Ground,
        crew: &'a mut Crew,
        log: &'a Log,
        clocks: Option<&'a Clocks>,
    ) -> Self {
        let (searching, active) = (Vec::new(), Vec::new());
        Making {
            plan,
            ground,
            crew,
            log,
            clocks,
            landed: Faults::default(),
            started: Instant::now(),
            searching,
            active,
            all_ran: now(),
        }
    }

    pub(super) fn note(&self, kind: Kind, fault: Fault, value: u64, held: bool) -> io::Result<()> {
        let deadline = u64::from(held);
        // Workers on another route do not feel a network fault.
        let side = if is_of_network(fault) { self.ground.side_of(value as usize) } else { None };
        let fence = side.map_or(0, |side| side as u64 + 1);
        self.log.write(Record { fault, value, fence, deadline, ..Record::new(kind, 0, now()) })
    }

    /// Starts a fault that is due.
    pub(super) fn begin(&mut self, planned: Planned) -> io::Result<()> {
        self.landed.of(planned.fault).planned += 1;
        match planned.fault {
            Fault::Kill | Fault::Pause => {
                self.searching.push((Instant::now() + SEARCH, planned));
                Ok(())
            }
            Fault::RestartStore => self.restart(planned),
            Fault::PauseStore => self.freeze(planned),
            Fault::Memory => self.memory(planned),
            Fault::Descriptors => self.descriptors(planned),
            Fault::ClockWorker | Fault::ClockStore => self.step(planned),
            Fault::DiskFull => self.fill(planned),
            Fault::CrashPrimary | Fault::FreezePrimary | Fault::SwitchPrimary => self.fail_over(planned),
            Fault::None | Fault::LosesLatest | Fault::TwoPrimaries => Ok(()),
            _ => self.network(planned),
        }
    }

    /// Continues the faults in progress.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.raise()?;
        let now = Instant::now();
        let (over, active) = std::mem::take(&mut self.active).into_iter().partition(|one| one.until <= now);
        self.active = active;
        for one in over {
            self.undo(one)?;
        }
        for (until, planned) in std::mem::take(&mut self.searching) {
            if !self.hit_worker(planned, until <= now)? && until > now {
                self.searching.push((until, planned));
            }
        }
        Ok(())
    }

    /// Restarts a server that has ended by itself, as a machine's own supervisor would: one more restart.
    fn raise(&mut self) -> io::Result<()> {
        let looked = now();
        if let Some(server) = self.ground.fallen() {
            let (fault, value) = (Fault::RestartStore, server as u64);
            // It ended at some time since the last look.
            self.log.write(Record { fault, value, ..Record::new(Kind::FaultBegin, 0, self.all_ran) })?;
            self.ground.restart(server)?;
            self.note(Kind::FaultEnd, fault, value, false)?;
        }
        self.all_ran = looked;
        Ok(())
    }

    /// Undoes everything.
    pub(super) fn heal(&mut self) -> io::Result<()> {
        self.raise()?;
        self.searching.clear();
        for one in std::mem::take(&mut self.active) {
            self.undo(one)?;
        }
        self.ground.heal();
        Ok(())
    }

    /// Stops a worker that holds a lock, for a while or for ever; returns whether one was found. In the end one
    /// without a lock will do, but for most kills none that waits: its place in the queue would delay the others for
    /// long.
    fn hit_worker(&mut self, planned: Planned, last: bool) -> io::Result<bool> {
        let places = self.crew.workers.len();
        let kill = planned.fault == Fault::Kill;
        let any_worker = kill && planned.much == 1;
        // Some must be left to take over.
        let stopped = self.crew.workers.iter().filter(|worker| worker.stopped).count();
        if !kill && stopped * 2 >= places {
            return Ok(false);
        }
        for step in 0..places {
            let place = (planned.target as usize + step) % places;
            let worker = &self.crew.workers[place];
            let suits = |at: At| any_worker || (at.holds || last) && !(kill && at.waits);
            if worker.stopped || kill && !any_worker && worker.task().tasks > 1 || !suits(worker.at()?) {
                continue;
            }
            let value = u64::from(worker.number());
            let begin = now();
            // Stop it first, so that it holds what its history says.
            let worker = &mut self.crew.workers[place];
            worker.stop()?;
            let at = worker.at()?;
            if !suits(at) {
                worker.go_on()?;
                continue;
            }
            self.log.write(Record {
                fault: planned.fault,
                value,
                ..Record::new(Kind::FaultBegin, 0, begin)
            })?;
            let landed = self.landed.of(planned.fault);
            landed.landed += 1;
            landed.holders += u64::from(at.holds);
            landed.past_ttl += u64::from(at.holds && planned.lasts_ms > self.plan.ttl_ms);
            if kill {
                let ground = &*self.ground;
                self.crew.replace(place, |number| ground.url_of(number))?;
                self.note(Kind::FaultEnd, planned.fault, value, at.holds)?;
            } else {
                self.later(planned, value, at.holds, Undo::GoOn(place));
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn later(&mut self, planned: Planned, value: u64, held: bool, undo: Undo) {
        let until = Instant::now() + Duration::from_millis(planned.lasts_ms);
        self.active.push(Active { until, fault: planned.fault, value, held, undo });
    }

    fn network(&mut self, planned: Planned) -> io::Result<()> {
        let number = planned.target as usize;
        let Some(proxy) = self.ground.proxy(number) else { return Ok(()) };
        let counts = proxy.counts();
        let value = planned.target;
        self.note(Kind::FaultBegin, planned.fault, value, false)?;
        let way = if planned.much % 2 == 0 { Direction::ToClient } else { Direction::ToServer };
        let undo = match planned.fault {
            Fault::Delay => {
                proxy.delay(way, Duration::from_millis(planned.much.unsigned_abs()));
                Undo::Pass(number, counts.to_server + counts.to_client)
            }
            Fault::Blackhole => {
                proxy.blackhole();
                Undo::Pass(number, counts.open.wrapping_sub(1))
            }
            Fault::Cut => {
                proxy.cut_after(way, planned.much.unsigned_abs());
                Undo::Trap(number, counts.cut)
            }
            Fault::Swallow => {
                proxy.lose_answers(b"");
                Undo::Trap(number, counts.swallowed)
            }
            Fault::Hold => Undo::Deliver(proxy.hold_request(b"")),
            _ => {
                proxy.reset();
                self.landed.of(planned.fault).landed += u64::from(counts.open > 0);
                return self.note(Kind::FaultEnd, planned.fault, value, false);
            }
        };
        self.later(planned, value, false, undo);
        Ok(())
    }

    fn restart(&mut self, planned: Planned) -> io::Result<()> {
        let Some(server) = self.ground.server(planned.target as usize) else { return Ok(()) };
        // Do not kill a stopped server, whose end is already planned, nor one that could not start without it.
        let in_the_way = |frozen: usize| frozen == server || self.ground.needs(server, frozen);
        if self.active.iter().any(|one| matches!(one.undo, Undo::Thaw(frozen) if in_the_way(frozen))) {
            return Ok(());
        }
        self.note(Kind::FaultBegin, planned.fault, planned.target, false)?;
        self.ground.restart(server)?;
        self.landed.of(planned.fault).landed += 1;
        self.note(Kind::FaultEnd, planned.fault, planned.target, false)
    }

    fn freeze(&mut self, planned: Planned) -> io::Result<()> {
        let Some(server) = self.ground.server(planned.target as usize) else { return Ok(()) };
        if self.active.iter().any(|one| matches!(one.undo, Undo::Thaw(frozen) if frozen == server)) {
            return Ok(());
        }
        self.ground.freeze(server, true)?;
        // Recorded only now: from here on no process of the store runs, so an answer from it would be false.
        self.note(Kind::FaultBegin, planned.fault, planned.target, false)?;
        self.landed.of(planned.fault).landed += 1;
        self.later(planned, planned.target, false, Undo::Thaw(server));
        Ok(())
    }

    fn memory(&mut self, planned: Planned) -> io::Result<()> {
        let Some(server) = self.ground.redis(planned.target as usize) else { return Ok(()) };
        self.note(Kind::FaultBegin, planned.fault, planned.target, false)?;
        self.landed.of(planned.fault).landed += u64::from(self.ground.limit_memory(server, 1));
        self.later(planned, planned.target, false, Undo::Memory(server));
        Ok(())
    }

    fn fill(&mut self, planned: Planned) -> io::Result<()> {
        let Some(room) = self.ground.room() else {
            // The configuration says so.
            self.landed.of(planned.fault).planned = 0;
            return Ok(());
        };
        self.note(Kind::FaultBegin, planned.fault, 0, false)?;
        let full = room.fill()?;
        self.landed.of(planned.fault).landed += u64::from(full);
        self.later(planned, 0, false, Undo::Room);
        Ok(())
    }

    /// Keeps a worker from opening more files.
    fn descriptors(&mut self, planned: Planned) -> io::Result<()> {
        let places = self.crew.workers.len();
        let place = planned.target as usize % places;
        let worker = &self.crew.workers[place];
        let (number, id) = (worker.number(), worker.pid());
        let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let held = worker.at()?.holds;
        self.note(Kind::FaultBegin, planned.fault, u64::from(number), false)?;
        // The hard limit stays as it is: only root could raise it again.
        let few = Rlimit { current: Some(4), maximum: getrlimit(Resource::Nofile).maximum };
        let before = prlimit(Some(pid), Resource::Nofile, few)?;
        let landed = self.landed.of(planned.fault);
        landed.landed += 1;
        landed.holders += u64::from(held);
        self.later(planned, u64::from(number), held, Undo::Descriptors(place, number, before));
        Ok(())
    }

    fn step(&mut self, planned: Planned) -> io::Result<()> {
        let Some(clocks) = self.clocks else { return Ok(()) };
        self.note(Kind::FaultBegin, planned.fault, 0, false)?;
        let before = clocks.readings(planned.fault)?;
        clocks.step(planned.fault, planned.much)?;
        self.later(planned, 0, false, Undo::Clock(before));
        Ok(())
    }

    fn undo(&mut self, one: Active) -> io::Result<()> {
        let mut landed = false;
        match one.undo {
            Undo::GoOn(place) => self.crew.workers[place].go_on()?,
            Undo::Pass(number, before) => {
                if let Some(proxy) = self.ground.proxy(number) {
                    let counts = proxy.counts();
                    landed = match one.fault {
                        Fault::Delay => counts.to_server + counts.to_client > before,
                        _ => before != u64::MAX,
                    };
                    proxy.pass();
                }
            }
            Undo::Trap(number, before) => {
                if let Some(proxy) = self.ground.proxy(number) {
                    // A fault that hit nobody must not strike when no fault is recorded.
                    proxy.disarm();
                    let counts = proxy.counts();
                    landed = before < if one.fault == Fault::Cut { counts.cut } else { counts.swallowed };
                }
            }
            Undo::Deliver(held) => {
                landed = held.is_caught();
                held.deliver();
            }
            Undo::Thaw(server) => {
                self.note(Kind::FaultEnd, one.fault, one.value, one.held)?;
                return self.ground.freeze(server, false);
            }
            Undo::Memory(server) => drop(self.ground.limit_memory(server, 0)),
            Undo::Descriptors(place, number, before) => {
                let worker = &self.crew.workers[place];
                let pid = i32::try_from(worker.pid()).ok().and_then(Pid::from_raw);
                if let Some(pid) = pid.filter(|_| worker.number() == number) {
                    prlimit(Some(pid), Resource::Nofile, before)?;
                }
            }
            Undo::Room => {
                if let Some(room) = self.ground.room() {
                    room.empty()?;
                }
            }
            Undo::Clock(before) => {
                if let Some(clocks) = self.clocks {
                    clocks.step(one.fault, 0)?;
                    // A process with that clock read it meanwhile.
                    landed = clocks.readings(one.fault)? > before;
                }
            }
        }
        self.landed.of(one.fault).landed += u64::from(landed);
        self.note(Kind::FaultEnd, one.fault, one.value, one.held)
    }
}
