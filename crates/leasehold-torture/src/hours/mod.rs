//! Hours of torture: rounds, one after the other, on stores that live as long as the whole run, beside residents
//! (long-lived workers) that do too. Leaks pile up there, and are seen to grow.

pub(crate) mod counts;
mod family;
mod growth;
mod report;
mod resident;
mod rounds;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::report::Outcome;
use crate::store::{Profile, Store};

use family::{Family, Ways};
use growth::Point;
pub use growth::{Growth, Unit};
pub use report::{Report, Round};
use rounds::Rounds;

/// The name of the file with everything that was measured.
pub const SAMPLES: &str = "samples.csv";

/// How often everything is measured at first.
const TICK: Duration = Duration::from_millis(50);

/// At this many samples every second one is dropped, and from then on half as many are taken.
const MANY: usize = 2_000;

/// A run that ends by its number of acquires is measured at least this often.
const FEW: u64 = 40;

/// How long a spent id stays in a store, together with the last lease.
const SPENT: f64 = 75.0;

/// How often the connections of residents are reset.
const RESET: Duration = Duration::from_secs(3);

/// The request for such a run.
#[derive(Debug, Clone)]
pub struct Hours {
    /// The stores; all live at the same time, and have their rounds in turn.
    pub stores: Vec<Store>,
    /// The URL of the user's own store; then there is only one store.
    pub url: Option<String>,
    /// The profiles, which take turns. None: no rounds, only residents.
    pub profiles: Vec<Profile>,
    /// How long to run.
    pub time: Duration,
    /// End when the residents were granted this many locks.
    pub acquires: Option<u64>,
    /// How long a round works.
    pub round: Duration,
    /// The seeds of the rounds derive from this.
    pub seed: u64,
    /// How many worker processes a round has at any time.
    pub workers: usize,
    /// The directory for all files: empty, or not existing yet.
    pub out: PathBuf,
    /// Whether to print the progress on stderr.
    pub progress: bool,
    /// When this becomes true the run ends early, in order, and is judged as far as it came.
    pub stop: Arc<AtomicBool>,
}

/// One thing that is measured repeatedly.
struct Series {
    what: String,
    unit: Unit,
    has_spent: bool,
    points: Vec<Point>,
}

impl Hours {
    /// One store without faults, for an hour.
    pub fn new(store: Store, out: impl Into<PathBuf>) -> Self {
        Hours {
            stores: vec![store],
            url: None,
            profiles: vec![Profile::Calm],
            time: Duration::from_secs(3600),
            acquires: None,
            round: Duration::from_secs(20),
            seed: 1,
            workers: 12,
            out: out.into(),
            progress: false,
            stop: Arc::default(),
        }
    }

    /// The combinations of profile and store, in turn.
    fn pairs(&self) -> Vec<(Store, Profile)> {
        let suits =
            |(store, profile): &(Store, Profile)| profile.refuses(*store, self.url.is_none()).is_none();
        let of = |profile: &Profile| self.stores.iter().map(|store| (*store, *profile)).collect::<Vec<_>>();
        self.profiles.iter().flat_map(of).filter(suits).collect()
    }

    /// Runs it, and writes the report.
    ///
    /// Call it on a thread that lives as long as this takes. The binary must begin with
    /// [`roles::play_if_asked`](crate::roles::play_if_asked).
    ///
    /// # Errors
    /// If something it needs is missing or fails; the message says what to do. Violations are not errors.
    pub fn run(&self) -> io::Result<Report> {
        let wrong = |message: &str| io::Error::new(io::ErrorKind::InvalidInput, message);
        let pairs = self.pairs();
        if self.stores.is_empty() || (self.url.is_some() && self.stores.len() > 1) {
            return Err(wrong("one --url takes one store"));
        }
        if pairs.is_empty() && !self.profiles.is_empty() {
            return Err(wrong("none of these profiles suits any of these stores"));
        }
        std::fs::create_dir_all(&self.out)?;
        let out = self.out.canonicalize()?;
        if std::fs::read_dir(&out)?.next().is_some() {
            return Err(wrong(&format!(
                "{} is not empty: --out names a directory for this run alone",
                out.display()
            )));
        }
        let grants = Arc::new(AtomicU64::new(0));
        let ways = Ways {
            seed: self.seed,
            cancels: self.profiles.iter().any(|profile| profile.cancels()),
            spends: !self.profiles.is_empty(),
            resets: self.profiles.iter().any(|profile| matches!(profile, Profile::Net | Profile::All)),
        };
        self.say("starting the stores");
        let start = |store: &Store| {
            Family::start(*store, self.url.as_deref(), &ways, out.join(store.as_str()), &grants)
        };
        let mut families = self.stores.iter().map(start).collect::<io::Result<Vec<_>>>()?;
        let urls = families.iter().map(|family| family.ground.own_url()).collect();
        // Also set on failure, so that the rounds end.
        let over = Over(Arc::new(AtomicBool::new(false)));
        let rounds = Rounds::new(self, pairs.clone(), urls, out.clone(), Arc::clone(&over.0));
        let at_work = Arc::clone(&rounds.at_work);
        let (told, heard) = mpsc::channel();
        std::thread::scope(|scope| {
            // The processes of a round end with its thread, and this one lives as long as all rounds.
            let rounds = std::thread::Builder::new()
                .name("rounds".into())
                .spawn_scoped(scope, move || rounds.run(&told))?;
            let work = Work {
                hours: self,
                families: &mut families,
                grants: &grants,
                heard: &heard,
                at_work: &at_work,
            };
            let report = work.run(&out, &ways);
            drop(over);
            self.say("everybody finishes");
            let ended = rounds.join();
            let mut report = report?;
            ended.map_err(|_| io::Error::other("the rounds ended by a panic"))?;
            report.rounds.extend(heard.try_iter());
            for family in &mut families {
                report.broken.extend(family.finish()?);
            }
            let report = report.judged(&pairs);
            report.write(&out)?;
            if report.outcome == Outcome::Passed {
                families.iter().for_each(|family| drop(std::fs::remove_dir_all(family.directory())));
            }
            Ok(report)
        })
    }

