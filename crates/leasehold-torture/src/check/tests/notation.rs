//! Histories as text: a line for each record.
//!
//! `WORKER[.CLAIM][/LOCK] TIME WHAT…`, times in milliseconds. A claim is 1 unless it is said, a lock `a`. Locks: `a` and `b`
//! are reader-writer locks, `p` has two permits, and `q` is the same name with three. What: `call [shared|permit] [all] [try|wait=N] [ttl=N] [id=N]`
//! (`all`: with every other one of its worker at this moment),
//! `granted FENCE DEADLINE [id=N] [again]`, `held [shared] DEADLINE`, `lost deadline|refused|other`, `renew TTL`, `renewed DEADLINE`, `release`,
//! `revoke [now] [only=FENCE]`, `revoked [met=N]`, `list ANSWERED WORKER[.CLAIM]…`, `downgrade`, `shorten TTL`, `shortened DEADLINE`, `given`,
//! `adopt TTL id=N fence=N`, `adopted DEADLINE`, `run`, `ran [lost]`, `closed`, and so on. `session` is the deadline of a session.
//! By the supervisor: `S FROM fault WHICH TO [TARGET] [worker=N] [side=N]` (the sides are 0 and 1, of even and odd workers), `S FROM stall TO`, `S TIME left holder|waiter|other [LOCK]`. By the
//! resource: `R TIME write FENCE [mark=N] taken|rejected`, `R TIME enter|leave`.
//! A line `store WORD…` says what the store is like: `session=NOTICES unfenced unordered forgetful clock keeps quorum ticket=N
//! loses=nothing|releases|latest`. Lock `b` is in part 1 of it, the others in part 0, which is the target of a fail-over.

use std::collections::HashMap;

use crate::check::{Verdict, judge};
use crate::history::record::{Face, Fault, Kind, Leftover, Loss, Mode, Record, SESSION};
use crate::history::setting::{Losses, Name, Promises, Setting};

pub(super) const MS: u64 = 1_000_000;

pub(super) fn setting() -> Setting {
    let name = |name: &str, limit| Name { name: name.into(), limit, part: u64::from(name == "b") };
    Setting {
        seed: 0,
        profile: "by hand".into(),
        store: "test".into(),
        configuration: String::new(),
        promises: Promises {
            session: false,
            notices_within: 0,
            fenced: true,
            fifo: true,
            push: true,
            ticket: 0,
            durable: true,
            steady: true,
            keeps: false,
            losses: Losses::Nothing,
        },
        names: vec![name("a", 0), name("b", 0), name("p", 2), name("p", 3)],
        sides: 2,
        span: (0, 20_000 * MS),
    }
}

/// Reads a history and judges it.
pub(super) fn judged(text: &str) -> Verdict {
    let (setting, histories) = parse(text);
    judge(&setting, &histories)
}

pub(super) fn parse(text: &str) -> (Setting, Vec<Vec<Record>>) {
    let mut story = Story { setting: setting(), histories: HashMap::new(), claims: HashMap::new() };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        story.line(line).unwrap_or_else(|| panic!("no history: {line}"));
    }
    (story.setting, story.histories.into_values().collect())
}

struct Story {
    setting: Setting,
    histories: HashMap<u32, Vec<Record>>,
    /// What later records of a claim repeat.
    claims: HashMap<(u32, u64), Record>,
}

fn option<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(words: &[&str], key: &str) -> Option<u64> {
    option(words, key)?.parse().ok()
}

fn moment(word: &str) -> Option<u64> {
    if word == "session" { Some(SESSION) } else { Some(word.parse::<u64>().ok()? * MS) }
}

fn lock(word: &str) -> Option<u16> {
    ["a", "b", "p", "q"].iter().position(|name| *name == word).map(|place| place as u16)
}

