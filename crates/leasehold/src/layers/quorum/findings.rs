//! Findings about the nodes of a quorum, each and together.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use super::connect::{self, split};
use crate::doctor::{Finding, Preview};
use crate::error::{Error, Result};
use crate::stores;

/// Examines the nodes in the part after `quorum:`, each and together.
pub(crate) async fn findings(urls: &str) -> Vec<Finding> {
    let urls = split(urls);
    let examined = join_all(urls.iter().map(|url| stores::examine((*url).to_owned()))).await;
    report(&urls, examined)
}

/// As [`findings`], but creates nothing at the nodes.
pub(crate) async fn preview(urls: &str) -> Result<Preview> {
    connect::check(urls)?;
    let urls = split(urls);
    let mut previews = join_all(urls.iter().map(|url| stores::preview((*url).to_owned()))).await;
    // As when the quorum is opened.
    let minority = (urls.len() - 1) / 2;
    let failed = previews.iter().filter(|node| node.is_err()).count();
    let fatal =
        |node: &Result<Preview>| node.as_ref().is_err_and(|error| failed > minority || !error.is_retryable());
    if let Some(place) = previews.iter().position(fatal) {
        return previews.swap_remove(place).map_err(|error| {
            Error::new(error.kind(), format!("node {} of the quorum: {}", place + 1, error.message()))
        });
    }
    let mut unchecked = Vec::new();
    let mut examined = Vec::new();
    for (number, node) in previews.into_iter().enumerate() {
        examined.push(node.map(|node| {
            let about = |what| format!("node {} ({}): {what}", number + 1, host(urls[number]));
            unchecked.extend(node.unchecked.into_iter().map(about));
            node.findings
        }));
    }
    Ok(Preview { findings: report(&urls, examined), unchecked })
}

fn report(urls: &[&str], examined: Vec<Result<Vec<Finding>>>) -> Vec<Finding> {
    let away = examined.iter().filter(|node| node.is_err()).count();
    let mut found = together(urls, away);
    for (number, (url, node)) in urls.iter().zip(examined).enumerate() {
        let node_name = format!("node {} ({})", number + 1, host(url));
        match node {
            Ok(findings) => found.extend(findings.into_iter().map(|one| one.about(&node_name))),
            Err(error) => found.push(
                Finding::note(format!("it cannot be looked at: {error}"))
                    .because("one that is away is one failure less that the others can bear", "bring it back")
                    .about(&node_name),
            ),
        }
    }
    found
}

fn together(urls: &[&str], away: usize) -> Vec<Finding> {
    let nodes = urls.len();
    let majority = nodes / 2 + 1;
    let mut found = Vec::new();
    let bears = (nodes - majority).saturating_sub(away);
    let what = format!("{nodes} nodes, {} of them there; {bears} more may fail", nodes - away);
    found.push(if away == 0 {
        Finding::ok(what)
    } else {
        Finding::note(what)
            .because("with fewer than a majority nothing can be locked", "bring the others back")
    });
    if nodes.is_multiple_of(2) {
        found.push(Finding::note(format!("{nodes} is an even number")).because(
            format!("it bears no more failures than {} nodes would, and has one more to fail", nodes - 1),
            "use an odd number of nodes",
        ));
    }
    let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
    urls.iter().for_each(|url| *hosts.entry(host(url)).or_default() += 1);
    for (host, count) in hosts.into_iter().filter(|(_, count)| *count > 1) {
        let what = format!("{count} of {nodes} nodes are on {host}");
        let risk = "they fail and forget together: a restart of that machine counts as one of each";
        let fix = "put each node on a machine of its own";
        found.push(if count >= majority {
            Finding::risk(what, risk, fix)
        } else {
            Finding::note(what).because(risk, fix)
        });
    }
    found
}

/// The first host of a URL, without user, password and port.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.rsplit('@').next().unwrap_or_default();
    let first = place.split(['/', '?', ',']).next().unwrap_or_default();
    let host = match first.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => first.split(':').next().unwrap_or_default(),
    };
    if host.is_empty() { "this machine".to_owned() } else { host.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_host_is_read_from_any_url_and_nothing_secret_with_it() {
        for (url, expected) in [
            ("redis://a:1/0", "a"),
            ("redis://:se@cr:et@B.example:6379", "b.example"),
            ("redis-sentinel://x:1,y:2/main", "x"),
            ("https://[::1]:7420?token_file=secret", "::1"),
            ("sqlite:///var/locks.db", "this machine"),
        ] {
            assert_eq!(host(url), expected);
        }
    }

    #[test]
    fn a_quorum_is_judged_by_its_number_and_by_where_its_nodes_are() {
        let levels = |urls: &[&str], away| -> Vec<Level> {
            together(urls, away).iter().map(|finding| finding.level).collect()
        };
        assert_eq!(levels(&["redis://a", "redis://b", "redis://c"], 0), [Level::Ok]);
        assert_eq!(levels(&["redis://a", "redis://b", "redis://c"], 1), [Level::Note]);
        assert_eq!(
            levels(&["redis://a", "redis://b", "redis://c", "redis://d"], 0),
            [Level::Ok, Level::Note]
        );
        assert_eq!(levels(&["redis://a:1", "redis://a:2", "redis://c"], 0), [Level::Ok, Level::Risk]);
        let five = ["redis://a:1", "redis://a:2", "redis://c", "redis://d", "redis://e"];
        assert_eq!(levels(&five, 0), [Level::Ok, Level::Note]);
    }
}
