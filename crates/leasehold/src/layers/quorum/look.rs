//! Inspects a quorum: combines the nodes' views into one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Nodes, SCAN_TIMEOUT};
use crate::backend::{Backend, HolderInfo, NameInfo, Note, Page, Query, check_page_limit};
use crate::error::{Error, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::cut_holders;

async fn inspect(backend: Arc<dyn Backend>, query: Query) -> Result<Page> {
    backend.inspect(&query).await
}

impl Nodes {
    pub(super) async fn look(&self, name: &Name) -> Result<Vec<(usize, Page)>> {
        let query = Query::Name(name.clone());
        let pages = self.ask(self.node_timeout, |_, backend| inspect(backend, query.clone())).await?;
        Ok(self.in_step(pages))
    }

    /// The query to a node about one lease. A query by name shows only the oldest holders, so it is used only for
    /// nodes that cannot find a lease by its id.
    pub(super) fn about(&self, node: usize, name: &Name, id: LeaseId) -> Query {
        if self.members[node].backend.info().find_by_id {
            Query::LeaseId(id)
        } else {
            Query::Name(name.clone())
        }
    }

    /// The lease in a node's answer to that query.
    pub(super) fn lease_in(&self, node: usize, page: Page, name: &Name, id: LeaseId) -> Option<HolderInfo> {
        let ids = [id, self.shown_by(node, id)];
        let of_name = page.items.into_iter().filter(|info| info.name == *name);
        of_name.flat_map(|info| info.holders).find(|holder| ids.contains(&holder.id))
    }

    /// Sends each node its own query, with time to look at everything.
    async fn scan(&self, query: impl Fn(usize) -> Query) -> Result<Vec<(usize, Page)>> {
        let pages = self.ask(SCAN_TIMEOUT, |node, backend| inspect(backend, query(node))).await?;
        Ok(self.in_step(pages))
    }

    /// Pages in the order of the nodes. Where some nodes show only digests of lease ids, the others' ids become digests,
    /// so that one lease looks the same everywhere.
    fn in_step(&self, mut pages: Vec<(usize, Page)>) -> Vec<(usize, Page)> {
        pages.sort_unstable_by_key(|(node, _)| *node);
        if !self.info.shows_ids {
            let plain = pages.iter_mut().filter(|(node, _)| self.members[*node].backend.info().shows_ids);
            for info in plain.flat_map(|(_, page)| &mut page.items) {
                info.holders.iter_mut().for_each(|holder| holder.id = holder.id.digest());
            }
        }
        pages
    }

    pub(super) async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Name(name) => {
                let pages = self.look(name).await?;
                let unknown = self.members.len() - pages.len();
                let views = pages.into_iter().flat_map(|(_, page)| page.items).collect();
                Ok(Page::new(vec![self.one_view(name.clone(), views, unknown, None)], None))
            }
            Query::LeaseId(id) => {
                let mut pages = self.scan(|_| query.clone()).await?;
                let unknown = self.members.len() - pages.len();
                // The caller asked by the id, so it knows the id.
                let digest = id.digest();
                for info in pages.iter_mut().flat_map(|(_, page)| &mut page.items) {
                    info.holders.iter_mut().filter(|one| one.id == digest).for_each(|one| one.id = *id);
                }
                let views = by_name(pages.into_iter().flat_map(|(_, page)| page.items));
                let one = |(name, views)| self.one_view(name, views, unknown, Some(*id));
                let views = views.into_iter().map(one);
                let items = views.filter(|info| info.holders.iter().any(|holder| holder.id == *id)).collect();
                Ok(Page::new(items, None))
            }
            Query::Prefix { stored, limit, cursor } => self.list(stored, *limit, cursor.as_deref()).await,
        }
    }

    /// One page of all names in use. The nodes are read in step: a page ends where the slowest node's page ends.
    async fn list(&self, stored: &str, limit: usize, cursor: Option<&str>) -> Result<Page> {
        check_page_limit(limit)?;
        let from = match cursor {
            Some(cursor) => Cursor::parse(cursor, self.members.len())?,
            None => Cursor { after: String::new(), nodes: vec![None; self.members.len()] },
        };
        let seen = self.scan(|node| Query::Prefix {
            stored: stored.to_owned(),
            limit,
            cursor: from.nodes[node].clone(),
        });
        let pages = seen.await?;
        let unknown = self.members.len() - pages.len();
        // A page with a next one is complete up to its last name. A page without names, from a node that looked
        // through many and found none in use, only says where to go on.
        let end_of = |page: &Page| {
            page.items.last().map_or_else(|| from.after.clone(), |info| info.name.stored().to_owned())
        };
        let ends = pages.iter().filter(|(_, page)| page.next.is_some()).map(|(_, page)| end_of(page));
        // A node that was away is read again from its old place, which is before what was shown.
        let mut bound = ends.min().map(|bound| bound.max(from.after.clone()));
        let fresh = |info: &NameInfo| info.name.stored() > from.after.as_str() || from.after.is_empty();
        let items = pages.iter().flat_map(|(_, page)| page.items.clone()).filter(fresh);
        let mut views: Vec<NameInfo> = by_name(items)
            .into_iter()
            .filter(|(name, _)| bound.as_ref().is_none_or(|bound| name.stored() <= bound.as_str()))
            .map(|(name, views)| self.one_view(name, views, unknown, None))
            .filter(|info| !info.holders.is_empty())
            .collect();
        if views.len() > limit {
            views.truncate(limit);
            bound = views.last().map(|info| info.name.stored().to_owned());
        }
        let next = bound.map(|after| {
            let mut nodes = from.nodes;
            for (node, page) in &pages {
                // Read to the end of this page; otherwise the page is read again, and names already shown are left
                // out.
                if page.next.is_some() && end_of(page) <= after {
                    nodes[*node].clone_from(&page.next);
                }
            }
            Cursor { after, nodes }.to_text()
        });
        Ok(Page { items: views, next, age: pages.iter().filter_map(|(_, page)| page.age).max() })
    }

    /// Combines the nodes' views of one name, with the lease that was asked for. `unknown`: how many nodes have not
    /// answered.
    fn one_view(&self, name: Name, views: Vec<NameInfo>, unknown: usize, asked: Option<LeaseId>) -> NameInfo {
        let mut info = NameInfo::unused(name);
        // Whatever a minority has beyond this comes from claims that were given back.
        let surely = self.majority.saturating_sub(unknown).max(1);
        info.version = ranked(views.iter().map(|view| view.version), surely);
        info.last_fence = ranked(views.iter().map(|view| view.last_fence), surely);
        // The latest of all: a note that was confirmed is on a majority, and so on some node that has answered.
        info.note = views.iter().filter_map(|view| view.note.clone()).reduce(Note::later);
        let mut seen: Vec<Vec<&HolderInfo>> = Vec::new();
        for holder in views.iter().flat_map(|view| &view.holders) {
            match seen.iter_mut().find(|same| same[0].id == holder.id) {
                Some(same) => same.push(holder),
                None => seen.push(vec![holder]),
            }
        }
        let nodes = |one: &HolderInfo| views.iter().filter(|view| may_have(view, one, asked)).count();
        seen.retain(|same| nodes(same[0]) + unknown >= self.majority);
        // In the order of the grants. Two leases have a node in common, which knows the older one.
        let place = |view: &NameInfo, one: &HolderInfo| {
            let shown = view.holders.iter().position(|holder| holder.id == one.id);
            shown.or_else(|| may_have(view, one, asked).then_some(usize::MAX))
        };
        let is_older = |one: &HolderInfo, than: &HolderInfo| {
            views.iter().any(|view| place(view, one).zip(place(view, than)).is_some_and(|(a, b)| a < b))
        };
        let mut in_order: Vec<Vec<&HolderInfo>> = Vec::new();
        for same in seen {
            let before = in_order.iter().rposition(|other| is_older(other[0], same[0]));
            in_order.insert(before.map_or(0, |before| before + 1), same);
        }
        for same in in_order {
            let mut holder = same[0].clone();
            let grants: Vec<_> = same.iter().map(|holder| holder.grant.clone()).collect();
            let (left, mode) = (holder.grant.left, holder.grant.mode);
            holder.grant = self.merge(&grants);
            if same.len() < self.majority {
                (holder.grant.left, holder.grant.mode) = (left, mode);
            }
            let revoked = same.iter().filter(|holder| holder.revoked).count();
            holder.revoked = revoked > self.members.len() - self.majority;
            info.holders.push(holder);
        }
        info.holder_count = info.holders.len() as u64;
        if views.iter().any(is_cut) {
            let most = ranked(views.iter().map(|view| view.holder_count), surely);
            info.holder_count = info.holder_count.max(most);
        }
        cut_holders(&mut info.holders, |holder| asked == Some(holder.id));
        info
    }

    /// Whether some id may hold the name on a majority of all nodes.
    pub(super) async fn is_held(&self, name: &Name) -> bool {
        // If too few nodes answer, another client may hold it.
        let Ok(seen) = self.look(name).await else { return true };
        let views: Vec<_> = seen.iter().flat_map(|(_, page)| &page.items).collect();
        let mut holders = views.iter().flat_map(|view| &view.holders);
        holders.any(|one| views.iter().filter(|view| may_have(view, one, None)).count() >= self.majority)
    }
}

