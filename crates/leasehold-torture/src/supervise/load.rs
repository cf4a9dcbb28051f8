//! How much of the machine other processes use: if it is much, times say little about the store.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often it is measured. Processes with a shorter life are not seen.
const EVERY: Duration = Duration::from_secs(1);

/// Processor time, in ticks: the total, and by process with its parent.
#[derive(Debug, Default)]
struct Sample {
    busy: u64,
    processes: HashMap<u32, (u32, u64)>,
}

impl Sample {
    fn take() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        // `cpu user nice system idle iowait irq softirq steal …`
        let ticks: Vec<u64> =
            stat.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let busy = ticks.iter().take(8).sum::<u64>().saturating_sub(idle);
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // `pid (name) state parent …`, and twelve fields later the times.
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
            Some((pid, (u32::try_from(number(1)?).ok()?, number(11)? + number(12)?)))
        });
        Sample { busy, processes: processes.collect() }
    }

    /// Whether a process is this one or descends from it.
    fn is_ours(&self, mut pid: u32) -> bool {
        let own = std::process::id();
        while pid > 1 {
            if pid == own {
                return true;
            }
            let Some((parent, _)) = self.processes.get(&pid) else { return false };
            pid = *parent;
        }
        false
    }
}

/// Measures while a run goes on.
#[derive(Debug)]
pub(super) struct Load {
    last: Sample,
    next: Instant,
    busy: u64,
    ours: u64,
}

impl Load {
    pub(super) fn new() -> Self {
        Load { last: Sample::take(), next: Instant::now() + EVERY, busy: 0, ours: 0 }
    }

    /// Measures, if it is due.
    pub(super) fn go_on(&mut self) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + EVERY;
        let sample = Sample::take();
        self.busy += sample.busy.saturating_sub(self.last.busy);
        for (pid, (_, ticks)) in sample.processes.iter().filter(|(pid, _)| sample.is_ours(**pid)) {
            let before = self.last.processes.get(pid).map_or(0, |(_, ticks)| *ticks);
            self.ours += ticks.saturating_sub(before);
        }
        self.last = sample;
    }

    /// The share of the used processor time that went to other processes, in percent.
    pub(super) fn others(&self) -> u64 {
        100 - (self.ours * 100).checked_div(self.busy).unwrap_or(100).min(100)
    }
}
