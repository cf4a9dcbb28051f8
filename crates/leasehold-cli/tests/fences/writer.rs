//! What the lock protects, on each kind of store: three tables (or keys) with one row, reached as users reach them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use rusqlite::types::ValueRef;
use testkit::mariadb::MariaDb;
use testkit::postgres::Postgres;
use testkit::redis::Server;

/// Prints with the command line.
pub(crate) fn printed(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold")).arg("fences").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// How a write is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// By the function, in the transaction of the write.
    Function,
    /// By the trigger of the table.
    Trigger,
    /// Not at all.
    Nothing,
}

/// A way to the protected data. It fits into a line, so that another process can have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Writer {
    Postgres(String),
    MariaDb(String),
    Sqlite(String),
    Redis(String),
}

/// The server or file behind a writer, for as long as the test lasts.
#[allow(dead_code)] // kept, and not looked at
pub(crate) enum Behind {
    Postgres(Postgres),
    MariaDb(MariaDb),
    Sqlite(tempfile::TempDir),
    Redis(Server),
}

impl Writer {
    pub(crate) fn postgres() -> (Self, Behind) {
        let server = Postgres::start();
        let writer = Writer::Postgres(server.url());
        writer.install("postgres", "bigint", "text");
        (writer, Behind::Postgres(server))
    }

    pub(crate) fn mariadb() -> (Self, Behind) {
        let server = MariaDb::start();
        let writer = Writer::MariaDb(server.port().to_string());
        writer.install("mysql", "BIGINT", "VARCHAR(20)");
        (writer, Behind::MariaDb(server))
    }

    pub(crate) fn sqlite() -> (Self, Behind) {
        let directory = tempfile::tempdir().unwrap();
        let writer = Writer::Sqlite(directory.path().join("data.db").display().to_string());
        writer.install("sqlite", "INTEGER", "TEXT");
        (writer, Behind::Sqlite(directory))
    }

    pub(crate) fn redis() -> (Self, Behind) {
        let server = Server::start();
        let writer = Writer::Redis(server.port().to_string());
        (writer, Behind::Redis(server))
    }

    /// Installs what the command prints, twice, as a careful person does; and makes the tables.
    fn install(&self, dialect: &str, number: &str, text: &str) {
        let functions = printed(&["sql", "--dialect", dialect]);
        for _ in 0..2 {
            self.sql(&functions).unwrap();
        }
        for table in ["checked", "guarded", "plain"] {
            let columns = format!("id {text} PRIMARY KEY, body {text}, fence {number}");
            self.sql(&format!(
                "CREATE TABLE {table} ({columns}); INSERT INTO {table} (id, body) VALUES ('r1', '0');"
            ))
            .unwrap();
        }
        let triggers = printed(&["sql", "--dialect", dialect, "--table", "guarded", "--key", "id"]);
        for _ in 0..2 {
            self.sql(&triggers).unwrap();
        }
    }

    /// The line from which [`Writer::read`] makes it again.
    pub(crate) fn line(&self) -> String {
        let (kind, to) = match self {
            Writer::Postgres(to) => ("postgres", to),
            Writer::MariaDb(to) => ("mariadb", to),
            Writer::Sqlite(to) => ("sqlite", to),
            Writer::Redis(to) => ("redis", to),
        };
        format!("{kind} {to}")
    }

    pub(crate) fn read(line: &str) -> Self {
        match line.split_once(' ').unwrap() {
            ("postgres", to) => Writer::Postgres(to.into()),
            ("mariadb", to) => Writer::MariaDb(to.into()),
            ("sqlite", to) => Writer::Sqlite(to.into()),
            (_, to) => Writer::Redis(to.into()),
        }
    }

