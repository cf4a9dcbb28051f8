//! What the scripts store of a name, byte by byte, beside the rows of the state machine.

use std::collections::HashMap;

use leasehold::LeaseId;
use leasehold::backend::Mode;
use leasehold::state::Row;
use proptest::prelude::*;
use redis::aio::MultiplexedConnection;

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { limit } => format!("p{limit}"),
        _ => unreachable!(),
    }
}

/// Reads the packed format of the scripts: texts that end with a zero, and doubles.
pub(crate) struct Packed<'a>(pub(crate) &'a [u8]);

impl Packed<'_> {
    fn skip(&mut self, bytes: usize) -> String {
        let (skipped, rest) = self.0.split_at(bytes);
        self.0 = rest;
        String::from_utf8(skipped.to_vec()).unwrap()
    }

    fn text(&mut self) -> String {
        let text = self.skip(self.0.iter().position(|byte| *byte == 0).unwrap());
        self.0 = &self.0[1..];
        text
    }

    fn number(&mut self) -> String {
        let (number, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        format!("{}", f64::from_be_bytes(*number))
    }

    fn words(&mut self, numbers: usize, texts: usize) -> String {
        let mut words = vec![self.text()];
        words.extend((0..numbers).map(|_| self.number()));
        words.extend((0..texts).map(|_| self.text()));
        words.join(" ")
    }

    fn lease(mut self) -> String {
        assert_eq!(self.skip(1), "L");
        format!("{} {}", self.words(6, 2), self.skip(self.0.len()))
    }

    /// Without the wake-up channel and the number there.
    pub(crate) fn ticket(mut self) -> (String, String) {
        assert_eq!(self.skip(1), "T");
        let words = self.words(3, 2);
        let (_channel, number) = (self.text(), self.text());
        (format!("{words} {}", self.skip(self.0.len())), number)
    }
}

