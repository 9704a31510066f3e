//! The test is tested: written trees in which one line is wrong.

use super::graph::{Crate, circles};
use super::order::{Order, against};
use super::{files, settle};

const ORDER: Order = Order {
    folder: "src",
    rows: "
        codec |
        table | codec
        thread | table
    ",
};

/// A crate in order: what is re-exported, tested or written in a comment makes no arrow.
const TREE: &[(&str, &str)] = &[
    ("src/lib.rs", "mod codec; mod table; mod thread;\npub use crate::thread::Thread;\n"),
    (
        "src/codec.rs",
        "pub struct Codec; // crate::thread\n#[cfg(test)] mod tests { use crate::thread::Thread; }\n",
    ),
    ("src/table/mod.rs", "mod row; mod view;\npub(crate) use row::Row;\npub(crate) use view::*;\n"),
    ("src/table/row.rs", "use crate::codec::Codec;\npub(crate) struct Row(Codec);\n"),
    ("src/table/view.rs", "use super::Row;\npub(crate) struct View(Row);\n"),
    ("src/thread.rs", "use crate::table::{self, View};\npub struct Thread(View, table::Row);\n"),
];

/// The tree with these lines added to these files.
fn tree(added: &[(&str, &str)]) -> Crate {
    let mut files: Vec<(String, String)> =
        TREE.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
    for (file, line) in added {
        match files.iter_mut().find(|(name, _)| name == file) {
            Some((_, text)) => text.push_str(line),
            None => files.push(((*file).to_owned(), (*line).to_owned())),
        }
    }
    Crate::new("src", files)
}

fn broken(added: &[(&str, &str)]) -> Vec<(String, String)> {
    let krate = tree(added);
    let found = against(&ORDER, &krate, "src", &krate.arrows());
    found.into_iter().map(|violation| (violation.key, violation.text)).collect()
}

#[test]
fn arrows_point_at_the_file_that_defines_a_name() {
    let arrows = tree(&[]).arrows();
    let mut found: Vec<String> =
        arrows.iter().map(|a| format!("{} -> {} ({})", a.from.join("::"), a.to.join("::"), a.name)).collect();
    found.sort();
    let expected = [
        "table::row -> codec (Codec)",
        "table::view -> table::row (Row)",
        "thread -> table::row (Row)",
        "thread -> table::view (View)",
    ];
    assert_eq!(found, expected);
    assert_eq!(broken(&[]), []);
    assert!(circles(&arrows).is_empty());
}

#[test]
fn a_use_against_the_order_is_found() {
    for line in [
        "use crate::thread::Thread;\n",
        "use super::thread::Thread as T;\n",
        "use crate::{thread::{Thread}};\n",
        "fn f() { crate::thread::Thread::new() }\n",
        "use crate::Thread;\n",
        "mod inside { use super::super::thread::Thread; }\n",
    ] {
        let found = broken(&[("src/codec.rs", line)]);
        assert_eq!(found.len(), 1, "{line}");
        assert_eq!(found[0].0, "src: codec -> thread", "{line}");
        let chain = "the order is thread -> table -> codec\n    src/codec.rs:3: codec -> thread (Thread)";
        assert_eq!(found[0].1, chain, "{line}");
    }
}

#[test]
fn a_room_without_a_row_is_found() {
    assert_eq!(broken(&[("src/other/mod.rs", "")])[0].0, "src: other has no row");
}

#[test]
fn a_circle_of_four_is_found_and_one_of_three_is_not() {
    let three = [
        ("src/a.rs", "use crate::b::B;"),
        ("src/b.rs", "use crate::c::C;"),
        ("src/c.rs", "use crate::a::A;"),
    ];
    assert_eq!(super::circles("sample", &tree(&three).arrows()).len(), 0);
    let four =
        [&three[..2], &[("src/c.rs", "use crate::d::D;"), ("src/d.rs", "fn f() { crate::a::A; }")]].concat();
    let found = super::circles("sample", &tree(&four).arrows());
    assert_eq!(found.len(), 1);
    assert!(found[0].text.starts_with("4 modules, one way round: "), "{}", found[0].text);
    assert!(found[0].text.contains("src/d.rs:1: d -> a (A)"), "{}", found[0].text);
}

/// A `mod.rs` with code of its own is in the circle with the children that it names and that name it.
#[test]
fn a_folder_whose_parent_has_code_is_a_circle() {
    let mut files = vec![("src/x/mod.rs".to_owned(), "pub(crate) struct X;\n".to_owned())];
    for child in ["a", "b", "c"] {
        files[0].1.push_str(&format!("use {child}::f;\n"));
        files.push((format!("src/x/{child}.rs"), "use super::X;\n".to_owned()));
    }
    let found = super::circles("sample", &Crate::new("src", files).arrows());
    assert_eq!(found[0].key, "sample::x");
}

#[test]
fn a_sixteenth_file_is_found() {
    let folder = |count: usize| (0..count).map(|n| format!("src/room/f{n}.rs")).collect::<Vec<_>>();
    assert!(files::heaps(&folder(15)).is_empty());
    assert_eq!(files::heaps(&folder(16))[0].key, "src/room");
}

#[test]
fn what_does_not_hold_yet_is_named_and_no_longer_than_needed() {
    let folder: Vec<String> = (0..16).map(|n| format!("src/room/f{n}.rs")).collect();
    let rows = &[("files", "src/room"), ("circle", "sample")];
    assert_eq!(settle("files", files::heaps(&folder), rows), Ok(()));
    assert!(settle("files", Vec::new(), rows).unwrap_err().contains("take the row out"));
    assert!(settle("files", files::heaps(&folder), &[]).unwrap_err().contains("src/room\"): 16 files"));
}
