//! Workers in other languages: the SDKs' own programs, which write the same records.
//!
//! `docs/sdk-protocol.md` says what such a program does.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::{Part, Task};

/// The task of such a program, as it reads it.
#[derive(Debug, Serialize)]
struct Foreign<'a> {
    url: &'a str,
    worker: u32,
    history: &'a Path,
    resource: &'a Path,
    seed: u64,
    tasks: u16,
    ttl_ms: u64,
    patience_ms: u64,
    cancels: bool,
    lingers: bool,
    clock_offset_ns: i64,
    locks: Vec<Lock<'a>>,
}

#[derive(Debug, Serialize)]
struct Lock<'a> {
    place: usize,
    name: &'a str,
    kind: &'static str,
    limit: u32,
    hot: bool,
}

/// The locks that an SDK has a kind for.
fn locks(task: &Task) -> Vec<Lock<'_>> {
    let all = task.names.iter().zip(&task.parts).enumerate();
    all.filter_map(|(place, (name, part))| {
        let kind = match part {
            Part::Hot | Part::Cool => "mutex",
            Part::Book => "rwlock",
            Part::Pool => "semaphore",
            _ => return None,
        };
        Some(Lock { place, name: &name.name, kind, limit: name.limit, hot: *part == Part::Hot })
    })
    .collect()
}

/// The boot-time clock minus the monotonic one: how long the machine was suspended.
fn clock_offset() -> i64 {
    let nanos = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    nanos(ClockId::Boottime) - nanos(ClockId::Monotonic)
}

/// Turns this process into the program, so that every signal meets it.
pub(super) fn become_program(program: &Path, task: &Task) -> io::Error {
    match write(task) {
        Ok(path) => {
            let error = Command::new(program).arg(path).exec();
            let message = format!("cannot run {}: {error}; `make sdk-…` builds it", program.display());
            io::Error::new(error.kind(), message)
        }
        Err(error) => error,
    }
}

/// Writes the task into a file beside the history.
fn write(task: &Task) -> io::Result<PathBuf> {
    let foreign = Foreign {
        url: &task.url,
        worker: task.worker,
        history: &task.history,
        resource: &task.resource,
        seed: task.seed,
        tasks: task.tasks,
        ttl_ms: task.ttl_ms,
        patience_ms: task.patience_ms,
        cancels: task.cancels,
        lingers: task.lingers,
        clock_offset_ns: clock_offset(),
        locks: locks(task),
    };
    let path = task.history.with_file_name(format!("task-{}.json", task.worker));
    std::fs::write(&path, serde_json::to_string_pretty(&foreign)? + "\n")?;
    Ok(path)
}
