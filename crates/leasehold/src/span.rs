//! Formats spans of time for messages, the way people write them.

use std::time::Duration;

/// The span in the largest unit that keeps its number short. Below a hundred days nothing that matters is rounded
/// away.
pub(crate) fn show(span: Duration) -> String {
    let (seconds, nanos) = (span.as_secs(), span.subsec_nanos());
    match (seconds, nanos) {
        (0, 0) => "0 s".into(),
        (0, _) => format!("{} ms", decimal(u64::from(nanos) / 1_000_000, nanos % 1_000_000, 6)),
        // So long a span is never meant to the second.
        (8_640_000.., _) => format!("{} days", seconds / 86_400),
        (_, 0) if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        (_, 0) if seconds % 60 == 0 => format!("{} min", seconds / 60),
        _ => format!("{} s", decimal(seconds, nanos, 9)),
    }
}

/// A number with a fraction of this many digits, without trailing zeros.
fn decimal(whole: u64, fraction: u32, digits: usize) -> String {
    let text = format!("{whole}.{fraction:0digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_write_them() {
        for (span, text) in [
            (Duration::ZERO, "0 s"),
            (Duration::from_nanos(1), "0.000001 ms"),
            (Duration::from_micros(999), "0.999 ms"),
            (Duration::from_millis(50), "50 ms"),
            (Duration::from_secs(1), "1 s"),
            (Duration::from_millis(1500), "1.5 s"),
            (Duration::from_secs(20), "20 s"),
            (Duration::from_secs(90), "90 s"),
            (Duration::from_secs(600), "10 min"),
            (Duration::from_secs(100 * 60), "100 min"),
            (Duration::from_secs(86_400), "24 h"),
            (Duration::from_secs(86_401), "86401 s"),
            (Duration::MAX, "213503982334601 days"),
        ] {
            assert_eq!(show(span), text);
        }
    }
}
