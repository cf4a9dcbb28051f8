//! Durations as people type them: `30`, `1.5`, `500ms`, `10m`. `1h30m` is not accepted.

use std::time::Duration;

/// A number of seconds, with fractions, or a number with one of the units ms, s, m, h, d.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err("expected seconds, or a number with ms, s, m, h or d, for example 1.5 or 10m".into()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number, for example 1.5 or 10m".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "that is too long".to_owned())
}

/// A duration for a table or a message: two units at most, rounded down.
pub(crate) fn show(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..10 => format!("{}.{} s", seconds, time.subsec_millis() / 100),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_fractions_and_units_are_read_and_nonsense_is_refused() {
        for (text, millis) in [
            ("0", 0),
            ("1.5", 1500),
            (".25", 250),
            ("500ms", 500),
            ("30s", 30_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1", "1x", "1 s", "1e99h", "1.2.3", "nan", "inf", "1h30m"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("99999999999999999999999d").is_err());
    }

    #[test]
    fn durations_are_shown_with_two_units_at_most() {
        for (millis, shown) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (59_999, "59 s"),
            (61_000, "1 min 1 s"),
            (3_660_000, "1 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), shown);
        }
    }
}