/// Everything that is stored, and every index of it.
pub(crate) async fn same_rows(
    raw: &mut MultiplexedConnection,
    key: &str,
    model: Vec<(LeaseId, Row)>,
) -> Result<(), TestCaseError> {
    let mut ask = redis::pipe();
    ask.cmd("GET").arg(key).cmd("HGETALL").arg(format!("{key}:rows"));
    for index in ["leases", "queue", "places", "spent"] {
        ask.cmd("ZRANGE").arg(format!("{key}:{index}")).arg(0).arg(-1).arg("WITHSCORES");
    }
    for suffix in ["", ":rows", ":leases", ":queue", ":places", ":spent"] {
        ask.cmd("PTTL").arg(format!("{key}{suffix}"));
    }
    ask.cmd("ZRANGE").arg(format!("{key}:grants")).arg(0).arg(-1).arg("WITHSCORES");
    ask.cmd("PTTL").arg(format!("{key}:grants"));
    type Index = HashMap<String, u64>;
    type Kept = (Option<Vec<u8>>, HashMap<String, Vec<u8>>, Index, Index, Index, Index);
    type Times = (i64, i64, i64, i64, i64, i64);
    let values: Vec<redis::Value> = ask.query_async(raw).await.unwrap();
    let part = |from: usize, to: usize| redis::Value::Array(values[from..to].to_vec());
    let (head, rows, leases, queue, places, spent): Kept = redis::from_redis_value(part(0, 6)).unwrap();
    let times: Times = redis::from_redis_value(part(6, 12)).unwrap();
    let (grants, granted_for): (Index, i64) = redis::from_redis_value(part(12, 14)).unwrap();
    // -2: there is none.
    let lasting = [times.1, times.2, times.3, times.4, times.5, granted_for];
    prop_assert!(times.0 != -1 && lasting.iter().all(|time| *time != -1 && *time <= times.0), "{:?}", times);
    let mut counts = [0, 0, 0];
    let (mut alone, mut alone_row) = (String::new(), String::new());
    if let Some(head) = &head {
        let mut packed = Packed(head);
        if packed.skip(4) == "LH0:" {
            for _fence_version_keep in 0..3 {
                packed.number();
            }
            if !packed.0.is_empty() {
                alone = packed.skip(22);
                let [fence, ttl, since] = [(); 3].map(|()| packed.number());
                let ends = ttl.parse::<u64>().unwrap() + since.parse::<u64>().unwrap();
                let (nonce, marks) = (packed.text(), packed.text());
                let label = packed.skip(packed.0.len());
                alone_row = format!("x {fence} {fence} {ttl} {ends} {since} 0 {nonce} {marks} {label}");
            }
        } else {
            let mut numbers = (0..8).map(|_| packed.number()).collect::<Vec<_>>().into_iter().skip(4);
            counts = [(); 3].map(|()| numbers.next().unwrap().parse().unwrap());
            packed.text();
            if !packed.0.is_empty() {
                (alone, alone_row) = (packed.skip(22), packed.lease());
            }
        }
    }
    let kept = |id: &str| Packed(rows.get(id).map_or(&b""[..], Vec::as_slice));
    let mark = |set: bool, mark: &'static str| if set { mark } else { "" };
    let label = |owner: &str, metadata: Option<&str>| {
        let metadata = metadata.map(|metadata| format!("+{metadata}")).unwrap_or_default();
        format!("{}:{owner}{metadata}", owner.len())
    };
    let (mut exclusive, mut held, mut waiting, mut spents) = (String::new(), 0, Vec::new(), 0);
    for (id, row) in model {
        let id = id.expose().to_owned();
        match row {
            Row::Lease(l) => {
                let expected = format!(
                    "{} {} {} {} {} {} {} {} {}{} {}",
                    mode(l.mode),
                    l.fence.get(),
                    l.granted.get(),
                    l.ttl,
                    l.expires,
                    l.acquired_wall,
                    l.renewals,
                    l.nonce,
                    mark(l.repeated, "r"),
                    mark(l.revoked, "v"),
                    label(&l.owner, l.metadata.as_deref()),
                );
                if l.mode == Mode::Exclusive {
                    prop_assert_eq!(&alone_row, &expected);
                    exclusive = id;
                } else {
                    prop_assert_eq!(kept(&id).lease(), expected);
                    prop_assert_eq!(leases.get(&id), Some(&l.expires));
                    prop_assert_eq!(grants.get(&id), Some(&l.granted.get()));
                    held += 1;
                }
            }
            Row::Ticket(t) => {
                let expected = format!(
                    "{} {} {} {} {} {}{} {}",
                    mode(t.mode),
                    t.ttl,
                    t.lapses,
                    t.joined,
                    t.nonce,
                    mark(t.repeated, "r"),
                    mark(t.woken, "w"),
                    label(&t.owner, None),
                );
                let kept = kept(&id).ticket().0;
                prop_assert!(kept.starts_with(&expected), "{} is not {}", kept, expected);
                prop_assert_eq!(places.get(&id), Some(&t.lapses));
                waiting.push((t.arrival, id));
            }
            Row::Spent(s) => {
                prop_assert_eq!(kept(&id).0.strip_prefix(b"S"), Some(s.why.as_str().as_bytes()));
                prop_assert_eq!(spent.get(&id), Some(&s.until));
                spents += 1;
            }
            _ => unreachable!(),
        }
    }
    let order = |mut ids: Vec<(u64, String)>| {
        ids.sort();
        ids.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    prop_assert_eq!((alone, leases.len(), spent.len()), (exclusive, held, spents));
    prop_assert_eq!(grants.len(), held);
    prop_assert_eq!(places.len(), waiting.len());
    prop_assert_eq!(order(queue.into_iter().map(|(id, at)| (at, id)).collect()), order(waiting.clone()));
    prop_assert_eq!(counts, [held, waiting.len(), spents]);
    let noted = usize::from(rows.contains_key("note"));
    prop_assert_eq!(rows.len(), held + waiting.len() + spents + noted, "{:?}", rows.keys());
    // A note lasts as long as the head, which was asked a moment before.
    prop_assert!(noted == 0 || times.1 + 60_000 > times.0, "{:?}", times);
    Ok(())
}
