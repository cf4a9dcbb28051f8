//! Injects the faults: kills and stops processes and the store, cuts wires, steps clocks.

use std::sync::Arc;

use super::count::Count;
use super::network::Wire;
use super::process::Process;
use super::resource::Resource;
use super::session::ENDLESS;
use super::store::Condition;
use super::time::MachineClock;
use super::worker;
use super::world::{RESOURCE, SUPERVISOR, World};
use crate::history::record::{Fault, Kind, Record};

/// In microseconds.
const A_WEEK: i64 = 7 * 86_400_000_000;

/// A process and its wire.
type Place = (Arc<Process>, Wire);

/// All processes, and the replacements of the dead.
pub(crate) struct Supervisor {
    world: Arc<World>,
    resource: Arc<Resource>,
    places: Vec<Place>,
    next: u32,
    running: Arc<tokio::sync::Semaphore>,
}

impl Supervisor {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Supervisor {
            world: Arc::clone(world),
            resource: Arc::default(),
            places: Vec::new(),
            next: RESOURCE + 1,
            running: Arc::new(tokio::sync::Semaphore::new(0)),
        }
    }

    /// Runs everything, until the store is at rest.
    pub(crate) async fn run(mut self) {
        let world = Arc::clone(&self.world);
        for _ in 0..world.plan.processes {
            let place = self.start();
            self.places.push(place);
        }
        let keeper = tokio::spawn(look_after(Arc::clone(&world)));
        self.faults().await;
        world.ending.store(true, std::sync::atomic::Ordering::Relaxed);
        // Each process that ends sends one message.
        let all = world.plan.processes;
        let _ = self.running.acquire_many(all).await;
        keeper.abort();
        self.rest().await;
    }

    fn start(&mut self) -> Place {
        let number = self.next;
        self.next += 1;
        let drift = self.world.plan.drift;
        let fast = self.world.chance().between(0, 2 * drift.unsigned_abs()) as i64 - drift;
        let process = Process::new(number, MachineClock::new(&self.world.time, fast));
        let wire = Wire::new(&self.world, number);
        let running = Arc::clone(&self.running);
        let ended = move || running.add_permits(1);
        worker::start(&self.world, Arc::clone(&process), wire.clone(), &self.resource, ended);
        (process, wire)
    }

    /// Injects one fault after the other.
    async fn faults(&mut self) {
        let world = Arc::clone(&self.world);
        let plan = &world.plan;
        let end = tokio::time::Instant::now() + plan.span;
        let total: u64 = plan.weights.iter().sum();
        if plan.faults_every == 0 || total == 0 {
            return tokio::time::sleep_until(end).await;
        }
        loop {
            let pause = world.chance().millis(1, 2 * plan.faults_every);
            if tokio::time::Instant::now() + pause >= end {
                return tokio::time::sleep_until(end).await;
            }
            world.sleep(pause).await;
            let mut drawn = world.chance().below(total);
            let which = plan.weights.iter().position(|weight| {
                let here = drawn < *weight;
                drawn = drawn.wrapping_sub(*weight);
                here
            });
            let place = world.chance().below(self.places.len() as u64) as usize;
            match which {
                Some(0) => self.kill(place).await,
                Some(1) => self.pause(place).await,
                Some(2) => self.blackhole(place).await,
                Some(3) => self.pause_store().await,
                Some(4) => self.restart_store().await,
                Some(5) => self.step_clock(Some(place)),
                _ => self.step_clock(None),
            }
        }
    }

    async fn kill(&mut self, place: usize) {
        let process = Arc::clone(&self.places[place].0);
        let holds = process.holds();
        let begun = self.world.begin_fault(Fault::Kill, Some(process.number));
        process.kill();
        self.places[place].1.close();
        self.world.count(Count::Kill);
        if holds {
            self.world.count(Count::KillHeld);
        }
        let pause = self.world.chance().millis(0, 300);
        self.world.end_fault(Some(begun), holds);
        self.world.sleep(pause).await;
        self.places[place] = self.start();
    }

    async fn pause(&self, place: usize) {
        let process = &self.places[place].0;
        let holds = process.holds();
        let begun = self.world.begin_fault(Fault::Pause, Some(process.number));
        process.pause();
        let pause = self.world.chance().part(self.world.plan.ttl, 50, 300);
        self.world.sleep(pause).await;
        process.resume();
        self.world.end_fault(Some(begun), holds);
        self.world.count(Count::Pause);
        if holds {
            self.world.count(Count::PauseHeld);
        }
    }

    async fn blackhole(&self, place: usize) {
        let (process, wire) = &self.places[place];
        let begun = self.world.begin_fault(Fault::Blackhole, Some(process.number));
        wire.cut();
        let (pause, noticed) = {
            let mut chance = self.world.chance();
            let pause = chance.part(self.world.plan.ttl, 20, 300);
            (pause, chance.part(pause, 0, 200))
        };
        self.world.sleep(noticed.min(pause)).await;
        if noticed < pause {
            // The store ends a session that it hears nothing from.
            let wakes = self.world.store().end_session(&self.world, wire.session());
            wakes.into_iter().for_each(super::network::send);
        }
        self.world.sleep(pause.saturating_sub(noticed)).await;
        wire.mend();
        self.world.end_fault(Some(begun), process.holds());
        self.world.count(Count::Blackhole);
    }

    fn set_store(&self, condition: Condition) {
        self.world.store().condition = condition;
        self.world.changed.notify_waiters();
    }

    fn anybody_holds(&self) -> bool {
        self.places.iter().any(|(process, _)| process.holds())
    }

    async fn pause_store(&self) {
        let begun = self.world.begin_fault(Fault::PauseStore, None);
        self.set_store(Condition::Paused);
        let pause = self.world.chance().part(self.world.plan.ttl, 20, 200);
        self.world.sleep(pause).await;
        self.set_store(Condition::Up);
        self.world.end_fault(Some(begun), self.anybody_holds());
        self.world.count(Count::StorePause);
    }

    async fn restart_store(&self) {
        let begun = self.world.begin_fault(Fault::RestartStore, None);
        self.world.store().restart(&self.world);
        self.set_store(Condition::Down);
        let pause = self.world.chance().millis(1, 300);
        self.world.sleep(pause).await;
        self.set_store(Condition::Up);
        for (_, wire) in &self.places {
            wire.ring_all();
        }
        self.world.end_fault(Some(begun), self.anybody_holds());
        self.world.count(Count::StoreRestart);
    }

    /// Steps a wall clock by a second to an hour.
    fn step_clock(&self, place: Option<usize>) {
        let (clock, fault, target) = match place {
            Some(place) => {
                let process = &self.places[place].0;
                (&process.clock, Fault::ClockWorker, Some(process.number))
            }
            None => (&self.world.store_clock, Fault::ClockStore, None),
        };
        let begun = self.world.begin_fault(fault, target);
        let micros = {
            let mut chance = self.world.chance();
            let most = *chance.pick(&[1_000_000, 60_000_000, 3_600_000_000]);
            chance.between(0, 2 * most) as i64 - most as i64
        };
        clock.step(micros);
        self.world.end_fault(Some(begun), self.anybody_holds());
        self.world.count(if place.is_some() { Count::ClockProcess } else { Count::ClockStore });
        if place.is_none() && !self.world.plan.steady {
            self.world.count(Count::ClockMoved);
        }
    }

    /// Waits until everything in flight has arrived and every spent id is forgotten, and checks what is left.
    async fn rest(&self) {
        let names = &self.world.plan.names;
        let stored = |name: &str| leasehold::Name::within(leasehold::DEFAULT_NAMESPACE, name);
        if !self.world.plan.steady {
            // However far it was set back.
            self.world.store_clock.step(A_WEEK);
        }
        let lasts = if self.world.plan.session { ENDLESS } else { leasehold::backend::SPENT_FOR };
        // Twice: an expiry is noticed by the next call, and its id is refused from then on.
        for _ in 0..2 {
            tokio::time::sleep(2 * lasts).await;
            for stored in names.iter().filter_map(|name| stored(&name.name).ok()) {
                self.world.store().left(&self.world, &stored);
            }
        }
        for (place, name) in names.iter().enumerate() {
            let Ok(stored) = stored(&name.name) else { continue };
            let (holders, waiters, other) = self.world.store().left(&self.world, &stored);
            let record = Record { name: place as u16, ..self.world.record(Kind::Left, SUPERVISOR) };
            let left = [holders > 0, waiters > 0, other && holders == 0 && waiters == 0];
            for (what, there) in left.into_iter().enumerate() {
                if there {
                    self.world.write(Record { value: what as u64, ..record });
                }
            }
        }
    }
}

/// Serves the open long polls, as the store's own process does.
async fn look_after(world: Arc<World>) {
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let wakes = {
            let mut store = world.store();
            if store.condition == Condition::Up { store.look_after(&world) } else { Vec::new() }
        };
        wakes.into_iter().for_each(super::network::send);
    }
}
