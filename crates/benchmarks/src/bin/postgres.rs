//! Benchmarks of the PostgreSQL stores, beside bare statements and another lock: `make bench-postgres`. Arguments
//! select figures by a part of their names: `… --bin postgres -- 'leases: uncontended' fenced`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use benchmarks::{
    Contender, Contention, Held, Leasehold, Lock, Table, column, contended, of_rounds, pairs_in_turns, ratio,
};
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use leasehold::Locks;
use testkit::turns::in_turns_async;
use tokio_postgres::{Client, NoTls, Statement};

const ROUNDS: usize = 21;
const ROUND: Duration = Duration::from_millis(500);
const CONTENDED: Duration = Duration::from_secs(2);
const CONTENDED_ROUNDS: usize = 7;
/// Connections of the bare upserts, and of the leases (default 8): as many as there are tasks.
const POOL: usize = 16;

async fn connect(url: &str) -> Arc<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    Arc::new(client)
}

/// Two bare statements on a connection, each in its own transaction: an acquire and a release, without a lock.
struct Bare {
    clients: Vec<Arc<Client>>,
    next: AtomicUsize,
    statements: [&'static str; 2],
    /// A key for `pg_advisory_lock`, or a name for the table.
    by_number: bool,
}

struct BareLock {
    client: Arc<Client>,
    statements: [Statement; 2],
    name: String,
    number: i64,
    by_number: bool,
}

struct BareHeld {
    client: Arc<Client>,
    statement: Statement,
    name: String,
    number: i64,
    by_number: bool,
}

const UPSERT: &str =
    "INSERT INTO bare (name, n) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = bare.n + 1";

impl Bare {
    async fn upserts(url: &str, connections: usize) -> Self {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(connect(url).await);
        }
        let table = "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, n bigint NOT NULL)";
        clients[0].batch_execute(table).await.expect("a table");
        Bare { clients, next: AtomicUsize::new(0), statements: [UPSERT, UPSERT], by_number: false }
    }

    async fn advisory(url: &str) -> Self {
        let statements = ["SELECT pg_try_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"];
        Bare { clients: vec![connect(url).await], next: AtomicUsize::new(0), statements, by_number: true }
    }
}

#[async_trait]
impl Contender for Bare {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let client = self.clients[turn % self.clients.len()].clone();
        let statements = [
            client.prepare(self.statements[0]).await.expect("a statement"),
            client.prepare(self.statements[1]).await.expect("a statement"),
        ];
        let by_number = self.by_number;
        Box::new(BareLock { client, statements, name: name.to_owned(), number: turn as i64, by_number })
    }
}

async fn execute(client: &Client, statement: &Statement, name: &String, number: i64, by_number: bool) {
    let done = if by_number {
        client.query_one(statement, &[&number]).await.map(|row| row.get(0))
    } else {
        client.execute(statement, &[name]).await.map(|rows| rows == 1)
    };
    assert!(done.expect("a bare statement"));
}

#[async_trait]
impl Lock for BareLock {
    async fn acquire(&self) -> Box<dyn Held> {
        execute(&self.client, &self.statements[0], &self.name, self.number, self.by_number).await;
        Box::new(BareHeld {
            client: self.client.clone(),
            statement: self.statements[1].clone(),
            name: self.name.clone(),
            number: self.number,
            by_number: self.by_number,
        })
    }
}

#[async_trait]
impl Held for BareHeld {
    async fn release(self: Box<Self>) {
        execute(&self.client, &self.statement, &self.name, self.number, self.by_number).await;
    }
}

/// `distributed-lock-postgres`, with its defaults.
struct Peer(Arc<distributed_lock_postgres::PostgresLockProvider>);

struct PeerLock<L>(L);

struct PeerHeld<H>(H);

#[async_trait]
impl Contender for Peer {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        Box::new(PeerLock(self.0.create_lock(name)))
    }
}

