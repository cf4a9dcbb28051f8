//! Names in use that are known without a walk through all keys: those that the last whole sweep has met, and those that
//! were asked for here since it began. Lists come from them while somebody sweeps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;

/// Whoever has not swept for this long sweeps no more: a server rests for a minute at most.
const SWEEPS_NO_MORE: Duration = Duration::from_secs(150);

/// Names that are remembered between two walks, some 10 MB; a list shows further ones after the next walk.
const MOST_ASKED: usize = 100_000;

#[derive(Default)]
pub(super) struct Known {
    /// Whether anybody has swept. Whoever never does pays for nothing here.
    is_swept: AtomicBool,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    /// When a sweep was last called.
    swept: Option<Instant>,
    /// The number of the walk under way, or else of the last.
    walk: u64,
    last: Option<Last>,
    /// Names that were asked for here, and the walk at that time.
    asked: BTreeMap<String, u64>,
}

/// What a whole walk has met.
struct Last {
    began: Instant,
    names: BTreeSet<String>,
}

impl Names {
    fn is_kept_up(&self) -> bool {
        self.swept.is_some_and(|swept| swept.elapsed() < SWEEPS_NO_MORE)
    }
}

impl Known {
    /// A sweep is called.
    pub(super) fn sweeps(&self) {
        self.names.lock().swept = Some(Instant::now());
        self.is_swept.store(true, Ordering::Relaxed);
    }

    /// A walk begins.
    pub(super) fn begins(&self) {
        self.names.lock().walk += 1;
    }

    /// The walk is over: it began then, and has met these.
    pub(super) fn ends(&self, began: Instant, names: BTreeSet<String>) {
        let mut names = self.names.lock();
        let walk = names.walk;
        names.last = Some(Last { began, names });
        // What was asked for before the walk began, it has met, unless it is no longer in use.
        names.asked.retain(|_, asked| *asked >= walk);
    }

    /// A name was granted or queued for here.
    pub(super) fn asked(&self, name: &Name) {
        if !self.is_swept.load(Ordering::Relaxed) {
            return;
        }
        let mut names = self.names.lock();
        if names.is_kept_up() {
            let Names { walk, asked, .. } = &mut *names;
            if let Some(known) = asked.get_mut(name.stored()) {
                *known = *walk;
            } else if asked.len() < MOST_ASKED {
                asked.insert(name.stored().to_owned(), *walk);
            }
        } else {
            *names = Names { walk: names.walk, ..Names::default() };
            self.is_swept.store(false, Ordering::Relaxed);
        }
    }

    /// How old what is known is; `None` if it takes a walk to know.
    pub(super) fn age(&self) -> Option<Duration> {
        let names = self.names.lock();
        names.last.as_ref().filter(|_| names.is_kept_up()).map(|last| last.began.elapsed())
    }

    /// Names that begin with this and come after that, in order; so many at most.
    pub(super) fn after(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Name>> {
        let names = self.names.lock();
        let Some(last) = &names.last else {
            return Err(Error::new(ErrorKind::Unavailable, "the list is too old by now; try again"));
        };
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let range = (from, Bound::Unbounded);
        let mut names: Vec<&String> = last.names.range::<str, _>(range).take(most).collect();
        names.extend(names.asked.range::<str, _>(range).take(most).map(|(name, _)| name));
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
    fn a_list_has_what_the_walk_met_and_what_was_asked_for_since() {
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
        // Asked for while a walk is under way, a name is known after it; asked for before, only if the walk has met it.
        known.begins();
        known.asked(&name("f"));
        known.ends(Instant::now(), [name("c").stored().to_owned()].into());
        assert_eq!(listed(&known, "n/", "", 10), ["c", "f"]);
        walk(&known, &[]);
        assert!(listed(&known, "n/", "", 10).is_empty());
    }

    #[test]
    fn no_more_names_are_remembered_than_there_is_room_for() {
        let known = Known::default();
        known.sweeps();
        walk(&known, &[]);
        (0..=MOST_ASKED).for_each(|n| known.asked(&name(&n.to_string())));
        assert_eq!(known.names.lock().asked.len(), MOST_ASKED);
    }

    #[test]
    fn nothing_is_kept_when_nobody_sweeps_any_more() {
        let known = Known::default();
        known.sweeps();
        walk(&known, &["a"]);
        known.names.lock().swept = Instant::now().checked_sub(SWEEPS_NO_MORE);
        assert_eq!(known.age(), None);
        known.asked(&name("b"));
        assert!(known.names.lock().asked.is_empty() && known.names.lock().last.is_none());
        assert!(known.after("", "", 10).is_err());
    }
}