/// Whether a node has this lease, or may have it unseen: a node hides only leases that are younger than those it
/// shows, and never the one that was asked for.
fn may_have(view: &NameInfo, one: &HolderInfo, asked: Option<LeaseId>) -> bool {
    let mut others = view.holders.iter().filter(|holder| asked != Some(holder.id));
    view.holders.iter().any(|holder| holder.id == one.id)
        || is_cut(view) && asked != Some(one.id) && others.all(|holder| holder.grant.fence <= one.grant.fence)
}

/// Whether there are more holders than are shown.
fn is_cut(view: &NameInfo) -> bool {
    view.holder_count > view.holders.len() as u64
}

/// The highest value that this many reach.
fn ranked<T: Ord + Copy + Default>(values: impl Iterator<Item = T>, reach: usize) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    values.get(reach - 1).copied().unwrap_or_default()
}

fn by_name(items: impl Iterator<Item = NameInfo>) -> BTreeMap<Name, Vec<NameInfo>> {
    let mut names: BTreeMap<Name, Vec<NameInfo>> = BTreeMap::new();
    for info in items {
        names.entry(info.name.clone()).or_default().push(info);
    }
    names
}

/// Where the next page begins: the last name that was shown, and each node's own cursor.
struct Cursor {
    after: String,
    nodes: Vec<Option<String>>,
}

