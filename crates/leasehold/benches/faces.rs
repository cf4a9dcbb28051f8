//! The groups every store runs: acquire and release through each face, beside `tokio::sync` in the same run.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on should stop

use std::sync::Arc;

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use leasehold::Locks;
use tokio::runtime::{Builder, Runtime};

const TASKS: usize = 32;

/// One core, so that figures do not depend on how many there are.
fn one_core() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn bench<F: Future<Output = ()>>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    runtime: &Runtime,
    name: &str,
    mut once: impl FnMut() -> F,
) {
    group.bench_function(name, |bencher| bencher.to_async(runtime).iter(&mut once));
}

/// One acquire and release in each of 32 tasks.
async fn in_tasks<F: Future<Output = ()> + Send + 'static>(once: impl Fn(usize) -> F) {
    let tasks: Vec<_> = (0..TASKS).map(|n| tokio::spawn(once(n))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn store(c: &mut Criterion, scheme: &str, locks: &Locks, runtime: &Runtime) {
    let mut group = c.benchmark_group("mutex/acquire_release/1");
    group.throughput(Throughput::Elements(1));
    let mutex = locks.mutex("one");
    bench(&mut group, runtime, scheme, || async {
        mutex.lock().await.unwrap().release().await.unwrap();
    });
    let other = tokio::sync::Mutex::new(());
    bench(&mut group, runtime, "tokio", || async { drop(std::hint::black_box(other.lock().await)) });
    group.finish();

    let mut group = c.benchmark_group("mutex/acquire_release/32");
    group.throughput(Throughput::Elements(TASKS as u64));
    let mutexes: Vec<_> = (0..TASKS).map(|n| locks.mutex(format!("task-{n}"))).collect();
    bench(&mut group, runtime, scheme, || {
        in_tasks(|n| {
            let mutex = mutexes[n].clone();
            async move {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        })
    });
    let others: Vec<_> = (0..TASKS).map(|_| Arc::new(tokio::sync::Mutex::new(()))).collect();
    bench(&mut group, runtime, "tokio", || {
        in_tasks(|n| {
            let mutex = Arc::clone(&others[n]);
            async move { drop(std::hint::black_box(mutex.lock().await)) }
        })
    });
    group.finish();

    let mut group = c.benchmark_group("mutex/try_lock_contended");
    group.throughput(Throughput::Elements(1));
    let held = locks.mutex("held");
    let guard = runtime.block_on(held.lock()).unwrap();
    bench(&mut group, runtime, scheme, || async { assert!(held.try_lock().await.unwrap().is_none()) });
    drop(guard);
    let other_guard = other.try_lock().unwrap();
    bench(&mut group, runtime, "tokio", || async { assert!(other.try_lock().is_err()) });
    drop(other_guard);
    group.finish();

    let rwlock = locks.rwlock("shared");
    let other = tokio::sync::RwLock::new(());
    let mut group = c.benchmark_group("rwlock/read_acquire_release");
    group.throughput(Throughput::Elements(1));
    bench(&mut group, runtime, scheme, || async {
        rwlock.read().await.unwrap().release().await.unwrap();
    });
    bench(&mut group, runtime, "tokio", || async { drop(std::hint::black_box(other.read().await)) });
    group.finish();

    let mut group = c.benchmark_group("rwlock/write_acquire_release");
    group.throughput(Throughput::Elements(1));
    bench(&mut group, runtime, scheme, || async {
        rwlock.write().await.unwrap().release().await.unwrap();
    });
    bench(&mut group, runtime, "tokio", || async { drop(std::hint::black_box(other.write().await)) });
    group.finish();
}

fn faces(c: &mut Criterion) {
    let runtime = one_core();
    let locks = runtime.block_on(Locks::connect("memory:")).unwrap();
    store(c, "memory", &locks, &runtime);
    runtime.block_on(locks.close());
}

criterion_group!(benches, faces);
criterion_main!(benches);
