//! One case: its clients, its locks, and its steps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Error, Fence, Guard, Locks};
use parking_lot::Mutex;
use serde_json::Value;
use testkit::bench::Bench;
use tokio::task::JoinHandle;

use super::results::{Held, demand, is_fault, kind, reason, suits};

type Step<'a> = &'a Value;
type Done = Result<(), String>;

/// What is between the clients and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// Nothing.
    Straight,
    /// Faults at random.
    Weather,
    /// Those that the case asks for.
    Faults,
}

impl Network {
    pub(crate) fn runs(self, case: &Value) -> bool {
        let faults = case["faults"] == true;
        match self {
            Network::Straight => !faults,
            Network::Weather => !faults && case["weather"] != false,
            Network::Faults => faults,
        }
    }
}

/// How long a step may take unless it says so.
const WITHIN: Duration = Duration::from_secs(10);

/// How long a call that fails is repeated in bad weather.
const WEATHER: Duration = Duration::from_secs(10);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Case {
    bench: Arc<Mutex<Bench>>,
    network: Network,
    prefix: String,
    clients: HashMap<String, Locks>,
    held: HashMap<String, Held>,
    started: HashMap<String, JoinHandle<Result<Option<Guard>, Error>>>,
    caught: String,
    directory: tempfile::TempDir,
}

fn word<'a>(step: Step<'a>, field: &str) -> &'a str {
    step[field].as_str().unwrap_or_default()
}

fn millis(step: Step<'_>, field: &str) -> Option<Duration> {
    step[field].as_u64().map(Duration::from_millis)
}

fn shown<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", kind(&error)))
}

