//! Histories written by hand, each of which breaks the named invariant and no other. A line `BAD | GOOD` gives the
//! look-alike that breaks none; `-` means no record.

use super::notation::judged;

struct Bad {
    invariant: String,
    title: String,
    bad: String,
    good: String,
}

fn all() -> Vec<Bad> {
    let mut all: Vec<Bad> = Vec::new();
    for line in include_str!("bad.txt").lines() {
        if let Some(title) = line.strip_prefix("# ") {
            let invariant = title.split(' ').next().unwrap().to_owned();
            all.push(Bad { invariant, title: title.into(), bad: String::new(), good: String::new() });
            continue;
        }
        let story = all.last_mut().unwrap();
        let (bad, good) = line.split_once(" | ").unwrap_or((line, line));
        for (text, line) in [(&mut story.bad, bad), (&mut story.good, good)] {
            if line != "-" {
                *text += line;
                text.push('\n');
            }
        }
    }
    all
}

#[test]
fn a_bad_history_breaks_only_its_rule_and_its_twin_none() {
    let stories = all();
    assert!(stories.len() >= 30);
    let mut wrong = Vec::new();
    for Bad { invariant, title, bad, good } in stories {
        assert_ne!(bad, good, "{title}");
        let mut broken: Vec<String> =
            judged(&bad).violations.iter().map(|violation| format!("{:?}", violation.invariant)).collect();
        broken.dedup();
        if broken != [invariant] {
            wrong.push(format!("{title}: breaks {broken:?}"));
        }
        if let Some(violation) = judged(&good).violations.first() {
            wrong.push(format!("{title}: its look-alike breaks {violation}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_violation_lists_both_leases_and_their_operations_in_order() {
    let first = &all()[0];
    let told = judged(&first.bad).violations[0].to_string();
    let expected = "\
I1: worker 1's Exclusive lease on \"a\" with fence 5 and worker 2's Exclusive lease on \"a\" with fence 6 were both believed in at +40.000000 ms
      +0.000000 ms  A  worker 1.0 claim 1  AcquireCall Exclusive
      +5.000000 ms  A  worker 1.0 claim 1  Granted, fence 5, until +100.000000 ms
     +10.000000 ms  B  worker 2.0 claim 1  AcquireCall Exclusive
     +40.000000 ms  B  worker 2.0 claim 1  Granted, fence 6, until +130.000000 ms
     +50.000000 ms  A  worker 1.0 claim 1  Held, fence 5, until +100.000000 ms";
    assert_eq!(told, expected);
}
