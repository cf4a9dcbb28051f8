//! Named queries: a store keeps its statements in one commented file, each under a line `-- name: x`.
//!
//! The query is looked up at compile time, so a name that is missing or used twice is a build error:
//!
//! ```text
//! const fn sql(name: &str) -> &'static str {
//!     queries::named(include_str!("queries.sql"), name)
//! }
//!
//! db.execute(const { sql("put_swept") }, [now])?;
//! ```

/// The text between `-- name: <name>` and the next name or the end of `file`, without the comment lines above and
/// below it (a comment below a query belongs to the next one).
///
/// # Panics
/// If no query of `file` has this name, or more than one.
pub(crate) const fn named(file: &'static str, name: &str) -> &'static str {
    let mut rest = file.as_bytes();
    let mut found: Option<&'static [u8]> = None;
    // Whether the lines just read belong to the query, and where it began.
    let mut open: Option<&'static [u8]> = None;
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        if let Some(other) = after_mark(line) {
            if let Some(start) = open.take() {
                found = Some(start.split_at(start.len() - rest.len()).0);
            }
            if equal(other, name.as_bytes()) {
                assert!(found.is_none(), "two queries have this name");
                open = Some(after);
            }
        }
        rest = after;
    }
    let query = match (open, found) {
        (Some(_), Some(_)) => panic!("two queries have this name"),
        (Some(query), None) | (None, Some(query)) => statement(query),
        (None, None) => panic!("no query has this name"),
    };
    match std::str::from_utf8(query) {
        Ok(query) => query,
        Err(_) => unreachable!(),
    }
}

/// The first line without its end, and what follows it.
const fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'\n' {
            let (line, rest) = text.split_at(at);
            return (line, rest.split_at(1).1);
        }
        at += 1;
    }
    (text, &[])
}

/// The name that a line gives to the lines below it.
const fn after_mark(line: &[u8]) -> Option<&[u8]> {
    const MARK: &[u8] = b"-- name:";
    match line.split_at_checked(MARK.len()) {
        Some((mark, name)) if equal(mark, MARK) => Some(name.trim_ascii()),
        _ => None,
    }
}

/// A query without the comment lines above and below it.
const fn statement(query: &[u8]) -> &[u8] {
    let mut query = query.trim_ascii();
    while let Some((b"--", _)) = query.split_at_checked(2) {
        query = split_line(query).1.trim_ascii();
    }
    loop {
        let mut at = query.len();
        while at > 0 && query[at - 1] != b'\n' {
            at -= 1;
        }
        let (above, last) = query.split_at(at);
        match last.split_at_checked(2) {
            Some((b"--", _)) => query = above.trim_ascii(),
            _ => return query,
        }
    }
}

const fn equal(left: &[u8], right: &[u8]) -> bool {
    let mut at = 0;
    while at < left.len() && at < right.len() && left[at] == right[at] {
        at += 1;
    }
    at == left.len() && at == right.len()
}

#[cfg(test)]
mod tests {
    use super::named;

    const FILE: &str = "\
-- About the whole file.

-- name: first
-- A comment above it, ?1 now.
SELECT 1
    -- one inside
    FROM t;

-- About the next ones
-- in two lines

-- name: second
SELECT 2;
-- name: empty

-- name: twice
-- name: twice
";

    #[test]
    fn query_has_only_the_comments_inside_it() {
        const FIRST: &str = named(FILE, "first");
        assert_eq!(FIRST, "SELECT 1\n    -- one inside\n    FROM t;");
        assert_eq!(named(FILE, "second"), "SELECT 2;");
        assert_eq!(named(FILE, "empty"), "");
        assert_eq!(named("-- name: only\nSELECT 'é'", "only"), "SELECT 'é'");
    }

    #[test]
    fn unknown_and_doubled_names_are_refused() {
        for name in ["secon", "twice", "", "About the whole file."] {
            std::panic::catch_unwind(|| named(FILE, name)).unwrap_err();
        }
        std::panic::catch_unwind(|| named("-- name: a\nx\n-- name: b\ny\n-- name: a\nz\n", "a")).unwrap_err();
    }
}
