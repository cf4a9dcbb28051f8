//! Benchmarks of the Redis store, beside bare scripts and other locks: `make bench-redis`. Arguments select some of
//! them: `alone`, `pairs`, `processor`, `contended`, `crowd`, `renewals`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use benchmarks::{
    Contender, Contention, Held, Leasehold, Lock, Table, column, contended, cpu_time, of_rounds,
    pairs_in_turns, ratio,
};
use leasehold::{Guard, Locks};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Script};
use testkit::turns::{Spread, in_turns_async};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1500);
const CONTENDED: Duration = Duration::from_secs(3);
const CROWD: Duration = Duration::from_secs(5);
const LEASES: usize = 100_000;

/// The simplest possible fenced lock: two scripts.
struct Bare {
    connection: MultiplexedConnection,
    acquire: Arc<Script>,
    release: Arc<Script>,
}

struct BareLock {
    connection: MultiplexedConnection,
    keys: [String; 2],
    acquire: Arc<Script>,
    release: Arc<Script>,
}

struct BareHeld {
    connection: MultiplexedConnection,
    key: String,
    id: u64,
    release: Arc<Script>,
}

impl Bare {
    async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("a URL");
        // As leasehold's own: the driver's default is too short for a busy machine.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(2)));
        Bare {
            connection: client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .expect("a connection"),
            acquire: Arc::new(Script::new(
                "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0",
            )),
            release: Arc::new(Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
            )),
        }
    }
}

#[async_trait]
impl Contender for Bare {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        Box::new(BareLock {
            connection: self.connection.clone(),
            keys: [format!("{{bare-{name}}}"), format!("{{bare-{name}}}:fence")],
            acquire: self.acquire.clone(),
            release: self.release.clone(),
        })
    }
}

#[async_trait]
impl Lock for BareLock {
    async fn acquire(&self) -> Box<dyn Held> {
        let mut connection = self.connection.clone();
        let fence: u64 = self
            .acquire
            .key(&self.keys[0])
            .key(&self.keys[1])
            .arg(7)
            .arg(30_000)
            .invoke_async(&mut connection)
            .await
            .expect("bare: acquire");
        assert!(fence > 0, "bare: held");
        Box::new(BareHeld { connection, key: self.keys[0].clone(), id: 7, release: self.release.clone() })
    }
}

#[async_trait]
impl Held for BareHeld {
    async fn release(mut self: Box<Self>) {
        let done: u64 = self
            .release
            .key(&self.key)
            .arg(self.id)
            .invoke_async(&mut self.connection)
            .await
            .expect("bare: release");
        assert_eq!(done, 1);
    }
}

/// `distkit`, with its defaults.
struct Distkit(redis::aio::ConnectionManager);
struct DistkitLock(Arc<distkit::lock::Mutex>);
struct DistkitHeld(distkit::lock::MutexGuard);

#[async_trait]
impl Contender for Distkit {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        let key = distkit::DistkitRedisKey::try_from(name.to_owned()).expect("a key");
        let options = distkit::lock::LockOptions::new(key, self.0.clone());
        Box::new(DistkitLock(distkit::lock::Mutex::new(options)))
    }
}

#[async_trait]
impl Lock for DistkitLock {
    async fn acquire(&self) -> Box<dyn Held> {
        Box::new(DistkitHeld(self.0.lock().await.expect("distkit: lock")))
    }
}

#[async_trait]
impl Held for DistkitHeld {
    async fn release(self: Box<Self>) {
        self.0.release().await.expect("distkit: release");
    }
}

/// `rslock`, with its defaults; when its retries are used up, it starts again.
struct Rslock(rslock::LockManager);
struct RslockLock(rslock::LockManager, String);
struct RslockHeld(rslock::LockManager, rslock::Lock);

#[async_trait]
impl Contender for Rslock {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        Box::new(RslockLock(self.0.clone(), format!("rslock-{name}")))
    }
}

#[async_trait]
impl Lock for RslockLock {
    async fn acquire(&self) -> Box<dyn Held> {
        loop {
            if let Ok(lock) = self.0.lock(self.1.as_str(), Duration::from_secs(30)).await {
                return Box::new(RslockHeld(self.0.clone(), lock));
            }
        }
    }
}

#[async_trait]
impl Held for RslockHeld {
    async fn release(self: Box<Self>) {
        self.0.unlock(&self.1).await;
    }
}

/// The commands that leasehold's clients send, without what their scripts run inside Redis.
const COMMANDS: [&str; 5] = ["evalsha", "eval", "ping", "subscribe", "script"];

async fn info(connection: &mut MultiplexedConnection, section: &str) -> String {
    redis::cmd("INFO").arg(section).query_async(connection).await.expect("INFO")
}

