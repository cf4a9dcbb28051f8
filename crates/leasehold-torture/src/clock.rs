//! Wall clocks that step: a small preloaded library, which adds an offset from a file to the wall clock.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::history::record::Fault;

/// Its source. It changes one clock and nothing more, so it is safe to preload into every server.
const SOURCE: &str = include_str!("clock/shim.c");

/// The wall clocks of a run: one for the workers, one for the store.
#[derive(Debug)]
pub struct Clocks {
    directory: PathBuf,
    library: PathBuf,
    workers: PathBuf,
    store: PathBuf,
}

impl Clocks {
    /// Builds the library, in a place that servers with fewer rights can read too.
    ///
    /// # Errors
    /// If there is no C compiler, or no room for files.
    pub fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("leasehold-clock-{}-{number}", std::process::id()));
        // Left behind by an earlier process with the same id.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory)?;
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        let (workers, store) = (directory.join("workers"), directory.join("store"));
        let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
        let clocks = Clocks { directory, library, workers, store };
        std::fs::write(&source, SOURCE)?;
        let mut cc = Command::new("cc");
        let built = cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&clocks.library).arg(&source).output();
        let missing = "the profile clock needs a C compiler: install the package gcc";
        let built = built.map_err(|error| io::Error::other(format!("{missing} ({error})")))?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(io::Error::other(format!("the clock that steps cannot be built:\n{said}")));
        }
        for file in [&clocks.workers, &clocks.store] {
            std::fs::write(file, [0; 16])?;
            // A server with fewer rights must also be able to count how often it reads its clock.
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666))?;
        }
        Ok(clocks)
    }

    fn environment(&self, file: &Path) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![("LD_PRELOAD".into(), text(&self.library)), ("LEASEHOLD_CLOCK".into(), text(file))]
    }

    /// The environment of a worker.
    pub fn of_workers(&self) -> Vec<(String, String)> {
        self.environment(&self.workers)
    }

    /// The environment of a server.
    pub fn of_store(&self) -> Vec<(String, String)> {
        self.environment(&self.store)
    }

    /// Sets the offset of a wall clock, in seconds: the store's for [`Fault::ClockStore`], else that of the workers.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub fn step(&self, which: Fault, seconds: i64) -> io::Result<()> {
        // Written in place, never truncated: it is mapped into the processes.
        let file = std::fs::File::options().write(true).open(self.file(which))?;
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0)
    }

    /// How often processes have read such a clock while it had an offset.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn readings(&self, which: Fault) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let file = std::fs::File::open(self.file(which))?;
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn file(&self, which: Fault) -> &Path {
        if which == Fault::ClockStore { &self.store } else { &self.workers }
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::Stdio;
    use std::time::{Instant, UNIX_EPOCH};

    use super::*;

    fn wall() -> u64 {
        UNIX_EPOCH.elapsed().expect("it is after 1970").as_secs()
    }

    #[test]
    fn only_the_wall_clock_steps_while_a_process_runs() {
        const SAYS: &str = "it is ";
        if std::env::var_os("LEASEHOLD_CLOCK").is_some() {
            // The process whose clock steps: for each line that it reads, it prints its clocks.
            let began = Instant::now();
            std::io::stdin().lines().for_each(|_| println!("{SAYS}{} {}", wall(), began.elapsed().as_secs()));
            return;
        }
        let clocks = Clocks::new().expect("it is built");
        let (began, own) = (Instant::now(), std::env::current_exe().expect("it has a name"));
        let name = std::thread::current().name().expect("a test has a name").to_owned();
        let mut child = Command::new(own)
            .args(["--exact", &name, "--nocapture", "--test-threads=1"])
            .envs(clocks.of_workers())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let (mut ask, said) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut said = BufReader::new(said).lines().map(|line| line.expect("it is read"));
        clocks.step(Fault::ClockStore, -5_000).expect("it is set");
        for step in [0, 3_600, -3_600] {
            clocks.step(Fault::ClockWorker, step).expect("it is set");
            let read = clocks.readings(Fault::ClockWorker).expect("it is read");
            let before = wall();
            writeln!(ask).expect("it is asked");
            let line = said.find(|line| line.contains(SAYS)).expect("it answers");
            let (_, times) = line.split_once(SAYS).expect("the times");
            let (time, ran) = times.split_once(' ').expect("two times");
            let (time, ran): (u64, u64) = (time.parse().expect("a time"), ran.parse().expect("a time"));
            let was = time.checked_add_signed(-step).expect("a time");
            assert!((before..=wall()).contains(&was), "a step of {step}: {time}");
            let read_again = clocks.readings(Fault::ClockWorker).expect("it is read");
            assert_eq!(read_again > read, step != 0, "a step of {step} is felt by who reads the clock");
            assert!(ran <= began.elapsed().as_secs(), "a step of {step}: it ran for {ran} s");
        }
        assert_eq!(clocks.readings(Fault::ClockStore).expect("it is read"), 0, "nobody has that one");
        drop(ask);
        assert!(child.wait().expect("it ends").success());
    }
}
