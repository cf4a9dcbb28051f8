//! The checks that call the backend directly, grouped by subject.

// What belongs here: a check that makes single calls of `Backend`. Before changing anything here, run what the first
// lines of `conformance` say.

mod exclusion;
mod expiry;
mod fences;
mod history;
mod inspection;
mod names;
mod notes;
mod queue;
mod renewal;
mod repeats;
mod revocation;
mod rules;
mod wakeups;

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    [
        exclusion::CHECKS,
        repeats::CHECKS,
        expiry::CHECKS,
        renewal::CHECKS,
        fences::CHECKS,
        queue::CHECKS,
        wakeups::CHECKS,
        revocation::CHECKS,
        rules::CHECKS,
        inspection::CHECKS,
        names::CHECKS,
        notes::CHECKS,
        history::CHECKS,
    ]
    .concat()
}
