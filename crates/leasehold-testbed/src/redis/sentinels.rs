//! Redis servers that sentinels watch.

use std::io;
use std::time::Duration;

use super::replicas::with_replica_and;
use super::{Dir, Server, TRIES};
use crate::daemon::{self, wait_until};
use crate::{failed, or_panic};

/// A sentinel with this timeout, in milliseconds, does not fail over because the machine is busy.
const PATIENT: &str = "3600000";

/// A sentinel with this timeout notices a dead primary soon.
const ALERT: &str = "500";

/// A primary, a replica, and three sentinels that watch them.
#[derive(Debug)]
pub struct Sentinels {
    /// The two servers; which of them is the primary changes.
    pub servers: Vec<Server>,
    /// The sentinels.
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts them, and waits until the sentinels know each other and the replica.
    ///
    /// # Panics
    /// If they cannot be started.
    pub fn start() -> Self {
        or_panic(Sentinels::try_start())
    }

    /// As [`start`](Sentinels::start).
    ///
    /// # Errors
    /// If they cannot be started; the message says what to do.
    pub fn try_start() -> io::Result<Self> {
        Sentinels::watching(with_replica_and(&[])?, None)
    }

    /// As [`start`](Sentinels::start), with a password for the servers and another for the sentinels.
    ///
    /// # Panics
    /// If they cannot be started.
    pub fn with_passwords(servers: &str, sentinels: &str) -> Self {
        let options = ["--requirepass", servers, "--masterauth", servers];
        or_panic(with_replica_and(&options).and_then(|servers| Sentinels::watching(servers, Some(sentinels))))
    }

    fn watching(servers: Vec<Server>, password: Option<&str>) -> io::Result<Self> {
        let sentinels: Vec<Server> =
            (0..3).map(|_| sentinel(&servers[0], password)).collect::<io::Result<_>>()?;
        wait_until("the sentinels do not know each other", || {
            sentinels.iter().all(|sentinel| {
                let seen = sentinel.cli(&["SENTINEL", "MASTER", "main"]);
                let after = |field: &str| {
                    seen.lines().skip_while(|line| *line != field).nth(1).unwrap_or_default().to_owned()
                };
                after("num-other-sentinels") == "2"
                    && after("num-slaves") == "1"
                    && after("flags") == "master"
            })
        })?;
        Ok(Sentinels { servers, sentinels })
    }

    /// `redis-sentinel://…`
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
        format!("redis-sentinel://{}/main", hosts.join(","))
    }

    /// The port of the primary, as the first sentinel sees it.
    pub fn primary(&self) -> String {
        named_by(&self.sentinels[0])
    }

    fn watch(&self, millis: &str) {
        for sentinel in &self.sentinels {
            sentinel.cli(&["SENTINEL", "SET", "main", "down-after-milliseconds", millis]);
        }
    }

    /// Which server is the primary, and which the replica. From here on nothing fails over by itself: sentinels use
    /// the short timeout only during a fail-over.
    ///
    /// # Errors
    /// If the sentinels and the servers do not agree on one.
    pub fn roles(&self) -> io::Result<(usize, usize)> {
        self.watch(PATIENT);
        let mut primary = 0;
        wait_until("the sentinels do not agree on a primary", || {
            primary = usize::from(self.primary() == self.servers[1].port.to_string());
            let port = self.servers[primary].port.to_string();
            self.sentinels.iter().all(|sentinel| named_by(sentinel) == port)
                && self.servers[primary].is_primary()
                && !self.servers[1 - primary].is_primary()
        })?;
        Ok((primary, 1 - primary))
    }

    /// Cuts the replica off: nothing reaches it any more.
    ///
    /// # Errors
    /// If something still does.
    pub fn cut(&self, replica: usize) -> io::Result<()> {
        self.servers[replica].cut_from(&self.servers[1 - replica])
    }

    /// Waits until the sentinels have found the primary dead, and made this one the primary.
    ///
    /// # Errors
    /// If they do not.
    pub fn wait_for_promotion(&self, promoted: usize) -> io::Result<()> {
        self.watch(ALERT);
        self.promoted(promoted)
    }

    /// Asks the sentinels to make this one the primary at once, and waits until it is, and the other is not.
    ///
    /// # Errors
    /// If they do not.
    pub fn switch(&self, promoted: usize) -> io::Result<()> {
        // At first a sentinel may know too little about the replica.
        wait_until("no sentinel begins to fail over", || {
            self.sentinels[0].cli(&["SENTINEL", "FAILOVER", "main"]) == "OK"
        })?;
        wait_until("the replica does not take over", || self.servers[promoted].is_primary())?;
        self.servers[promoted].mend();
        self.wait_for_demotion(1 - promoted)
    }

    fn promoted(&self, promoted: usize) -> io::Result<()> {
        let port = self.servers[promoted].port.to_string();
        wait_until("the sentinels do not agree on the next primary", || {
            self.servers[promoted].is_primary()
                && self.sentinels.iter().all(|sentinel| named_by(sentinel) == port)
        })?;
        self.watch(PATIENT);
        self.servers[promoted].mend();
        Ok(())
    }

    /// Continues a stopped primary beside the one that has taken its place, for this long.
    ///
    /// # Errors
    /// If it cannot be made a replica then.
    pub fn go_on_beside(&self, old: usize, time: Duration) -> io::Result<()> {
        self.servers[old].go_on();
        std::thread::sleep(time);
        // As sentinels do, after eight seconds.
        self.servers[old].cli(&["REPLICAOF", "127.0.0.1", &self.servers[1 - old].port.to_string()]);
        self.wait_for_demotion(old)
    }

    fn wait_for_demotion(&self, old: usize) -> io::Result<()> {
        wait_until("the old primary does not become a replica", || !self.servers[old].is_primary())
    }

    /// Restarts a killed server, as a replica of the other.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn come_back(&mut self, old: usize) -> io::Result<()> {
        let port = self.servers[1 - old].port;
        self.servers[old].restart_as_replica_of(port)
    }

    /// Waits until the replica has all data.
    ///
    /// # Errors
    /// If it does not get it.
    pub fn wait_for_copy(&self, replica: usize) -> io::Result<()> {
        self.servers[1 - replica].wait_for_copy(&self.servers[replica])
    }
}

/// The port of the primary, as a sentinel sees it.
fn named_by(sentinel: &Server) -> String {
    let seen = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
    seen.lines().nth(1).unwrap_or_default().to_owned()
}

fn sentinel(primary: &Server, password: Option<&str>) -> io::Result<Server> {
    for _ in 0..TRIES {
        let (dir, port) = (Dir::new()?, daemon::free_port()?);
        let mut config = format!(
            "port {port}\nsentinel monitor main 127.0.0.1 {} 2\nsentinel down-after-milliseconds main 3000\n\
             sentinel failover-timeout main 3000\n",
            primary.port
        );
        if let Some(password) = &primary.password {
            config += &format!("sentinel auth-pass main {password}\n");
        }
        if let Some(password) = password {
            config += &format!("requirepass {password}\n");
        }
        std::fs::write(dir.0.join("sentinel.conf"), config)?;
        let mut server = Server {
            process: None,
            port,
            dir,
            options: Vec::new(),
            environment: Vec::new(),
            password: password.map(str::to_owned),
            tls: false,
            sentinel: true,
        };
        if server.run()? {
            return Ok(server);
        }
    }
    Err(failed("no sentinel can be started"))
}
