//! Fuzzing on stable Rust: a target is a function of bytes that panics if something is wrong. It gets the inputs of
//! its corpus, then those inputs with random changes; a failing input is made smaller before it is shown.
//!
//! In `cargo test` a target gets a thousand inputs; with `FUZZ_SECS` it runs for that many seconds (`make fuzz`). The
//! seed is a new one each time, unless the variable `SEED` sets it.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_testbed::dice::{chosen_seed, fresh_seed};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Inputs of a target in `cargo test`.
const CASES: u32 = 1_000;

/// Stands for a secret in the inputs of a corpus: no message may contain it.
pub const SECRET: &str = "hunter2SECRET";

/// One change of an input. Numbers are taken modulo the number of choices.
#[derive(Debug, Clone)]
enum Edit {
    Put(u16, u8),
    Insert(u16, Vec<u8>),
    Remove(u16, u8),
    Repeat(u16, u8),
    /// The rest of another input.
    Splice(u16, u16, u16),
}

/// What parsers trip over: ends of fields, escapes, numbers at their limits, invalid text.
const TOKENS: &[&[u8]] = &[
    b"",
    b"\0",
    b"\n",
    b"\t",
    b"%",
    b"%2F",
    b"%00",
    b"%zz",
    b"/",
    b"//",
    b":",
    b"@",
    b"?",
    b"&",
    b"=",
    b",",
    b"#",
    b"..",
    b"[::1]",
    b"-1",
    b"0",
    b"9007199254740993",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"1e400",
    b"NaN",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xc3\xa9",
    b"e\xcc\x81",
    b"\xf0\x9f\xa6\x89",
    b"\xe2\x80\xae",
    b"+1",
    b" ",
    b"*1\r\n",
    b"$-1\r\n",
];

fn edit() -> impl Strategy<Value = Edit> {
    let token = prop_oneof![
        proptest::sample::select(TOKENS).prop_map(<[u8]>::to_vec),
        vec(any::<u8>(), 0..6),
        "[ -~]{1,4}".prop_map(String::into_bytes),
    ];
    prop_oneof![
        2 => (any::<u16>(), any::<u8>()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        4 => (any::<u16>(), token).prop_map(|(at, token)| Edit::Insert(at, token)),
        3 => (any::<u16>(), any::<u8>()).prop_map(|(at, many)| Edit::Remove(at, many)),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(at, many)| Edit::Repeat(at, many)),
        2 => (any::<u16>(), any::<u16>(), any::<u16>()).prop_map(|(at, other, from)| Edit::Splice(at, other, from)),
    ]
}

fn apply(input: &mut Vec<u8>, edit: &Edit, corpus: &[Vec<u8>]) {
    let place = |at: u16, of: usize| usize::from(at) % (of + 1);
    match edit {
        Edit::Put(at, byte) => {
            let at = place(*at, input.len());
            if let Some(old) = input.get_mut(at) {
                *old = *byte;
            }
        }
        Edit::Insert(at, token) => {
            let at = place(*at, input.len());
            input.splice(at..at, token.iter().copied());
        }
        Edit::Remove(at, many) => {
            let at = place(*at, input.len());
            let end = (at + usize::from(*many % 16)).min(input.len());
            input.drain(at..end);
        }
        Edit::Repeat(at, many) => {
            let at = place(*at, input.len());
            let end = (at + usize::from(*many % 32)).min(input.len());
            let part = input[at..end].repeat(2 + usize::from(*many / 64));
            input.splice(at..at, part);
        }
        Edit::Splice(at, other, from) => {
            let Some(other) = corpus.get(usize::from(*other) % corpus.len().max(1)) else { return };
            input.truncate(place(*at, input.len()));
            input.extend_from_slice(&other[place(*from, other.len())..]);
        }
    }
}

/// Runs a target: `corpus` is a file with one input per line, in which `\n`, `\t`, `\r`, `\\` and `\xHH` are bytes.
///
/// # Panics
/// If the target does; the message has the smallest input that was found.
pub fn fuzz(corpus: impl AsRef<Path>, target: impl Fn(&[u8])) {
    let path = corpus.as_ref();
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let corpus: Vec<Vec<u8>> = text.lines().map(unescape).collect();
    assert!(!corpus.is_empty(), "{} has inputs", path.display());
    corpus.iter().for_each(|input| target(input));
    let seed = chosen_seed().unwrap_or_else(fresh_seed);
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    println!("fuzz {name}: SEED={seed}");
    let secs = std::env::var("FUZZ_SECS").ok().map(|secs| secs.parse().expect("`FUZZ_SECS` is a number"));
    let until = Instant::now() + Duration::from_secs(secs.unwrap_or(0));
    // A runner makes this many cases in its life, and then no more.
    let runner = |batch: u64| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&batch.to_le_bytes());
        let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    };
    let strategy = (any::<u16>(), vec(edit(), 1..12));
    let make = |start: u16, edits: &[Edit]| {
        let mut input = corpus[usize::from(start) % corpus.len()].clone();
        edits.iter().for_each(|edit| apply(&mut input, edit, &corpus));
        input
    };
    let inputs = Cell::new(0_u64);
    for batch in 0.. {
        let ran = runner(batch).run(&strategy, |(start, edits)| {
            inputs.set(inputs.get() + 1);
            target(&make(start, &edits));
            Ok(())
        });
        match ran {
            Ok(()) => {}
            Err(TestError::Fail(why, (start, edits))) => {
                let input = make(start, &edits);
                panic!("SEED={seed}: {why}\nadd this line to {}:\n{}", path.display(), escape(&input));
            }
            Err(error) => panic!("SEED={seed}: {error}"),
        }
        if Instant::now() >= until {
            println!("fuzz {name}: {} inputs", inputs.get());
            return;
        }
    }
}

fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

fn unescape(line: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), line.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let escaped = if *first == b'\\' { rest.split_first() } else { None };
        let Some((kind, after)) = escaped else {
            bytes.push(*first);
            continue;
        };
        rest = after;
        bytes.push(match kind {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'x' => {
                let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or("");
                let byte = u8::from_str_radix(digits, 16).expect("`\\x` and two digits");
                rest = &rest[2..];
                byte
            }
            other => *other,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(text: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("leasehold-corpus-{}-{}", std::process::id(), text.len()));
        std::fs::write(&path, text).expect("a file");
        path
    }

    #[test]
    fn inputs_are_written_in_a_line_and_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)), all);
        assert!(!escape(&all).contains('\n'));
    }

    #[test]
    fn a_parser_that_panics_is_found_and_its_input_made_small() {
        let path = corpus("redis://host:1/0\nhttp://host\n");
        let target = |input: &[u8]| assert!(!input.contains(&b'%'), "a percent sign");
        let found = std::panic::catch_unwind(|| fuzz(&path, target)).expect_err("it is found");
        let said = found.downcast_ref::<String>().expect("a message");
        assert!(said.contains("SEED=") && said.contains("a percent sign"), "{said}");
        let line = said.lines().last().expect("the input");
        assert!(line.contains('%') && line.len() < 40, "{line}");
        fuzz(&path, |_| ());
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn what_the_corpus_has_is_tried_as_it_is() {
        let path = corpus("one\ntwo\\x00\\n");
        let found = std::panic::catch_unwind(|| fuzz(&path, |input| assert_ne!(input, b"two\0\n")));
        assert!(found.is_err());
        std::fs::remove_file(path).expect("it is there");
    }
}
