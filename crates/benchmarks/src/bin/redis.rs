//! The figures of the Redis store, beside bare scripts and other locks: `make bench-redis`. With arguments only some of
//! them: `alone`, `pairs`, `contended`, `crowd`, `renewals`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use benchmarks::{Contender, Held, Leasehold, Lock, Table, alternate, contended, cpu_time, uncontended};
use leasehold::Locks;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Script};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1500);
const CONTENDED: Duration = Duration::from_secs(5);
const LEASES: usize = 100_000;

/// The least that can be called a fenced lock: two scripts.
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
        // As leasehold's own: the driver's default is short for a machine that is busy with other things.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(2)));
        Bare {
            connection: client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection"),
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
        let done: u64 =
            self.release.key(&self.key).arg(self.id).invoke_async(&mut self.connection).await.expect("bare: release");
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

/// `rslock`, with its defaults; when its retries are used up, again.
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

/// How many commands clients have sent, by the server's own count; commands that scripts ran are not among them.
async fn commands(connection: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("INFO");
    stats
        .lines()
        .filter(|line| {
            ["evalsha", "eval", "ping", "subscribe", "script"]
                .iter()
                .any(|c| line.starts_with(&format!("cmdstat_{c}:")))
        })
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
        .sum()
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
    let mut table = Table::begin();
    for (figure, tasks, goal) in [("alone", 1, 0.85), ("pairs", 32, 0.6)] {
        if !wanted(figure) {
            continue;
        }
        let (rate, beside, ratio) =
            alternate(ROUNDS, || uncontended(&ours, tasks, ROUND), || uncontended(&bare, tasks, ROUND)).await;
        let distkit = uncontended(&distkit, tasks, ROUND).await;
        let rslock = uncontended(&rslock, tasks, ROUND).await;
        table.row(
            &format!("uncontended pairs, {tasks} tasks on {tasks} names"),
            ratio >= goal,
            format!("{rate:.0}/s, {ratio:.2} of bare scripts"),
            &format!("≥ {goal}"),
            format!("bare scripts {beside:.0}/s, distkit {distkit:.0}/s, rslock {rslock:.0}/s"),
        );
    }

    if wanted("contended") {
        let probe = |client: &redis::Client| {
            let client = client.clone();
            async move {
                let connection = client.get_multiplexed_async_connection().await.expect("a connection");
                move || {
                    let mut connection = connection.clone();
                    async move {
                        let _: Option<String> = connection.get("nothing").await.expect("a round trip");
                    }
                }
            }
        };
        let we = contended(&ours, 16, CONTENDED, probe(&client).await).await;
        let distkit = contended(&distkit, 16, CONTENDED, probe(&client).await).await;
        let rslock = contended(&rslock, 16, CONTENDED, probe(&client).await).await;
        let best = distkit.hand_overs.max(rslock.hand_overs);
        table.row(
            "hand-overs to another task, 16 tasks on one name",
            we.hand_overs >= 20.0 * best,
            format!("{:.0}/s, {:.0}× the better of the others", we.hand_overs, we.hand_overs / best),
            "≥ 20×",
            format!(
                "distkit {:.0}/s ({:.0} % of its grants to the same task again), rslock {:.0}/s ({:.0} %)",
                distkit.hand_overs, distkit.same_again, rslock.hand_overs, rslock.same_again
            ),
        );
        table.row(
            "release call to the next holder's return, median",
            we.hand_over <= 3.0 * we.probe,
            format!("{:.3} ms, {:.1} round trips", we.hand_over, we.hand_over / we.probe),
            "≤ 3",
            format!("a bare round trip under the same load {:.3} ms", we.probe),
        );
        table.row(
            "wait, 99th percentile to median",
            we.wait_p99 <= 2.0 * we.wait_p50,
            format!(
                "{:.2}× ({:.2} ms to {:.2} ms, longest {:.1} ms)",
                we.wait_p99 / we.wait_p50,
                we.wait_p99,
                we.wait_p50,
                we.wait_max
            ),
            "≤ 2×",
            format!("distkit longest {:.0} ms, rslock longest {:.0} ms", distkit.wait_max, rslock.wait_max),
        );
        table.row(
            "busiest task to idlest",
            we.spread <= 1.1,
            format!("{:.2}×", we.spread),
            "≤ 1.1×",
            format!("distkit {:.1}×, rslock {:.1}×", distkit.spread, rslock.spread),
        );
    }

    if wanted("crowd") {
        let mut counting = client.get_multiplexed_async_connection().await.expect("a connection");
        let before = commands(&mut counting).await;
        let crowd = contended(&ours, 501, CONTENDED, || async {}).await;
        let sent = (commands(&mut counting).await - before) as f64;
        let hand_overs = crowd.hand_overs * CONTENDED.as_secs_f64();
        // Each of the 500 refreshes its place every 3.3 s while it waits.
        let refreshes = 500.0 * CONTENDED.as_secs_f64() / 3.33;
        let each = (sent - refreshes).max(0.0) / hand_overs;
        table.row(
            "commands per hand-over, 500 waiters",
            each <= 5.0,
            format!("{each:.2} (with ticket refreshes {:.2})", sent / hand_overs),
            "≤ 5",
            format!("{:.0} hand-overs/s", crowd.hand_overs),
        );
    }

    if wanted("renewals") {
        let share = renewals(&locks).await;
        table.row(
            &format!("renewing {LEASES} leases of 30 s from one client"),
            share < 25.0,
            format!("{share:.1} % of a core"),
            "< 25 %",
            String::new(),
        );
    }
    table.end();
    locks.close().await;
}

async fn server_version(url: &str) -> String {
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.expect("INFO");
    info.lines().find(|line| line.starts_with("redis_version")).unwrap_or_default().to_owned()
}

/// Percent of a core, over one and a half ttls with nothing else to do.
async fn renewals(locks: &Locks) -> f64 {
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
    let (started, before) = (Instant::now(), cpu_time());
    tokio::time::sleep(Duration::from_secs(45)).await;
    let share = (cpu_time() - before).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    assert!(guards.iter().all(|guard| guard.check().is_ok()), "a lease was lost");
    share
}
