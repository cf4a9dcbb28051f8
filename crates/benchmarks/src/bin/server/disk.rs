//! The bare disk: how many syncs it can do.

use std::io::Write as _;
use std::time::{Duration, Instant};

use testkit::turns::percentile;

const TIME: Duration = Duration::from_millis(300);

/// The directory of the databases: `LEASEHOLD_BENCH_DIR`, or beside cargo's output, because the system's temporary
/// directory may be in memory.
pub(crate) fn directory() -> tempfile::TempDir {
    let built = || std::env::current_exe().ok()?.parent().map(Into::into);
    let place: std::path::PathBuf =
        std::env::var_os("LEASEHOLD_BENCH_DIR").map(Into::into).or_else(built).expect("a place for files");
    tempfile::tempdir_in(place).expect("a directory can be made")
}

pub(crate) struct Disk(tempfile::TempDir);

impl Disk {
    pub(crate) fn new() -> Self {
        Disk(directory())
    }

    /// Appends a page and syncs, repeatedly; returns how often a second.
    pub(crate) fn syncs_a_second(&self) -> f64 {
        let times = self.times();
        times.len() as f64 / times.iter().sum::<f64>()
    }

    /// The median time of one sync, in milliseconds.
    pub(crate) fn sync_time(&self) -> f64 {
        percentile(&mut self.times(), 50.0) * 1e3
    }

    fn times(&self) -> Vec<f64> {
        let mut file = std::fs::File::create(self.0.path().join("log")).expect("a file");
        let (began, mut times) = (Instant::now(), Vec::new());
        while began.elapsed() < TIME {
            file.write_all(&[7; 4096]).expect("room");
            let before = Instant::now();
            file.sync_data().expect("the disk");
            times.push(before.elapsed().as_secs_f64());
        }
        times
    }
}
