//! The figures of the PostgreSQL stores, beside bare statements and another lock: `make bench-postgres`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use benchmarks::{Contender, Held, Leasehold, Lock, Table, alternate, contended, uncontended};
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use leasehold::Locks;
use tokio_postgres::{Client, NoTls, Statement};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1500);
const CONTENDED: Duration = Duration::from_secs(5);

async fn connect(url: &str) -> Arc<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    Arc::new(client)
}

/// Two bare statements on a connection, each in a transaction of its own: an acquire and a release, without a lock.
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
