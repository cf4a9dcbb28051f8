//! The schedule expressions of bext: `30s`, `5m`, `2h`, `*/5 * * * *`, `0 */3 * * *`, `@hourly`, `@daily`.

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The time between two ticks, in milliseconds. Ticks are the multiples of it since 1970, so that all nodes mean the
/// same ones.
pub(crate) fn interval_ms(expression: &str) -> Result<u64, String> {
    let fields: Vec<_> = expression.split_whitespace().collect();
    let interval = match fields.as_slice() {
        ["@hourly"] => Some(HOUR),
        ["@daily"] => Some(DAY),
        [simple] => simple_interval(simple),
        [minutes, "*", "*", "*", "*"] => every(minutes, 60).map(|n| n * MINUTE),
        ["0", hours, "*", "*", "*"] => every(hours, 24).map(|n| n * HOUR),
        _ => None,
    };
    interval.ok_or_else(|| {
        format!("cannot read the schedule {expression:?}: say `30s`, `*/5 * * * *` or `@hourly`")
    })
}

/// A number and a unit.
fn simple_interval(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        's' => SECOND,
        'm' => MINUTE,
        'h' => HOUR,
        _ => return None,
    };
    number(&text[..text.len() - 1])?.checked_mul(unit)
}

/// `*/N`, where N divides the field's range into equal parts, or `*`.
fn every(field: &str, range: u64) -> Option<u64> {
    if field == "*" {
        return Some(1);
    }
    number(field.strip_prefix("*/")?).filter(|n| range.is_multiple_of(*n))
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n > 0)
}
