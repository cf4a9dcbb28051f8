//! The names in use that a client knows without walking through all keys: those that the last complete sweep met, and
//! those that were asked for here since it began. Lists use them while this client sweeps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;

/// A client that has not swept for this long has stopped sweeping: a server pauses for a minute at most.
const SWEEPS_NO_MORE: Duration = Duration::from_secs(150);

/// The most names that are remembered between two walks, some 10 MB; a list shows more after the next walk.
const MOST_ASKED: usize = 100_000;

#[derive(Default)]
pub(super) struct Known {
    /// Whether this client has ever swept. One that never does pays nothing here.
    is_swept: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// When a sweep was last called.
    swept: Option<Instant>,
    /// The number of the current walk, or of the last one.
    walk: u64,
    last: Option<Last>,
    /// Names that were asked for here, with the number of the walk at that time.
    asked: BTreeMap<String, u64>,
}

/// What a complete walk has met.
struct Last {
    began: Instant,
    names: Arc<BTreeSet<String>>,
}

/// Where the names with this prefix begin that come after `after`.
pub(super) fn range<'a>(prefix: &'a str, after: &'a str) -> (Bound<&'a str>, Bound<&'a str>) {
    let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
    (from, Bound::Unbounded)
}

impl Seen {
    fn is_kept_up(&self) -> bool {
        self.swept.is_some_and(|swept| swept.elapsed() < SWEEPS_NO_MORE)
    }
}

impl Known {
    /// Records that a sweep was called.
    pub(super) fn sweeps(&self) {
        self.seen.lock().swept = Some(Instant::now());
        self.is_swept.store(true, Ordering::Relaxed);
    }

    /// Records that a walk begins.
    pub(super) fn begins(&self) {
        self.seen.lock().walk += 1;
    }

    /// Records that a walk is over: when it began, and the names it met.
    pub(super) fn ends(&self, began: Instant, names: BTreeSet<String>) {
        let mut seen = self.seen.lock();
        let walk = seen.walk;
        seen.last = Some(Last { began, names: Arc::new(names) });
        // The walk has met every name that was asked for before it began, unless it is no longer in use.
        seen.asked.retain(|_, asked| *asked >= walk);
    }

    /// Records what the walk for a list has met. It serves until the first sweep is over.
    pub(super) fn walked(&self, began: Instant, names: &Arc<BTreeSet<String>>) {
        let mut seen = self.seen.lock();
        if seen.is_kept_up() && seen.last.is_none() {
            seen.last = Some(Last { began, names: Arc::clone(names) });
        }
    }

    /// Records that a name was granted or queued for here.
    pub(super) fn asked(&self, name: &Name) {
        if !self.is_swept.load(Ordering::Relaxed) {
            return;
        }
        let mut seen = self.seen.lock();
        if seen.is_kept_up() {
            let Seen { walk, asked, .. } = &mut *seen;
            if let Some(known) = asked.get_mut(name.stored()) {
                *known = *walk;
            } else if asked.len() < MOST_ASKED {
                asked.insert(name.stored().to_owned(), *walk);
            }
        } else {
            *seen = Seen { walk: seen.walk, ..Seen::default() };
            self.is_swept.store(false, Ordering::Relaxed);
        }
    }

    /// How old this knowledge is; `None` if only a walk can tell.
    pub(super) fn age(&self) -> Option<Duration> {
        let seen = self.seen.lock();
        seen.last.as_ref().filter(|_| seen.is_kept_up()).map(|last| last.began.elapsed())
    }

    /// The names after `after` that begin with `prefix`, in order, at most `most`.
    pub(super) fn after(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Name>> {
        let seen = self.seen.lock();
        let Some(last) = &seen.last else {
            return Err(Error::new(ErrorKind::Unavailable, "the listing has expired; start it again"));
        };
        let range = range(prefix, after);
        let mut names: Vec<&String> = last.names.range::<str, _>(range).take(most).collect();
        names.extend(seen.asked.range::<str, _>(range).take(most).map(|(name, _)| name));
        names.sort_unstable();
        names.dedup();
        let names = names.into_iter().take(most).take_while(|name| name.starts_with(prefix));
        names.map(|name| Name::from_stored(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::within("n", text).unwrap()
    }

    fn listed(known: &Known, prefix: &str, after: &str, most: usize) -> Vec<String> {
        let names = known.after(prefix, after, most).unwrap();
        names.iter().map(|name| name.as_str().to_owned()).collect()
    }

    fn walk(known: &Known, met: &[&str]) {
        let began = Instant::now();
        known.begins();
        known.ends(began, met.iter().map(|text| name(text).stored().to_owned()).collect());
    }

    #[test]
    fn a_list_has_the_names_scanned_and_those_used_since() {
        let known = Known::default();
        assert_eq!(known.age(), None);
        known.asked(&name("nobody sweeps"));
        known.sweeps();
        assert_eq!(known.age(), None, "no walk is over");
        walk(&known, &["b", "d"]);
        assert!(known.age().is_some());
        for text in ["c", "d", "e"] {
            known.asked(&name(text));
        }
        assert_eq!(listed(&known, "n/", "", 10), ["b", "c", "d", "e"]);
        assert_eq!(listed(&known, "n/", "n/b", 2), ["c", "d"]);
        assert_eq!(listed(&known, "n/d", "n/b", 10), ["d"]);
        // A name asked for during a walk is known after it; one asked for before, only if the walk met it.
        known.begins();
        known.asked(&name("f"));
        known.ends(Instant::now(), [name("c").stored().to_owned()].into());
        assert_eq!(listed(&known, "n/", "", 10), ["c", "f"]);
        walk(&known, &[]);
        assert!(listed(&known, "n/", "", 10).is_empty());
    }

    #[test]
    fn the_walk_for_a_list_serves_until_a_sweep_is_over() {
        let known = Known::default();
        let met = Arc::new(BTreeSet::from([name("a").stored().to_owned()]));
        known.walked(Instant::now(), &met);
        assert_eq!(known.age(), None, "this client does not sweep");
        known.sweeps();
        known.walked(Instant::now(), &met);
        assert!(known.age().is_some());
        known.asked(&name("b"));
        assert_eq!(listed(&known, "n/", "", 10), ["a", "b"]);
        walk(&known, &["c"]);
        known.walked(Instant::now(), &met);
        assert_eq!(listed(&known, "n/", "", 10), ["c"]);
    }

    #[test]
    fn no_more_names_are_remembered_than_there_is_room_for() {
        let known = Known::default();
        known.sweeps();
        walk(&known, &[]);
        (0..=MOST_ASKED).for_each(|n| known.asked(&name(&n.to_string())));
        assert_eq!(known.seen.lock().asked.len(), MOST_ASKED);
    }

    #[test]
    fn nothing_is_kept_when_nobody_sweeps_any_more() {
        let known = Known::default();
        known.sweeps();
        walk(&known, &["a"]);
        known.seen.lock().swept = Instant::now().checked_sub(SWEEPS_NO_MORE);
        assert_eq!(known.age(), None);
        known.asked(&name("b"));
        assert!(known.seen.lock().asked.is_empty() && known.seen.lock().last.is_none());
        assert!(known.after("", "", 10).is_err());
    }
}
