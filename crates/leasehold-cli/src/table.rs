//! Tables that fit the terminal, with colour only on a terminal.

use std::io::IsTerminal as _;

/// No column is cut below this width: less would say nothing.
const NARROWEST: usize = 8;

/// Nor are fewer columns shown: one alone says nothing.
const FEWEST: usize = 2;

/// Follows the heads if some columns are not shown.
const MORE: &str = " …";

/// The width of the terminal; `None` if the output does not go to one, and nothing must be cut.
pub(crate) fn width() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Whether to use colour: on a terminal, unless `NO_COLOR` says otherwise.
pub(crate) fn colour() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Makes text bold, if colour is on.
pub(crate) fn bold(text: &str, colour: bool) -> String {
    if colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Any text on one line, without control characters, which could manipulate a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Lines of aligned columns, starting with the heads. The widest columns are cut until it fits; if that is not enough,
/// the last columns are dropped, and the heads show that.
pub(crate) fn table<const N: usize>(lines: &[[String; N]], width: Option<usize>, colour: bool) -> String {
    let mut widths: [usize; N] = std::array::from_fn(|column| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
    });
    let mut shown = N;
    if let Some(mut width) = width {
        let least = |columns: usize| {
            widths[..columns].iter().map(|one| (*one).min(NARROWEST)).sum::<usize>() + 2 * (columns - 1)
        };
        if least(N) > width {
            // Room for the mark that there is more.
            width = width.saturating_sub(MORE.chars().count());
            while shown > FEWEST && least(shown) > width {
                shown -= 1;
            }
        }
        let gaps = 2 * shown.saturating_sub(1);
        let widths = &mut widths[..shown];
        while widths.iter().sum::<usize>() + gaps > width {
            match widths.iter_mut().max().filter(|widest| **widest > NARROWEST) {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
    }
    let mut out = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line[..shown]
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{:width$}", cut(cell, width)))
            .collect();
        let text = cells.join("  ");
        out.push_str(&bold(text.trim_end(), colour && number == 0));
        if number == 0 && shown < N {
            out.push_str(MORE);
        }
        out.push('\n');
    }
    out
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_columns_are_cut_until_the_table_fits() {
        let lines =
            [["NAME", "OWNER"], ["a-very-long-name-of-a-lock", "me"]].map(|line| line.map(String::from));
        assert_eq!(
            table(&lines, None, false),
            "NAME                        OWNER\na-very-long-name-of-a-lock  me\n"
        );
        assert_eq!(table(&lines, Some(20), false), "NAME           OWNER\na-very-long-…  me\n");
        // Too narrow for anything: still readable.
        assert_eq!(table(&lines, Some(3), false), "NAME      OWNER\na-very-…  me\n");
        assert!(table(&lines, None, true).starts_with("\x1b[1mNAME"));
        let lines =
            [["NAME", "OWNER", "LEFT", "MODE"], ["a-very-long-name-of-a-lock", "me", "3 s", "exclusive"]];
        let lines = lines.map(|line| line.map(String::from));
        assert_eq!(
            table(&lines, Some(31), false),
            "NAME      OWNER  LEFT  MODE\na-very-…  me     3 s   exclusi…\n"
        );
        assert_eq!(
            table(&lines, Some(28), false),
            "NAME           OWNER  LEFT …\na-very-long-…  me     3 s\n"
        );
    }

    #[test]
    fn nothing_that_is_shown_can_move_the_cursor() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
    }
}
