//! `leasehold stores`: lists what this build can open, and what each store can do.

use leasehold::backend::{Info, Liveness, TimeAuthority};
use serde::Serialize;

use crate::args::{Output, Stores};
use crate::report::Failure;
use crate::table;

/// One store, in the words of the documentation. The field names are those of the JSON output.
#[derive(Debug, Serialize)]
struct Row {
    scheme: &'static str,
    url: &'static str,
    liveness: &'static str,
    clock: &'static str,
    fenced: bool,
    fifo: bool,
    push: bool,
    shared: bool,
    max_permits: u32,
    downgrade: bool,
    notes: bool,
}

impl Row {
    fn new(url: &'static str, info: Info) -> Self {
        Row {
            scheme: info.scheme,
            url,
            // A newer library may have values that this program does not know.
            liveness: match info.liveness {
                Liveness::Ttl => "ttl",
                Liveness::Session => "session",
                _ => "other",
            },
            clock: match info.time {
                TimeAuthority::Store => "store",
                TimeAuthority::Client => "client",
                TimeAuthority::None => "none",
                _ => "other",
            },
            fenced: info.fenced,
            fifo: info.fifo,
            push: info.push,
            shared: info.shared,
            max_permits: info.max_permits,
            downgrade: info.downgrade,
            notes: info.notes,
        }
    }
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: &Stores) -> Result<String, Failure> {
    let rows: Vec<Row> =
        leasehold::stores().into_iter().map(|store| Row::new(store.url, store.info)).collect();
    Ok(match args.output {
        Output::Table => show(&rows),
        Output::Json => serde_json::to_string_pretty(&rows).map_err(std::io::Error::from)? + "\n",
    })
}

fn show(rows: &[Row]) -> String {
    const HEAD: [&str; 10] =
        ["URL", "LIVENESS", "CLOCK", "FENCED", "FIFO", "PUSH", "SHARED", "PERMITS", "DOWNGRADE", "NOTES"];
    let mut lines = vec![HEAD.map(String::from)];
    lines.extend(rows.iter().map(|row| {
        [
            row.url.into(),
            row.liveness.into(),
            row.clock.into(),
            yes(row.fenced),
            yes(row.fifo),
            yes(row.push),
            yes(row.shared),
            permits(row.max_permits),
            yes(row.downgrade),
            yes(row.notes),
        ]
    }));
    table::table(&lines, table::width(), table::colour())
}

fn yes(able: bool) -> String {
    if able { "yes" } else { "no" }.into()
}

fn permits(max: u32) -> String {
    match max {
        0 => "no".into(),
        u32::MAX => "yes".into(),
        max => format!("up to {max}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_its_columns_and_says_what_a_store_cannot_do() {
        let able = Info::new("memory");
        let mut unable = Info::new("some-other-store");
        unable.liveness = Liveness::Session;
        unable.time = TimeAuthority::None;
        unable.fifo = false;
        unable.max_permits = 0;
        unable.notes = false;
        let mut few = Info::new("few");
        few.max_permits = 8;
        let rows: Vec<Row> = [("memory:", able), ("some-other-store:…", unable), ("few:…", few)]
            .map(|(url, info)| Row::new(url, info))
            .into();
        assert_eq!(
            show(&rows),
            "\
URL                 LIVENESS  CLOCK  FENCED  FIFO  PUSH  SHARED  PERMITS  DOWNGRADE  NOTES
memory:             ttl       store  yes     yes   yes   yes     yes      yes        yes
some-other-store:…  session   none   yes     no    yes   yes     no       yes        no
few:…               ttl       store  yes     yes   yes   yes     up to 8  yes        yes
"
        );
    }
}