/// How often clients have sent one of [`COMMANDS`], by the server's own count.
async fn commands(connection: &mut MultiplexedConnection) -> u64 {
    let stats = info(connection, "commandstats").await;
    stats
        .lines()
        .filter(|line| COMMANDS.iter().any(|command| line.starts_with(&format!("cmdstat_{command}:"))))
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
        .sum()
}

/// The processor time that Redis has used, in seconds.
async fn redis_time(connection: &mut MultiplexedConnection) -> f64 {
    let cpu = info(connection, "cpu").await;
    let of = |name: &str| {
        let line = cpu.lines().find_map(|line| line.strip_prefix(name)).expect("INFO cpu");
        line.trim().parse::<f64>().expect("seconds")
    };
    of("used_cpu_sys:") + of("used_cpu_user:")
}

#[tokio::main]
async fn main() {
    let server = testkit::redis::Server::start();
    let url = server.url();
    println!("{}", server_version(&url).await);

    let locks = Locks::connect(&url).await.expect("leasehold: connect");
    let ours: Arc<dyn Contender> = Arc::new(Leasehold(locks.clone()));
    let bare: Arc<dyn Contender> = Arc::new(Bare::connect(&url).await);
    let client = redis::Client::open(url.as_str()).expect("a URL");
    let distkit: Arc<dyn Contender> =
        Arc::new(Distkit(client.get_connection_manager().await.expect("distkit: connect")));
    let rslock: Arc<dyn Contender> = Arc::new(Rslock(rslock::LockManager::new(vec![url.as_str()])));

    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |figure: &str| asked.is_empty() || asked.iter().any(|asked| asked == figure);
    let mut looking = client.get_multiplexed_async_connection().await.expect("a connection");
    let mut table = Table::begin();
    for (figure, tasks, goal) in [("alone", 1, 0.85), ("pairs", 32, 0.6)] {
        if !wanted(figure) {
            continue;
        }
        let all = [&ours, &bare, &distkit, &rslock];
        let rounds = pairs_in_turns(all, tasks, ROUNDS, ROUND).await;
        let of_bare = ratio(&rounds, 0, 1);
        let peer = |which: usize| {
            format!("{:.0}/s, {:.2} of it", column(&rounds, which).median, ratio(&rounds, 0, which))
        };
        table.row(
            &format!("uncontended pairs, {tasks} tasks on {tasks} names"),
            of_bare.median >= goal,
            format!("{:.0}/s, {of_bare:.2} of bare scripts", column(&rounds, 0).median),
            &format!("≥ {goal}"),
            format!(
                "bare scripts {:.0}/s; distkit {}; rslock {}",
                column(&rounds, 1).median,
                peer(2),
                peer(3)
            ),
        );
    }

    if wanted("processor") {
        // The work of Redis itself for one acquire or release.
        let cost = in_turns_async(ROUNDS, async |which: usize| {
            let before = redis_time(&mut looking.clone()).await;
            let rate = benchmarks::uncontended([&ours, &bare, &rslock][which], 32, ROUND).await;
            (redis_time(&mut looking.clone()).await - before) / (2.0 * rate * ROUND.as_secs_f64()) * 1e6
        });
        let rounds: Vec<[f64; 3]> = cost.await;
        table.row(
            "processor time of Redis for one acquire or release, 32 tasks",
            true,
            format!("{:.1} µs, {:.2} of bare scripts", column(&rounds, 0).median, ratio(&rounds, 0, 1)),
            "",
            format!(
                "bare scripts {:.1} µs, rslock {:.1} µs",
                column(&rounds, 1).median,
                column(&rounds, 2).median
            ),
        );
    }

    if wanted("contended") {
        let all = [&ours, &distkit, &rslock];
        let rounds: Vec<[Contention; 3]> = in_turns_async(ROUNDS, async |which: usize| {
            let connection = client.get_multiplexed_async_connection().await.expect("a connection");
            let probe = move || {
                let mut connection = connection.clone();
                async move {
                    let _: Option<String> = connection.get("nothing").await.expect("a round trip");
                }
            };
            contended(all[which], 16, CONTENDED, probe).await
        })
        .await;
        let [we, distkit, rslock] =
            [0, 1, 2].map(|which| rounds.iter().map(|round| round[which]).collect::<Vec<_>>());
        let ahead = Spread::of(
            rounds.iter().map(|[we, one, other]| we.hand_overs / one.hand_overs.max(other.hand_overs)),
        );
        let middle = |of: &[Contention], figure: fn(&Contention) -> f64| of_rounds(of, figure).median;
        let longest = |of: &[Contention]| of_rounds(of, |seen| seen.wait_max).highest;
        table.row(
            "hand-overs to another task, 16 tasks on one name",
            ahead.median >= 20.0,
            format!(
                "{:.0}/s, {ahead:.0} times the better of the others",
                middle(&we, |seen| seen.hand_overs)
            ),
            "≥ 20",
            format!(
                "distkit {:.0}/s ({:.0} % of its grants to the same task again), rslock {:.0}/s ({:.0} %)",
                middle(&distkit, |seen| seen.hand_overs),
                middle(&distkit, |seen| seen.same_again),
                middle(&rslock, |seen| seen.hand_overs),
                middle(&rslock, |seen| seen.same_again)
            ),
        );
        let trips = of_rounds(&we, |seen| seen.hand_over / seen.probe);
        table.row(
            "release call to the next holder's return, median",
            trips.median <= 3.0,
            format!("{:.3} ms, {trips:.1} round trips", middle(&we, |seen| seen.hand_over)),
            "≤ 3",
            format!("a bare round trip under the same load {:.3} ms", middle(&we, |seen| seen.probe)),
        );
        let tail = of_rounds(&we, |seen| seen.wait_p99 / seen.wait_p50);
        table.row(
            "wait, 99th percentile to median",
            tail.median <= 2.0,
            format!("{tail:.2} (longest of all rounds {:.0} ms)", longest(&we)),
            "≤ 2",
            format!("longest: distkit {:.0} ms, rslock {:.0} ms", longest(&distkit), longest(&rslock)),
        );
        let spread = of_rounds(&we, |seen| seen.spread);
        table.row(
            "grants of the busiest task to those of the idlest",
            spread.median <= 1.1,
            format!("{spread:.2}"),
            "≤ 1.1",
            format!(
                "distkit {:.1}, rslock {:.1}",
                middle(&distkit, |seen| seen.spread),
                middle(&rslock, |seen| seen.spread)
            ),
        );
    }

    if wanted("crowd") {
        let rounds: Vec<[(f64, f64); 1]> = in_turns_async(3, async |_| {
            let before = commands(&mut looking.clone()).await;
            let crowd = contended(&ours, 501, CROWD, || async {}).await;
            let sent = (commands(&mut looking.clone()).await - before) as f64;
            (sent / (crowd.hand_overs * CROWD.as_secs_f64()), crowd.hand_overs)
        })
        .await;
        let each = Spread::of(rounds.iter().map(|round| round[0].0));
        table.row(
            "commands per hand-over, 500 waiters",
            each.median <= 5.0,
            format!("{each:.2}"),
            "≤ 5",
            format!("{:.0} hand-overs/s", Spread::of(rounds.iter().map(|round| round[0].1)).median),
        );
    }

    if wanted("renewals") {
        let before = (Instant::now(), redis_time(&mut looking).await);
        let guards = hold(&locks).await;
        let acquiring = (before.0.elapsed(), redis_time(&mut looking).await - before.1);
        let before = (Instant::now(), cpu_time(), redis_time(&mut looking).await);
        // One and a half ttls without other work.
        tokio::time::sleep(Duration::from_secs(45)).await;
        let took = before.0.elapsed().as_secs_f64();
        let client = (cpu_time() - before.1).as_secs_f64() / took * 100.0;
        let redis = (redis_time(&mut looking).await - before.2) / took * 100.0;
        assert!(guards.iter().all(|guard| guard.check().is_ok()), "a lease was lost");
        table.row(
            &format!("renewing {LEASES} leases of 30 s from one client"),
            client < 25.0,
            format!("{client:.1} % of a core in the client, {redis:.1} % in Redis"),
            "< 25 % in the client",
            format!(
                "acquiring them took {:.1} s, and Redis {:.1} s of a core",
                acquiring.0.as_secs_f64(),
                acquiring.1
            ),
        );
    }
    table.end();
    locks.close().await;
}

async fn server_version(url: &str) -> String {
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
    let server = info(&mut connection, "server").await;
    server.lines().find(|line| line.starts_with("redis_version")).unwrap_or_default().to_owned()
}

/// Takes this many leases, 500 at a time.
async fn hold(locks: &Locks) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(LEASES);
    for some in 0..LEASES / 500 {
        let acquired = (0..500).map(|n| {
            let mutex = locks.mutex(format!("job-{}", some * 500 + n));
            tokio::spawn(async move { mutex.lock().await.expect("leasehold: lock") })
        });
        for guard in acquired.collect::<Vec<_>>() {
            guards.push(guard.await.expect("a task of the benchmark"));
        }
    }
    guards
}
