//! Redis servers that sentinels watch.

use super::{Dir, Server, TRIES, free_port, until, with_replica, with_replica_and};
use crate::servers::or_panic;

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
        Sentinels::watching(with_replica(), None)
    }

    /// As [`start`](Sentinels::start), with a password for the servers and another for the sentinels.
    ///
    /// # Panics
    /// If they cannot be started.
    pub fn with_passwords(servers: &str, sentinels: &str) -> Self {
        let options = ["--requirepass", servers, "--masterauth", servers];
        Sentinels::watching(with_replica_and(&options), Some(sentinels))
    }

    fn watching(servers: Vec<Server>, password: Option<&str>) -> Self {
        let sentinels: Vec<Server> = (0..3).map(|_| sentinel(&servers[0], password)).collect();
        until("the sentinels know each other", || {
            sentinels.iter().all(|sentinel| {
                let seen = sentinel.cli(&["SENTINEL", "MASTER", "main"]);
                let after = |field: &str| {
                    seen.lines().skip_while(|line| *line != field).nth(1).unwrap_or_default().to_owned()
                };
                after("num-other-sentinels") == "2"
                    && after("num-slaves") == "1"
                    && after("flags") == "master"
            })
        });
        Sentinels { servers, sentinels }
    }

    /// `redis-sentinel://…`
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
        format!("redis-sentinel://{}/main", hosts.join(","))
    }

    /// The port of the primary, as the first sentinel sees it.
    pub fn primary(&self) -> String {
        let seen = self.sentinels[0].cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        seen.lines().nth(1).unwrap_or_default().to_owned()
    }
}

fn sentinel(primary: &Server, password: Option<&str>) -> Server {
    for _ in 0..TRIES {
        let (dir, port) = (or_panic(Dir::new()), free_port());
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
        std::fs::write(dir.0.join("sentinel.conf"), config).expect("a file can be written");
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
        if or_panic(server.run()) {
            return server;
        }
    }
    panic!("no sentinel could be started");
}
