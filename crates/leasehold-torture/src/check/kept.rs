//! While nothing prevents renewals, no guard is lost (J10).

use super::Invariant::J10;
use super::case::{Case, Court};
use super::figures::Figures;
use crate::history::record::{Loss, SESSION};

/// Judges the guards that were held for longer than their first ttl, and those that were lost.
pub(super) fn judge(case: &Case<'_>, court: &mut Court, figures: &mut Figures) {
    if !case.setting.promises.keeps {
        return;
    }
    for (place, lease) in case.leases.iter().enumerate() {
        let lost = lease.lost.filter(|(_, why)| *why != Loss::Refused).map(|(at, _)| at);
        let renewed = lease.deadline != SESSION && lease.believed >= lease.from.saturating_add(lease.ttl);
        if lease.ttl == 0 || lost.is_none() && !renewed {
            continue;
        }
        let until = lost.unwrap_or(lease.believed);
        let explained = case.around(lease.worker).explained.meets(lease.called, until);
        let judged = figures.judged(J10);
        match lost {
            _ if explained => judged.waived += 1,
            None => judged.judged += 1,
            Some(_) => {
                judged.judged += 1;
                let seen =
                    format!("{} was lost, and nothing was in the way of its renewals", case.brief(place));
                court.accuse(case, J10, seen, &[place]);
            }
        }
    }
}