    pub(crate) fn checks(&self) -> &'static [Check] {
        match self {
            Writer::Redis(_) => &[Check::Function, Check::Nothing],
            _ => &[Check::Function, Check::Trigger, Check::Nothing],
        }
    }

    /// The name of the resource that a refusal names.
    pub(crate) fn resource(&self, check: Check) -> &'static str {
        match (self, check) {
            (Writer::Redis(_), _) => "{report}",
            (_, Check::Trigger) => "guarded/r1",
            _ => "report",
        }
    }

    /// The statement that calls the function.
    pub(crate) fn call(&self, resource: &str, fence: &str) -> String {
        match self {
            Writer::Postgres(_) => format!("SELECT check_fence({resource}, {fence})"),
            Writer::MariaDb(_) => format!("CALL check_fence({resource}, {fence})"),
            _ => format!("INSERT INTO check_fence (resource, fence) VALUES ({resource}, {fence})"),
        }
    }

    /// The beginning of a transaction.
    pub(crate) fn begin(&self) -> &'static str {
        match self {
            Writer::Postgres(_) => "BEGIN",
            Writer::MariaDb(_) => "START TRANSACTION",
            _ => "BEGIN IMMEDIATE",
        }
    }

    /// Writes, or says why it was refused.
    pub(crate) fn write(&self, value: &str, fence: &str, check: Check) -> Result<String, String> {
        if let Writer::Redis(_) = self {
            let script = printed(&["redis"]);
            return match check {
                Check::Nothing => self.redis_cli(&["SET", "{report}", value]),
                _ => {
                    self.redis_cli(&["EVAL", &script, "2", "{report}", "{report}:fence", fence, "SET", value])
                }
            };
        }
        match check {
            Check::Function => {
                let update = format!("UPDATE checked SET body = '{value}' WHERE id = 'r1'");
                self.sql(&format!("{}; {}; {update}; COMMIT;", self.begin(), self.call("'report'", fence)))
            }
            Check::Trigger => {
                self.sql(&format!("UPDATE guarded SET body = '{value}', fence = {fence} WHERE id = 'r1';"))
            }
            Check::Nothing => self.sql(&format!("UPDATE plain SET body = '{value}' WHERE id = 'r1';")),
        }
    }

    /// What is stored.
    pub(crate) fn stored(&self, check: Check) -> String {
        let table = match check {
            _ if matches!(self, Writer::Redis(_)) => return self.redis_cli(&["GET", "{report}"]).unwrap(),
            Check::Function => "checked",
            Check::Trigger => "guarded",
            Check::Nothing => "plain",
        };
        self.sql(&format!("SELECT body FROM {table} WHERE id = 'r1';")).unwrap()
    }

    /// Runs SQL with the program that people use; returns the last answer.
    pub(crate) fn sql(&self, sql: &str) -> Result<String, String> {
        match self {
            Writer::Sqlite(path) => sqlite(&rusqlite::Connection::open(path).unwrap(), sql),
            Writer::Redis(_) => panic!("Redis takes no SQL"),
            _ => run(self.client(), sql),
        }
    }

    /// The client program, which reads SQL from its input.
    pub(crate) fn client(&self) -> Command {
        match self {
            Writer::Postgres(url) => {
                let mut psql = Command::new("psql");
                psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url]);
                psql
            }
            Writer::MariaDb(port) => {
                let mut mariadb = Command::new("mariadb");
                mariadb.args([
                    "--no-defaults",
                    "--user=root",
                    "--host=127.0.0.1",
                    "--batch",
                    "--skip-column-names",
                ]);
                mariadb.args(["--raw", "--unbuffered", "--default-character-set=utf8mb4", "test"]);
                mariadb.arg(format!("--port={port}"));
                mariadb
            }
            _ => panic!("{self:?} has no client program that reads SQL"),
        }
    }

    pub(crate) fn redis_cli(&self, args: &[&str]) -> Result<String, String> {
        let Writer::Redis(port) = self else { panic!("{self:?} is no Redis") };
        let mut cli = Command::new("redis-cli");
        // -e: an error of the server is an exit code.
        cli.args(["-p", port, "-e"]).args(args);
        run(cli, "")
    }
}

/// Runs a program with this input; returns what it prints, or the error that it prints.
fn run(mut command: Command, input: &str) -> Result<String, String> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("{}{}", text(&output.stderr), text(&output.stdout)))
}

/// Runs several statements; returns the first column of the last row.
fn sqlite(db: &rusqlite::Connection, sql: &str) -> Result<String, String> {
    if !sql.trim_start().starts_with("SELECT") {
        return db.execute_batch(sql).map(|()| String::new()).map_err(|error| error.to_string());
    }
    let text = db.query_row(sql, [], |row| {
        Ok(match row.get_ref(0)? {
            ValueRef::Integer(number) => number.to_string(),
            ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
            other => format!("{other:?}"),
        })
    });
    text.map_err(|error| error.to_string())
}
