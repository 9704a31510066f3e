//! Orders of rooms: who may use whom, as tables, and what stands against them.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::graph::{Arrow, Crate, show};

/// The order of the rooms of one folder. A room is a file or a folder of it with all that is below; `mod` is the folder's own
/// `mod.rs` or `lib.rs`, which may use every room.
pub(crate) struct Order {
    /// From the workspace: `src/agent`.
    pub(crate) folder: &'static str,
    /// `room, room | rooms that it may use`, a line each. A room may also use what those may use.
    pub(crate) rows: &'static str,
}

type Uses<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The rows as they stand, without what follows from them.
fn rows<'a>(order: &Order, text: &'a str) -> Uses<'a> {
    let mut uses: Uses<'_> = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some((rooms, may)) = line.split_once('|') else { panic!("{}: no row: {line}", order.folder) };
        for room in rooms.split(',').map(str::trim) {
            let may = may.split(',').map(str::trim).filter(|name| !name.is_empty());
            assert!(uses.insert(room, may.collect()).is_none(), "{}: {room} stands twice", order.folder);
        }
    }
    for (room, may) in &uses {
        for other in may {
            assert!(uses.contains_key(other), "{}: {room} may use {other}, which has no row", order.folder);
        }
    }
    uses
}

/// A way by the rows from a room down to another.
fn way<'a>(uses: &Uses<'a>, from: &'a str, to: &str, seen: &mut BTreeSet<&'a str>) -> Option<Vec<&'a str>> {
    if from == to {
        return Some(vec![from]);
    }
    if !seen.insert(from) {
        return None;
    }
    let found = uses.get(from)?.iter().find_map(|next| way(uses, next, to, seen))?;
    Some([&[from], &found[..]].concat())
}

/// Arrows against the order, one violation a pair of rooms; and rooms without a row.
pub(crate) fn against(order: &Order, krate: &Crate, source: &str, arrows: &[Arrow]) -> Vec<Violation> {
    let uses = rows(order, order.rows);
    for (room, may) in &uses {
        let back = may.iter().find_map(|next| way(&uses, next, room, &mut BTreeSet::new()));
        assert!(back.is_none(), "{}: the order goes in a circle: {room} -> {back:?}", order.folder);
    }
    let prefix: Vec<String> = order
        .folder
        .strip_prefix(source)
        .unwrap()
        .split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    let room = |name: &[String]| -> Option<String> {
        let inside = name.strip_prefix(&prefix[..])?;
        Some(inside.first().map_or("mod", String::as_str).to_owned())
    };
    let mut found = Vec::new();
    let rooms: BTreeSet<String> = krate.modules.keys().filter_map(|name| room(name)).collect();
    for name in rooms.iter().filter(|name| *name != "mod" && *name != "main") {
        if !uses.contains_key(name.as_str()) {
            found.push(Violation {
                key: format!("{}: {name} has no row", order.folder),
                text: "give it one in tests/architecture/arrows/rules.rs".to_owned(),
            });
        }
    }
    for name in uses.keys().filter(|name| **name != "mod" && !rooms.contains(**name)) {
        found.push(Violation {
            key: format!("{}: no room {name}", order.folder),
            text: "its row in tests/architecture/arrows/rules.rs is idle".to_owned(),
        });
    }
    let mut pairs: BTreeMap<(String, String), Vec<&Arrow>> = BTreeMap::new();
    for arrow in arrows {
        let (Some(from), Some(to)) = (room(&arrow.from), room(&arrow.to)) else { continue };
        let may = from == to
            || from == "mod"
            || from == "main"
            || way(
                &uses,
                uses.get_key_value(from.as_str()).map_or("", |(name, _)| name),
                &to,
                &mut BTreeSet::new(),
            )
            .is_some();
        if !may {
            pairs.entry((from, to)).or_default().push(arrow);
        }
    }
    for ((from, to), arrows) in pairs {
        let down = uses.get_key_value(to.as_str()).map_or("", |(name, _)| name);
        let mut text = match way(&uses, down, &from, &mut BTreeSet::new()) {
            Some(way) => format!("the order is {}", way.join(" -> ")),
            None => format!("no row lets {from} use {to}"),
        };
        for arrow in arrows {
            let Arrow { from, to, place, name } = arrow;
            text.push_str(&format!("\n    {place}: {} -> {} ({name})", show(from), show(to)));
        }
        found.push(Violation { key: format!("{}: {from} -> {to}", order.folder), text });
    }
    found
}
