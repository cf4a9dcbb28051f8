//! Measuring side by side: what is compared takes turns, in an order that changes from round to round, so that a busy
//! moment of the machine affects all alike. Ratios are taken within a round, and medians of the rounds are shown.

use std::fmt;

/// Measures `N` things in turns, and drops the first round, which warms up. Returns the results by round.
pub fn in_turns<T, const N: usize>(rounds: usize, mut measure: impl FnMut(usize) -> T) -> Vec<[T; N]> {
    let round = |number| in_place(order::<N>(number).map(|which| (which, measure(which))));
    (0..=rounds).map(round).skip(1).collect()
}

/// As [`in_turns`], for measurements that await.
pub async fn in_turns_async<T, const N: usize>(
    rounds: usize,
    mut measure: impl AsyncFnMut(usize) -> T,
) -> Vec<[T; N]> {
    let mut all = Vec::with_capacity(rounds);
    for number in 0..=rounds {
        let mut round = Vec::with_capacity(N);
        for which in order::<N>(number) {
            round.push((which, measure(which).await));
        }
        if number > 0 {
            all.push(in_place(round));
        }
    }
    all
}

/// The order of a round: everything goes first equally often, and follows everything else.
fn order<const N: usize>(round: usize) -> [usize; N] {
    std::array::from_fn(|place| {
        let place = if (round / N).is_multiple_of(2) { place } else { N - 1 - place };
        (place + round) % N
    })
}

/// Sorts results by what was measured instead of when.
fn in_place<T, const N: usize>(round: impl IntoIterator<Item = (usize, T)>) -> [T; N] {
    let mut round: Vec<_> = round.into_iter().collect();
    round.sort_by_key(|(which, _)| *which);
    match <[(usize, T); N]>::try_from(round) {
        Ok(round) => round.map(|(_, measured)| measured),
        Err(_) => unreachable!("each was measured once"),
    }
}

/// The result of several rounds. Prints the median, followed by the lowest and the highest.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The one in the middle.
    pub median: f64,
    /// The lowest of all rounds.
    pub lowest: f64,
    /// The highest of all rounds.
    pub highest: f64,
}

impl Spread {
    /// Of these values, one per round.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        let median = percentile(&mut values, 50.0);
        Spread { median, lowest: values[0], highest: values[values.len() - 1] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.lowest, self.highest)
    }
}

/// The value that this percentage of the values does not exceed. Leaves them sorted.
///
/// # Panics
/// If there is none.
pub fn percentile(values: &mut [f64], percent: f64) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * percent / 100.0).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::{Spread, in_turns, order};

    #[test]
    fn each_order_has_every_item_once_and_all_start_equally_often() {
        let orders: Vec<[usize; 3]> = (0..6).map(order::<3>).collect();
        for order in &orders {
            let mut sorted = *order;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        for which in 0..3 {
            assert_eq!(orders.iter().filter(|order| order[0] == which).count(), 2);
        }
        assert!(orders.contains(&[0, 1, 2]) && orders.iter().any(|order| order[0] > order[1]));
    }

    #[test]
    fn a_measurement_stays_with_what_was_measured() {
        let mut calls = 0;
        let rounds: Vec<[usize; 4]> = in_turns(5, |which| {
            calls += 1;
            which
        });
        assert_eq!(calls, 6 * 4, "five rounds, and one to warm up");
        assert_eq!(rounds, [[0, 1, 2, 3]; 5]);
    }

    #[test]
    fn a_spread_prints_its_median_and_its_ends() {
        assert_eq!(format!("{:.1}", Spread::of([3.0, 1.0, 2.0])), "2.0 (1.0 to 3.0)");
    }
}