impl Cursor {
    /// Each part as its length and its text, because the nodes' cursors may contain anything. `-` means none.
    fn to_text(&self) -> String {
        let mut text = String::new();
        for part in std::iter::once(Some(&self.after)).chain(self.nodes.iter().map(Option::as_ref)) {
            match part {
                Some(part) => text.push_str(&format!("{}:{part}", part.len())),
                None => text.push_str("-:"),
            }
        }
        text
    }

    fn parse(text: &str, nodes: usize) -> Result<Self> {
        let foreign = || Error::invalid("this cursor is not from a page of this quorum");
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((length, after)) = rest.split_once(':') {
            if length == "-" {
                parts.push(None);
                rest = after;
            } else {
                let length: usize = length.parse().map_err(|_| foreign())?;
                let part = after.get(..length).ok_or_else(foreign)?;
                parts.push(Some(part.to_owned()));
                rest = &after[length..];
            }
        }
        match (rest.is_empty(), parts.len() == nodes + 1, parts.first().cloned().flatten()) {
            (true, true, Some(after)) => Ok(Cursor { after, nodes: parts.split_off(1) }),
            _ => Err(foreign()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_as_text_and_a_foreign_one_is_refused() {
        for parts in
            [vec![None, None], vec![Some("12:x".into()), None], vec![Some(String::new()), Some("é".into())]]
        {
            let cursor = Cursor { after: "a:b".into(), nodes: parts.clone() };
            let again = Cursor::parse(&cursor.to_text(), 2).unwrap();
            assert_eq!((again.after.as_str(), again.nodes), ("a:b", parts));
        }
        for foreign in ["", "x", "3:ab", "-:", "1:a", "1:a-:-:-:", "2:é", "1:é-:-:", "99999999999999999999:a"]
        {
            assert!(Cursor::parse(foreign, 2).is_err(), "{foreign}");
        }
    }
}
