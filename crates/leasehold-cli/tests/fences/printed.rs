//! What is printed, and what is refused.

use std::process::Command;

use crate::writer::printed;

#[test]
fn everything_printed_is_short_lines_and_says_how_to_use_it() {
    for dialect in ["postgres", "mysql", "sqlite"] {
        let functions = printed(&["sql", "--dialect", dialect]);
        let triggers = printed(&["sql", "--dialect", dialect, "--table", "report"]);
        assert!(
            functions.contains("'report', 459475822995008") && functions.contains("exclusive"),
            "{dialect}"
        );
        for text in [functions, triggers] {
            let long = text.lines().find(|line| line.chars().count() > 120);
            assert_eq!(long, None, "{dialect}");
            assert!(
                !text.contains("{table}") && !text.contains("{resource}") && !text.contains("{expression}")
            );
        }
    }
    assert_eq!(printed(&["sql", "--dialect", "mariadb"]), printed(&["sql", "--dialect", "mysql"]));
    assert!(printed(&["redis"]).contains("redis-cli EVAL"));
}

#[test]
fn names_that_need_escaping_are_refused() {
    for bad in ["", "a b", "a\"b", "1a", "a;b", "schema.table", "é", &"x".repeat(49)] {
        for args in [vec!["--table", bad], vec!["--table", "t", "--key", bad]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
            let output =
                command.args(["fences", "sql", "--dialect", "postgres"]).args(&args).output().unwrap();
            assert_eq!(output.status.code(), Some(64), "{args:?}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(args[args.len() - 2]), "{said}");
        }
    }
    for bad in ["", "a\nb", "a\\b"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        let args = ["fences", "sql", "--dialect", "mysql", "--table", "t", "--resource", bad];
        assert_eq!(command.args(args).output().unwrap().status.code(), Some(64), "{bad:?}");
    }
    let quoted =
        printed(&["sql", "--dialect", "sqlite", "--table", "t", "--key", "id", "--resource", "it's"]);
    assert!(quoted.contains("VALUES ('it''s/' || NEW.\"id\", NEW.fence)"), "{quoted}");
}