#[async_trait]
impl<L> Lock for PeerLock<L>
where
    L: DistributedLock + 'static,
    L::Handle: 'static,
{
    async fn acquire(&self) -> Box<dyn Held> {
        Box::new(PeerHeld(self.0.acquire(None).await.expect("distributed-lock-postgres: acquire")))
    }
}

#[async_trait]
impl<H: LockHandle + Send + 'static> Held for PeerHeld<H> {
    async fn release(self: Box<Self>) {
        self.0.release().await.expect("distributed-lock-postgres: release");
    }
}

async fn leasehold(url: &str) -> Arc<dyn Contender> {
    Arc::new(Leasehold(Locks::connect(url).await.expect("leasehold: connect")))
}

/// A probe that runs this statement on its own connection.
async fn probe(
    url: &str,
    sql: &str,
) -> impl FnMut() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + 'static {
    let client = connect(url).await;
    let statement = client.prepare(sql).await.expect("a statement");
    move || {
        let (client, statement) = (client.clone(), statement.clone());
        Box::pin(async move {
            client.execute(&statement, &[]).await.expect("a bare statement");
        })
    }
}

fn main() {
    // Test servers live as long as the thread that started them.
    let server = testkit::postgres::Postgres::builder().setting("max_connections", "200").start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(measure(&server.url()));
}

/// Whether a figure is wanted: all are, unless arguments select some.
fn wanted(figure: &str) -> bool {
    let mut asked = std::env::args().skip(1).peekable();
    asked.peek().is_none() || asked.any(|part| figure.contains(&part))
}

async fn measure(url: &str) {
    let about =
        connect(url).await.query_one("SELECT version(), current_setting('synchronous_commit')", &[]).await;
    let about = about.expect("the version");
    println!("{}, synchronous_commit {}", about.get::<_, String>(0), about.get::<_, String>(1));
    let advisory = |options: &str| url.replacen("postgres://", "postgres+advisory://", 1) + options;
    let joined =
        |url: &str, option: &str| format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' });

    let tables = leasehold(&joined(url, &format!("pool_size={POOL}"))).await;
    let fenced = leasehold(&advisory("")).await;
    let unfenced = joined(&advisory(""), "fences=off");
    let unfenced =
        Locks::connect_builder(&unfenced).await.expect("leasehold: connect").allow_unfenced(true).build();
    let unfenced: Arc<dyn Contender> = Arc::new(Leasehold(unfenced));
    let upserts: Arc<dyn Contender> = Arc::new(Bare::upserts(url, POOL).await);
    let bare: Arc<dyn Contender> = Arc::new(Bare::advisory(url).await);
    let peer =
        distributed_lock_postgres::PostgresLockProvider::new(url).await.expect("distributed-lock-postgres");
    let peer: Arc<dyn Contender> = Arc::new(Peer(Arc::new(peer)));

    let mut table = Table::begin();
    for (tasks, goal) in [(1, 0.7), (16, 0.6)] {
        let figure = format!("leases: uncontended pairs, {tasks} tasks on {tasks} names");
        if wanted(&figure) {
            beside(&mut table, &figure, [&tables, &upserts], tasks, goal, "two bare prepared upserts").await;
        }
    }
    for (what, ours, goal) in [("unfenced", &unfenced, 0.9), ("fenced", &fenced, 0.45)] {
        let figure = format!("advisory, {what}: uncontended pairs, 1 task");
        if wanted(&figure) {
            let pair = "bare `pg_try_advisory_lock` and `pg_advisory_unlock`";
            beside(&mut table, &figure, [ours, &bare], 1, goal, pair).await;
        }
    }
    let figure = "advisory, unfenced: uncontended pairs, 1 task, beside another lock";
    if wanted(figure) {
        beside(&mut table, figure, [&unfenced, &peer], 1, 2.0, "distributed-lock-postgres").await;
    }
    let upsert =
        "INSERT INTO bare (name, n) VALUES ('probe', 1) ON CONFLICT (name) DO UPDATE SET n = bare.n + 1";
    for (what, ours, sql, unit) in
        [("advisory", &fenced, "SELECT 1", "round trips"), ("leases", &tables, upsert, "committed upserts")]
    {
        let figure = format!("{what}: release call to the next holder's return, 16 tasks, median");
        if !wanted(&figure) {
            continue;
        }
        let rounds: Vec<[Contention; 1]> = in_turns_async(CONTENDED_ROUNDS, async |_| {
            contended(ours, 16, CONTENDED, probe(url, sql).await).await
        })
        .await;
        let rounds = rounds.as_flattened();
        let middle = |figure: fn(&Contention) -> f64| of_rounds(rounds, figure).median;
        let units = of_rounds(rounds, |seen| seen.hand_over / seen.probe);
        table.row(
            &figure,
            units.median <= 4.0,
            format!("{:.3} ms, {units:.1} {unit}", middle(|seen| seen.hand_over)),
            "≤ 4",
            format!(
                "one under the same load {:.3} ms; {:.0} hand-overs/s, wait p50 {:.1} ms, p99 {:.1} ms, busiest to idlest {:.2}",
                middle(|seen| seen.probe),
                middle(|seen| seen.hand_overs),
                middle(|seen| seen.wait_p50),
                middle(|seen| seen.wait_p99),
                middle(|seen| seen.spread)
            ),
        );
    }
    let figure = "leases: room of one that is held, of 20 000";
    if wanted(figure) {
        let (client, store) = room(url).await;
        table.row(
            figure,
            client < 1024.0 && store < 1024.0,
            format!("{client:.0} bytes in the client, {store:.0} in the tables and their indices"),
            "< 1 KB each",
            "resident memory and size on disk, before and after".into(),
        );
    }
    table.end();
}

