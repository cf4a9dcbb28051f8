//! The check and the write are one step: a later holder's check waits for the transaction of the one before it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use rusqlite::ErrorCode;
use testkit::until::until;

use crate::writer::{Check, Writer, printed};

/// An earlier holder has passed the check and has not written yet. `waiting` counts the sessions that wait for a lock.
fn later_check_waits(writer: &Writer, waiting: &str) {
    let mut client = writer.client().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap()).lines();
    let checked = format!("{}; {}; SELECT 'checked';", writer.begin(), writer.call("'report'", "33"));
    writeln!(input, "{checked}").unwrap();
    // psql prints an empty line for the function.
    while output.next().unwrap().unwrap() != "checked" {}
    let later = std::thread::spawn({
        let writer = writer.clone();
        move || writer.write("200", "34", Check::Function)
    });
    until("the later holder waits", || later.is_finished() || writer.sql(waiting).unwrap() != "0");
    assert!(!later.is_finished(), "the later check passed an open transaction");
    writeln!(input, "UPDATE checked SET body = '100' WHERE id = 'r1'; COMMIT; SELECT 'written';").unwrap();
    while output.next().unwrap().unwrap() != "written" {}
    drop(input);
    client.wait().unwrap();
    later.join().unwrap().unwrap();
    assert_eq!(writer.stored(Check::Function), "200", "the later write is the last");
}

#[test]
fn postgres_lets_no_later_check_pass_an_open_write() {
    let (writer, _behind) = Writer::postgres();
    later_check_waits(&writer, "SELECT count(*) FROM pg_locks WHERE NOT granted;");
}

#[test]
fn mariadb_lets_no_later_check_pass_an_open_write() {
    let (writer, _behind) = Writer::mariadb();
    let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT';";
    later_check_waits(&writer, waiting);
}

#[test]
fn sqlite_lets_no_later_check_pass_an_open_write() {
    let (writer, _behind) = Writer::sqlite();
    let Writer::Sqlite(path) = &writer else { panic!("{writer:?}") };
    let earlier = rusqlite::Connection::open(path).unwrap();
    earlier
        .execute_batch("BEGIN IMMEDIATE; INSERT INTO check_fence (resource, fence) VALUES ('report', 33);")
        .unwrap();
    let later = rusqlite::Connection::open(path).unwrap();
    later.busy_timeout(std::time::Duration::ZERO).unwrap();
    let error = later.execute_batch("BEGIN IMMEDIATE").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    earlier.execute_batch("UPDATE checked SET body = '100'; COMMIT").unwrap();
    writer.write("200", "34", Check::Function).unwrap();
    assert_eq!(writer.stored(Check::Function), "200");
}

#[test]
fn refused_redis_write_changes_nothing_for_any_command() {
    let (writer, _behind) = Writer::redis();
    let script = printed(&["redis"]);
    let eval = |fence: &str, rest: &[&str]| {
        let mut args = vec!["EVAL", script.as_str(), "2", "{r}", "{r}:fence", fence];
        args.extend(rest);
        writer.redis_cli(&args)
    };
    assert_eq!(eval("7", &["HSET", "field", "one"]).unwrap(), "1");
    assert_eq!(eval("000000000000007", &["HSET", "other", "two"]).unwrap(), "1");
    for command in [&["HSET", "field", "late"][..], &["DEL"], &["EXPIRE", "1"]] {
        let refused = eval("6", command).unwrap_err();
        assert!(refused.contains("STALE_FENCE"), "{refused}");
    }
    for bad in ["0", "-7", "x", "7.5", "1e3", "", "900000000000001", "0000000000000007"] {
        let refused = eval(bad, &["DEL"]).unwrap_err();
        assert!(refused.contains("NO_FENCE"), "{bad}: {refused}");
    }
    assert_eq!(writer.redis_cli(&["HGET", "{r}", "field"]).unwrap(), "one");
    assert_eq!(writer.redis_cli(&["GET", "{r}:fence"]).unwrap(), "000000000000007");
    // A mark that is none is not taken for one.
    writer.redis_cli(&["SET", "{r}:fence", "broken"]).unwrap();
    assert!(eval("8", &["DEL"]).unwrap_err().contains("NO_FENCE"));
}

#[test]
fn trigger_checks_inserts_and_refuses_rows_without_a_fence() {
    for (writer, _behind) in [Writer::postgres(), Writer::mariadb(), Writer::sqlite()] {
        let insert = |id: &str, fence: &str| {
            writer.sql(&format!("INSERT INTO guarded (id, body, fence) VALUES ('{id}', 'x', {fence});"))
        };
        insert("r2", "34").unwrap();
        // Another row is another resource.
        insert("r3", "7").unwrap();
        let refused = writer.sql("UPDATE guarded SET fence = NULL WHERE id = 'r2';").unwrap_err();
        assert!(refused.contains("no valid fence null"), "{writer:?}: {refused}");
        assert!(insert("r4", "0").is_err() && insert("r5", "900000000000001").is_err(), "{writer:?}");
        // A row that was deleted keeps its mark.
        writer.sql("DELETE FROM guarded WHERE id = 'r2';").unwrap();
        let refused = insert("r2", "33").unwrap_err();
        assert!(refused.contains("stale fence 33") && refused.contains("34"), "{writer:?}: {refused}");
        assert_eq!(writer.sql("SELECT count(*) FROM guarded;").unwrap(), "2", "{writer:?}");
    }
}