impl Story {
    fn line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "store" => self.store(&words[1..]),
            "S" => self.supervisor(&words[1..]),
            "R" => self.resource(&words[1..]),
            _ => self.worker(&words),
        }
    }

    fn store(&mut self, words: &[&str]) -> Option<()> {
        let promises = &mut self.setting.promises;
        for word in words {
            match word.split('=').next()? {
                "session" => {
                    (promises.session, promises.notices_within) = (true, number(words, "session")? * MS)
                }
                "ticket" => promises.ticket = number(words, "ticket")? * MS,
                "unfenced" => promises.fenced = false,
                "unordered" => promises.fifo = false,
                "forgetful" => promises.durable = false,
                "clock" => promises.steady = false,
                "keeps" => promises.keeps = true,
                "loses" => {
                    promises.losses = match option(words, "loses")? {
                        "latest" => Losses::Latest,
                        "releases" => Losses::Releases,
                        _ => Losses::Nothing,
                    };
                }
                "quorum" => self.setting.store = "quorum".into(),
                _ => return None,
            }
        }
        Some(())
    }

    fn push(&mut self, record: Record) -> Option<()> {
        self.histories.entry(record.worker).or_default().push(record);
        Some(())
    }

    fn supervisor(&mut self, words: &[&str]) -> Option<()> {
        let mut record = Record::new(Kind::Left, 1_000, moment(words[0])?);
        match words[1] {
            "fault" => {
                let fault = |fault: &&Fault| format!("{fault:?}").eq_ignore_ascii_case(words[2]);
                record.fault = *Fault::ALL.iter().find(fault)?;
                record.claim = number(words, "worker").unwrap_or(0);
                record.fence = number(words, "side").map_or(0, |side| side + 1);
                let target = words.get(4).filter(|word| !word.contains('='));
                record.value = target.map_or(Some(0), |target| target.parse().ok())?;
                self.push(Record { kind: Kind::FaultBegin, ..record });
                self.push(Record { kind: Kind::FaultEnd, at: moment(words[3])?, ..record })
            }
            "stall" => {
                self.push(Record { kind: Kind::Stall, value: record.at, at: moment(words[2])?, ..record })
            }
            _ => {
                let left = |left: &&Leftover| format!("{left:?}").eq_ignore_ascii_case(words[2]);
                record.value = *Leftover::ALL.iter().find(left)? as u64;
                record.name = words.get(3).map_or(Some(0), |name| lock(name))?;
                self.push(record)
            }
        }
    }

    fn resource(&mut self, words: &[&str]) -> Option<()> {
        let mut record = Record::new(Kind::FencedWrite, 2_000, moment(words[0])?);
        if words[1] != "write" {
            (record.kind, record.value) = (Kind::UnfencedWrite, u64::from(words[1] == "enter"));
            return self.push(record);
        }
        record.fence = words[2].parse().ok()?;
        record.value = number(words, "mark").unwrap_or(0);
        record.fault = if words.contains(&"taken") { Fault::Kill } else { Fault::None };
        self.push(record)
    }

    fn worker(&mut self, words: &[&str]) -> Option<()> {
        let (who, name) = words[0].split_once('/').unwrap_or((words[0], "a"));
        let (worker, claim) = who.split_once('.').unwrap_or((who, "1"));
        let (worker, claim): (u32, u64) = (worker.parse().ok()?, claim.parse().ok()?);
        let id = u64::from(worker) * 1000 + claim;
        let fresh = Record { claim, lease: id, name: lock(name)?, ..Record::new(Kind::Begin, worker, 0) };
        let kept = *self.claims.entry((worker, claim)).or_insert(fresh);
        let mut record = Record { at: moment(words[1])?, ..kept };
        if words.contains(&"shared") {
            record.mode = Mode::Shared;
        } else if words.contains(&"permit") {
            record.mode = Mode::Permit;
        }
        let last = || words.last().copied().and_then(moment);
        record.kind = match words[2] {
            "call" => {
                record.value = match number(words, "wait") {
                    _ if words.contains(&"try") => 0,
                    Some(wait) => wait * MS,
                    None => u64::MAX,
                };
                record.deadline =
                    if self.setting.promises.session { 0 } else { number(words, "ttl").unwrap_or(100) * MS };
                self.claims.insert((worker, claim), Record { mode: record.mode, ..kept });
                record.lease = number(words, "id").unwrap_or(0);
                let face = if words.contains(&"all") { Face::Multi } else { Face::Usual };
                (record.kind, record.fence) = (Kind::AcquireCall, face as u64);
                return self.push(record);
            }
            "granted" => {
                (record.fence, record.deadline) = (words[3].parse().ok()?, moment(words[4])?);
                record.lease = number(words, "id").unwrap_or(record.lease);
                record.value = u64::from(words.contains(&"again"));
                self.claims
                    .insert((worker, claim), Record { lease: record.lease, fence: record.fence, ..kept });
                Kind::Granted
            }
            "held" => {
                record.deadline = last()?;
                Kind::Held
            }
            "renewed" => {
                record.deadline = last()?;
                Kind::Renewed
            }
            "renew" => {
                record.value = last()?;
                Kind::RenewCall
            }
            "lost" => {
                let loss = |loss: &&Loss| format!("{loss:?}").eq_ignore_ascii_case(words[3]);
                record.value = *Loss::ALL.iter().find(loss)? as u64;
                Kind::Lost
            }
            "revoke" => {
                record.value = u64::from(words.contains(&"now"));
                record.fence = number(words, "only").unwrap_or(0);
                Kind::RevokeCall
            }
            "revoked" => {
                record.deadline = number(words, "met").map_or(0, |met| met + 1);
                Kind::Revoked
            }
            "list" => {
                self.push(Record { kind: Kind::ListCall, ..record });
                record.at = moment(words[3])?;
                for waiter in &words[4..] {
                    let (worker, claim) = waiter.split_once('.').unwrap_or((waiter, "1"));
                    let (fence, value) = (worker.parse().ok()?, claim.parse().ok()?);
                    self.push(Record { kind: Kind::Waiting, fence, value, lease: 0, ..record });
                }
                Kind::Listed
            }
            "downgrade" => {
                record.mode = Mode::Shared;
                self.claims.insert((worker, claim), Record { mode: Mode::Shared, ..kept });
                Kind::DowngradeCall
            }
            "shorten" => {
                record.value = last()?;
                Kind::ShortenCall
            }
            "shortened" => {
                record.deadline = last()?;
                Kind::Shortened
            }
            "adopt" => {
                record.value = moment(words[3])?;
                (record.lease, record.fence) = (number(words, "id")?, number(words, "fence")?);
                self.claims.insert((worker, claim), record);
                Kind::AdoptCall
            }
            "adopted" => {
                record.deadline = last()?;
                Kind::Adopted
            }
            "ran" => {
                record.value = u64::from(words.contains(&"lost"));
                Kind::RunEnded
            }
            "run" => Kind::RunCall,
            "downgraded" => Kind::Downgraded,
            "undowngraded" => Kind::DowngradeFailed,
            "unshortened" => Kind::ShortenFailed,
            "given" => Kind::GivenAway,
            "unadopted" => Kind::AdoptRefused,
            "closed" => Kind::Closed,
            "drop" => {
                record.value = 1;
                Kind::ReleaseCall
            }
            "release" => Kind::ReleaseCall,
            "released" => Kind::Released,
            "nothing" => Kind::ReleasedNothing,
            "unreleased" => Kind::ReleaseFailed,
            "refused" => Kind::RenewRefused,
            "unrenewed" => Kind::RenewFailed,
            "busy" => Kind::Busy,
            "missing" => Kind::Missing,
            "failed" => Kind::AcquireFailed,
            "dropped" => Kind::AcquireDropped,
            "writes" => Kind::WriteCall,
            "took" => Kind::WriteTaken,
            "rejected" => Kind::WriteRejected,
            "end" => Kind::End,
            _ => return None,
        };
        self.push(record)
    }
}
