//! Another process, for benchmarks between two: this benchmark again, which waits for a lock on command
//! and says when it got it.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::Locks;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};

const PLACE: &str = "LEASEHOLD_BENCH_OTHER";

/// The name both use.
pub(crate) const NAME: &str = "between";

/// A clock that both processes read.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The other process. Killed when dropped.
pub(crate) struct Other {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    pub(crate) fn start(place: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(PLACE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    /// Tells it to take the lock, and then to hold it until it gets the command to release it.
    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// When it got the lock.
    pub(crate) fn got_it(&mut self) -> Duration {
        Duration::from_nanos(self.lines.next().expect("the other process goes on").unwrap().parse().unwrap())
    }

    #[allow(dead_code)] // not every benchmark kills
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the lock is, if this is the other process.
pub(crate) fn place() -> Option<std::path::PathBuf> {
    std::env::var_os(PLACE).map(Into::into)
}

/// What the other process does.
pub(crate) async fn play(locks: Locks) {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let mut held = None;
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "take" => {
                let guard = locks.mutex(NAME).lock().await.unwrap();
                println!("{}", now().as_nanos());
                held = Some(guard);
            }
            _ => drop(held.take().unwrap().release().await.unwrap()),
        }
    }
}

/// The value below which so many in a hundred are.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