    /// Prints a line that the next one overwrites.
    fn say(&self, line: &str) {
        let mut stderr = io::stderr().lock();
        if self.progress && stderr.is_terminal() {
            let _ = write!(stderr, "\r\x1b[K{line}");
            let _ = stderr.flush();
        }
    }

    /// Prints a line that stays.
    fn note(&self, line: &str) {
        if self.progress {
            self.say("");
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Sets the flag when dropped.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What happens beside the rounds: residents work, and everything is measured.
struct Work<'a> {
    hours: &'a Hours,
    families: &'a mut [Family],
    grants: &'a AtomicU64,
    heard: &'a mpsc::Receiver<Round>,
    at_work: &'a AtomicU64,
}

impl Work<'_> {
    fn run(self, out: &std::path::Path, ways: &Ways) -> io::Result<Report> {
        let hours = self.hours;
        let mut file = File::create(out.join(SAMPLES))?;
        let started = Instant::now();
        let (mut series, mut work): (Vec<Series>, Vec<Point>) = (Vec::new(), Vec::new());
        let mut report = Report {
            outcome: Outcome::Vacuous,
            seed: hours.seed,
            seconds: 0.0,
            interrupted: false,
            acquires: 0,
            samples: 0,
            rounds: Vec::new(),
            growth: Vec::new(),
            broken: Vec::new(),
            too_little: Vec::new(),
            directory: out.to_owned(),
        };
        let (mut tick, mut next, mut reset) = (TICK, started, started);
        loop {
            report.acquires = self.grants.load(Ordering::Relaxed);
            report.seconds = started.elapsed().as_secs_f64();
            report.interrupted = hours.stop.load(Ordering::Relaxed);
            let enough =
                hours.acquires.is_some_and(|wanted| report.acquires >= wanted) && report.samples >= FEW;
            if report.interrupted || enough || started.elapsed() >= hours.time {
                break;
            }
            if Instant::now() >= next {
                let began = Instant::now();
                self.families.iter_mut().try_for_each(Family::watch)?;
                self.measure(report.seconds, report.acquires, &mut series, &mut file)?;
                work.push(Point { at: report.seconds, value: report.acquires });
                report.samples += 1;
                if series.iter().any(|one| one.points.len() > MANY) {
                    tick *= 2;
                    series.iter_mut().for_each(|one| thin(&mut one.points));
                    thin(&mut work);
                }
                // Measuring must not keep the machine busy.
                next = Instant::now() + tick.max(began.elapsed() * 4);
            }
            if reset.elapsed() > RESET {
                reset = Instant::now();
                self.families.iter().for_each(|family| family.disturb(report.samples as usize));
            }
            for round in self.heard.try_iter() {
                hours.note(&round.to_string());
                report.rounds.push(round);
                report.growth = judge(&series, &work, ways, report.seconds);
                report.write(out)?;
            }
            let rounds = report.rounds.len();
            hours.say(&format!(
                "{:.0} s, {} acquires by residents, {rounds} rounds",
                report.seconds, report.acquires
            ));
            std::thread::sleep(Duration::from_millis(20));
        }
        report.growth = judge(&series, &work, ways, report.seconds);
        Ok(report)
    }

    fn measure(&self, at: f64, acquires: u64, series: &mut Vec<Series>, file: &mut File) -> io::Result<()> {
        let at_work = self.at_work.load(Ordering::Relaxed);
        let mut readings = Vec::new();
        for (place, family) in self.families.iter().enumerate() {
            let quiet = at_work != place as u64;
            readings.extend(family.readings().into_iter().map(|reading| (quiet, reading)));
        }
        if series.is_empty() {
            let titles = readings.iter().map(|(_, reading)| format!("\"{}\"", reading.what));
            writeln!(file, "seconds,acquires,{}", titles.collect::<Vec<_>>().join(","))?;
            series.extend(readings.iter().map(|(_, reading)| Series {
                what: reading.what.clone(),
                unit: reading.unit,
                has_spent: reading.has_spent,
                points: Vec::new(),
            }));
        }
        let values = readings.iter().map(|(_, reading)| reading.value.map(|value| value.to_string()));
        let values: Vec<_> = values.map(Option::unwrap_or_default).collect();
        writeln!(file, "{at:.1},{acquires},{}", values.join(","))?;
        for ((quiet, reading), series) in readings.iter().zip(series) {
            if let Some(value) = reading.value.filter(|_| *quiet || !reading.of_store) {
                series.points.push(Point { at, value });
            }
        }
        Ok(())
    }
}

/// Drops every second point.
fn thin(points: &mut Vec<Point>) {
    let mut number = 0;
    points.retain(|_| {
        number += 1;
        number % 2 == 0
    });
}

fn judge(series: &[Series], work: &[Point], ways: &Ways, until: f64) -> Vec<Growth> {
    let judge = |one: &Series| {
        // Repeated or cancelled ids are refused for a minute: until then their number only rises.
        let spends = one.has_spent && ways.spends;
        let (since, work) = if spends { (SPENT.min(until), work) } else { (0.0, &[][..]) };
        Growth::judge(one.what.clone(), one.unit, &one.points, work, since, until)
    };
    series.iter().map(judge).collect()
}