/// Compares uncontended pairs of the first with those of the second, in turns.
async fn beside(
    table: &mut Table,
    figure: &str,
    both: [&Arc<dyn Contender>; 2],
    tasks: usize,
    goal: f64,
    other: &str,
) {
    let rounds = pairs_in_turns(both, tasks, ROUNDS, ROUND).await;
    let to_other = ratio(&rounds, 0, 1);
    table.row(
        figure,
        to_other.median >= goal,
        format!("{:.0}/s, {to_other:.2} of what stands beside it", column(&rounds, 0).median),
        &format!("≥ {goal}"),
        format!("{other} {:.0}/s", column(&rounds, 1).median),
    );
}

/// The memory of a held lease: bytes of this process, and of the tables.
async fn room(url: &str) -> (f64, f64) {
    const LEASES: usize = 20_000;
    const TASKS: usize = 16;
    let locks = Locks::connect_builder(url).await.expect("leasehold: connect");
    let locks = locks.ttl(Duration::from_secs(600)).build();
    let look = connect(url).await;
    let size = async || {
        let sql = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class \
                   WHERE relnamespace = 'leasehold'::regnamespace AND relkind = 'r'";
        look.query_one(sql, &[]).await.expect("the size of the tables").get::<_, i64>(0) as f64
    };
    // Pay one-time costs first.
    locks
        .mutex("warm")
        .lock()
        .await
        .expect("leasehold: acquire")
        .release()
        .await
        .expect("leasehold: release");
    let (resident_before, size_before) = (resident(), size().await);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut held = Vec::with_capacity(LEASES / TASKS);
                for n in 0..LEASES / TASKS {
                    let mutex = locks.mutex(&format!("reports/customer-{task:02}/nightly-{n:06}"));
                    held.push(mutex.lock().await.expect("leasehold: acquire"));
                }
                held
            })
        })
        .collect();
    let mut held = Vec::new();
    for task in tasks {
        held.push(task.await.expect("a task"));
    }
    let each = |before: f64, after: f64| (after - before) / LEASES as f64;
    let room = (each(resident_before, resident()), each(size_before, size().await));
    for guard in held.into_iter().flatten() {
        guard.release().await.expect("leasehold: release");
    }
    room
}

/// Resident memory of this process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its size");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0
}