impl Case {
    pub(crate) fn new(bench: Arc<Mutex<Bench>>, network: Network) -> Self {
        let prefix = format!("{}/", leasehold::LeaseId::random().expose());
        Case {
            bench,
            network,
            prefix,
            clients: HashMap::new(),
            held: HashMap::new(),
            started: HashMap::new(),
            caught: String::new(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) async fn run(mut self, case: &Value) -> Done {
        for (number, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            self.step(step).await.map_err(|why| format!("step {number} {step}: {why}"))?;
        }
        Ok(())
    }

    fn bench(&self, line: &str) -> Result<String, String> {
        tokio::task::block_in_place(|| self.bench.lock().obey(line)).map_err(|error| error.to_string())
    }

    fn name(&self, step: Step<'_>) -> String {
        let prefix = if step["raw"] == true { "" } else { &self.prefix };
        format!("{prefix}{}", word(step, "lock"))
    }

    /// The client of a step; the runner's own goes straight to the server.
    async fn client(&mut self, step: Step<'_>) -> Result<Locks, Error> {
        let name = word(step, "client").to_owned();
        if let Some(locks) = self.clients.get(&name) {
            return Ok(locks.clone());
        }
        let options = &step["options"];
        let (server, proxy) = {
            let bench = self.bench.lock();
            (bench.server(), bench.proxy())
        };
        let straight = self.network == Network::Straight || options["direct"] == true || name.is_empty();
        let mut url = format!("http://{}", if straight { server } else { proxy });
        if let Some(other) = options["url"].as_str() {
            url = other.into();
        }
        if let Some(token) = options["token"].as_str() {
            use std::os::unix::fs::PermissionsExt as _;
            let path = self.directory.path().join("token");
            std::fs::write(&path, token).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            url += &format!("?token_file={}", path.display());
        }
        let end = Instant::now() + WEATHER;
        let locks = loop {
            match Locks::connect(&url).await {
                Err(error)
                    if self.network == Network::Weather && is_fault(&error) && Instant::now() < end =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                connected => break connected?,
            }
        };
        let time = millis(options, "request_timeout");
        let time = time.or((!straight).then_some(Duration::from_secs(1)));
        let locks = locks.with_options(|options| {
            options.request_timeout = time.unwrap_or(options.request_timeout);
        });
        self.clients.insert(name, locks.clone());
        Ok(locks)
    }

    /// Repeats a call in bad weather.
    async fn again<T, F: Future<Output = Result<T, Error>>>(
        &self,
        expected: &Value,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let end = Instant::now() + WEATHER;
        loop {
            match call().await {
                Err(error)
                    if self.network == Network::Weather
                        && is_fault(&error)
                        && !suits(&kind(&error), expected)
                        && Instant::now() < end =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    async fn step(&mut self, step: Step<'_>) -> Done {
        let (name, within) = (self.name(step), millis(step, "within").unwrap_or(WITHIN));
        match word(step, "do") {
            "client" => drop(shown(self.client(step).await)?),
            "try" => self.try_once(step).await?,
            "lock" => {
                let got = match self.client(step).await {
                    Ok(locks) => tokio::time::timeout(within, acquire(locks, name, step.clone())).await,
                    Err(error) => Ok(Err(error)),
                };
                self.judge(step, got.map_err(|_| "it takes too long")?)?;
            }
            "start" => {
                let locks = shown(self.client(step).await)?;
                let task = tokio::spawn(acquire(locks, name, step.clone()));
                self.started.insert(word(step, "as").into(), task);
            }
            "join" => {
                let task = self.started.remove(word(step, "as")).ok_or("nothing was started")?;
                match tokio::time::timeout(within, task).await.map_err(|_| "it takes too long")? {
                    Err(end) if end.is_cancelled() => demand("cancelled", &step["expect"])?,
                    ended => self.judge(step, ended.map_err(|error| error.to_string())?)?,
                }
            }
            "pending" => {
                tokio::time::sleep(millis(step, "ms").unwrap_or_default()).await;
                if self.started.get(word(step, "as")).is_none_or(JoinHandle::is_finished) {
                    return Err("it has ended".into());
                }
            }
            "cancel" => self.started.get(word(step, "as")).ok_or("nothing was started")?.abort(),
            "queued" => {
                let count = step["count"].as_u64();
                self.until(within, &name, |info| Some(info.queue_length) == count).await?;
            }
            "free" => self.until(within, &name, |info| info.holder_count == 0).await?,
            "release" => {
                let held = self.held.get_mut(word(step, "as")).ok_or("no such lock")?;
                let released = tokio::time::timeout(within, held.release());
                let done = released.await.map_err(|_| "it takes too long")?;
                demand(&done.map_or_else(|error| kind(&error), str::to_owned), &step["expect"])?;
            }
            "check" | "lost" | "stays" | "left" | "fences" | "same" => self.look(step, within).await?,
            "show" => self.show(step, &name).await?,
            "list" => {
                let locks = shown(self.client(step).await)?;
                let (prefix, mut cursor, mut names) =
                    (self.prefix.clone() + word(step, "prefix"), None, vec![]);
                loop {
                    let limit = step["limit"].as_u64().unwrap_or(100) as usize;
                    let call = || locks.list(&prefix, limit, cursor.clone());
                    let page = shown(self.again(&Value::Null, call).await)?;
                    names.extend(page.items.iter().map(|one| one.name.as_str().to_owned()));
                    cursor = page.next;
                    if cursor.is_none() {
                        break;
                    }
                }
                let own: Vec<&str> = names.iter().filter_map(|one| one.strip_prefix(&self.prefix)).collect();
                if Value::from(own) != step["names"] {
                    return Err(format!("saw {names:?}"));
                }
            }
            "revoke" => {
                let locks = shown(self.client(step).await)?;
                let now = step["now"] == true;
                let only = match step["only"].as_str() {
                    Some(only) => Some(Fence::new(self.held.get(only).ok_or("no such lock")?.fence)),
                    None => None,
                };
                let call = || async {
                    match only {
                        Some(fence) => locks.revoke_only(&name, fence, now).await,
                        None => locks.revoke(&name, now).await,
                    }
                };
                let revoked = shown(self.again(&Value::Null, call).await)?.leases;
                if self.network != Network::Weather && Some(revoked) != step["expect"].as_u64() {
                    return Err(format!("revoked {revoked}"));
                }
            }
            "post" => {
                let path = self.path(word(step, "path"));
                let server = self.bench.lock().server().to_string();
                let status = post(server, path, step["body"].to_string()).await;
                if Some(status) != step["expect"].as_u64() {
                    return Err(format!("status {status}"));
                }
            }
            "sleep" => tokio::time::sleep(millis(step, "ms").unwrap_or_default()).await,
            "bench" => {
                let value = self.bench(word(step, "line"))?;
                if word(step, "line").starts_with("hold ") {
                    self.caught = value;
                }
            }
            "caught" => demand(
                &self.bench(&format!("caught {} {}", self.caught, within.as_millis()))?,
                &Value::from("true"),
            )?,
            "deliver" => drop(self.bench(&format!("deliver {}", self.caught))?),
            "close" => {
                if let Some(locks) = self.clients.remove(word(step, "client")) {
                    locks.close().await;
                }
            }
            other => return Err(format!("no such step: {other}")),
        }
        Ok(())
    }

    async fn try_once(&mut self, step: Step<'_>) -> Done {
        let end = Instant::now() + WEATHER;
        loop {
            let got = match self.client(step).await {
                Ok(locks) => acquire(locks, self.name(step), step.clone()).await,
                Err(error) => Err(error),
            };
            // What a failed try got may still be on its way back.
            let bad = match &got {
                Ok(None) => suits("held", &step["expect"]),
                Err(error) => is_fault(error) && !suits(&kind(error), &step["expect"]),
                Ok(Some(_)) => false,
            };
            if self.network == Network::Weather && bad && Instant::now() < end {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            return self.judge(step, got);
        }
    }

    /// Compares what an acquire brought with what was expected.
    fn judge(&mut self, step: Step<'_>, got: Result<Option<Guard>, Error>) -> Done {
        let seen = match &got {
            Ok(Some(_)) => "held".to_owned(),
            Ok(None) => "busy".to_owned(),
            Err(error) => kind(error),
        };
        demand(&seen, &step["expect"]).map_err(|why| match &got {
            Err(error) => format!("{why}: {error}"),
            Ok(_) => why,
        })?;
        for hidden in step["hides"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let printed =
                format!("{got:?} {:?} {:?}", self.clients, got.as_ref().err().map(ToString::to_string));
            if printed.contains(hidden) {
                return Err(format!("it shows {hidden}: {printed}"));
            }
        }
        if let (Ok(Some(guard)), Some(name)) = (got, step["as"].as_str()) {
            self.held.insert(name.into(), Held::new(guard));
        }
        Ok(())
    }

    async fn until(
        &mut self,
        within: Duration,
        name: &str,
        is_so: impl Fn(&leasehold::backend::NameInfo) -> bool,
    ) -> Done {
        let locks = shown(self.client(&Value::Null).await)?;
        let end = Instant::now() + within;
        loop {
            let seen = locks.inspect(name).await;
            if seen.as_ref().is_ok_and(&is_so) {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(format!("it does not come: {seen:?}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Steps that look at locks which were acquired, without a call.
    async fn look(&mut self, step: Step<'_>, within: Duration) -> Done {
        let one = |name: &str| self.held.get(name).ok_or("no such lock");
        let fence = |name: &Value| Ok::<u64, String>(one(name.as_str().unwrap_or_default())?.fence);
        match word(step, "do") {
            "fences" => {
                let all: Vec<u64> =
                    step["rise"].as_array().unwrap().iter().map(fence).collect::<Result<_, _>>()?;
                return if all.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(format!("saw {all:?}")) };
            }
            "same" => {
                let all: Vec<u64> =
                    step["of"].as_array().unwrap().iter().map(fence).collect::<Result<_, _>>()?;
                return if all.windows(2).all(|two| two[0] == two[1]) {
                    Ok(())
                } else {
                    Err(format!("saw {all:?}"))
                };
            }
            _ => {}
        }
        let held = one(word(step, "as"))?;
        match word(step, "do") {
            "check" => demand(held.look(), &step["expect"])?,
            "lost" => {
                let began = Instant::now();
                let lost = tokio::time::timeout(within, held.lost.clone());
                lost.await.map_err(|_| "it is not lost in time")?;
                let after = millis(step, "after").unwrap_or_default();
                if began.elapsed() < after && self.network != Network::Weather {
                    return Err(format!("it was lost after {:?}", began.elapsed()));
                }
            }
            "stays" => {
                let end = Instant::now() + millis(step, "ms").unwrap_or_default();
                while Instant::now() < end {
                    demand(held.look(), &Value::from("held"))
                        .map_err(|why| format!("{why} {:?}", held.lost.now()))?;
                    tokio::time::sleep(PAUSE).await;
                }
            }
            _ if self.network == Network::Weather => {}
            _ => {
                let left = held.guard.as_ref().and_then(Guard::valid_for).ok_or("it has no deadline")?;
                let bound = |field: &str| Duration::from_millis(step[field].as_u64().unwrap());
                if left < bound("least") || left > bound("most") {
                    return Err(format!("{left:?} are left"));
                }
            }
        }
        if !step["reason"].is_null() {
            let lost = held.lost.now().map(reason).unwrap_or_default();
            demand(&lost, &step["reason"])?;
        }
        Ok(())
    }

    async fn show(&mut self, step: Step<'_>, name: &str) -> Done {
        let locks = shown(self.client(step).await)?;
        let info = shown(self.again(&Value::Null, || locks.inspect(name)).await)?;
        let first = info.holders.first();
        let owners: Vec<&str> = info.holders.iter().map(|one| &*one.owner).collect();
        let fence = self.held.get(word(step, "fence_of")).map(|one| one.fence);
        let seen = [
            ("holders", Value::from(info.holder_count)),
            ("waiters", Value::from(info.queue_length)),
            ("owners", Value::from(owners)),
            ("metadata", Value::from(first.and_then(|one| one.metadata.as_deref()))),
        ];
        for (field, seen) in seen {
            if !step[field].is_null() && step[field] != seen {
                return Err(format!("{field}: saw {seen}"));
            }
        }
        if fence.is_some() && first.map(|one| one.grant.fence.get()) != fence {
            return Err("another fence".into());
        }
        Ok(())
    }

    /// A path, with names in braces replaced.
    fn path(&self, path: &str) -> String {
        let Some((before, rest)) = path.split_once('{') else { return path.into() };
        let (lock, after) = rest.split_once('}').unwrap();
        format!("{before}{}{after}", leasehold::wire::segment(&format!("{}{lock}", self.prefix)))
    }
}

/// Makes the acquire of a step.
async fn acquire(locks: Locks, name: String, step: Value) -> Result<Option<Guard>, Error> {
    let locks = locks.with_options(|options| {
        options.ttl = millis(&step, "ttl").unwrap_or(Duration::from_secs(10));
        options.max_hold = millis(&step, "max_hold");
        options.max_wait = millis(&step, "wait");
        options.metadata = step["metadata"].as_str().map(Into::into);
        if let Some(owner) = step["owner"].as_str() {
            options.owner = owner.into();
        }
    });
    let limit = step["limit"].as_u64().unwrap_or_default() as u32;
    let tries = step["do"] == "try";
    match step["kind"].as_str() {
        Some("read") if tries => locks.rwlock(name).try_read().await,
        Some("read") => locks.rwlock(name).read().await.map(Some),
        Some("write") if tries => locks.rwlock(name).try_write().await,
        Some("write") => locks.rwlock(name).write().await.map(Some),
        Some("semaphore") if tries => locks.semaphore(name, limit).try_acquire().await,
        Some("semaphore") => locks.semaphore(name, limit).acquire().await.map(Some),
        _ if tries => locks.mutex(name).try_lock().await,
        _ => locks.mutex(name).lock().await.map(Some),
    }
}

/// Makes a bare call, and returns its status.
async fn post(server: String, path: String, body: String) -> u64 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {server}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(&server).await.unwrap();
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}
