//! Tests that compare the list of codes with docs/reference/problems.md and with the modules that report them.

use super::*;
use tortie_engine::routing::{
    EXPORT_GATES, EXPORT_GATES_CALICO_3, FILTER as FILTER_REASON, INSIDE_POOL as POOL_REASON, OWN_ENDPOINT,
};

#[test]
fn the_document_lists_every_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/problems.md");
    if std::env::var_os("TORTIE_GOLDEN").is_some() {
        std::fs::write(path, document()).unwrap();
    }
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text == document(), "docs/reference/problems.md is old: TORTIE_GOLDEN=1 cargo test --lib codes");
}

#[test]
fn no_list_names_a_code_twice_and_every_sentence_is_one() {
    for (kind, list) in ALL {
        for (i, code) in list.iter().enumerate() {
            assert!(list[..i].iter().all(|other| other.name != code.name), "{kind:?} {code}");
            assert!(code.about.ends_with('.') && !code.next.is_empty(), "{kind:?} {code}");
        }
    }
    for code in PROBLEMS {
        assert_eq!(find(Kind::Note, code.name), None, "{code} is a problem or a note");
    }
}

#[test]
fn reasons_are_those_of_the_deciding_functions() {
    for gate in EXPORT_GATES.into_iter().chain(EXPORT_GATES_CALICO_3) {
        assert!(find(Kind::Export, gate).is_some(), "{gate}");
    }
    for reason in [OWN_ENDPOINT, POOL_REASON, FILTER_REASON] {
        assert!(find(Kind::Import, reason).is_some(), "{reason}");
    }
    let quoted = |text: &str, before: &str| -> Vec<String> {
        let mut found = Vec::new();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for part in text.split(before).skip(1) {
            if let Some(name) = part.strip_prefix('"').and_then(|rest| rest.split('"').next()) {
                found.push(name.to_owned());
            }
        }
        assert!(!found.is_empty(), "{before} is not how a reason is given any more");
        found
    };
    for name in quoted(include_str!("../../engine/src/routing/forward/mod.rs"), "withhold(rec, ") {
        assert!(find(Kind::Kernel, &name).is_some(), "{name}");
    }
    for name in quoted(include_str!("../../bgp/src/rib/import.rs"), "return Some(") {
        assert!(find(Kind::Import, &name).is_some(), "{name}");
    }
    for name in quoted(include_str!("../../bgp/src/rib/import.rs"), "return Err(") {
        assert!(name == "gone" || find(Kind::Import, &name).is_some(), "{name}");
    }
    for name in quoted(include_str!("../../bgp/src/adj_rib_out/export.rs"), "Verdict::Gate(") {
        assert!(find(Kind::Export, &name).is_some(), "{name}");
    }
    for name in quoted(include_str!("../../engine/src/routing/notes.rs"), "code: ") {
        assert!(find(Kind::Note, &name).or(find(Kind::Problem, &name)).is_some(), "{name}");
    }
    // The sources are searched without blanks, so that line breaks in them do not matter.
    let peer: String = include_str!("../agent/explain/cause.rs").split_whitespace().collect();
    for before in ["Cause::certain(", "Cause::implied(", "cause("] {
        for name in quoted(&peer, before).into_iter().filter(|name| name != "ok") {
            // A cause that is also a code of `status` has the same meaning.
            let known = find(Kind::Cause, &name).or_else(|| find(Kind::Problem, &name));
            assert!(known.is_some(), "{name}");
        }
    }
    for (kind, name) in [(Kind::Problem, "filter-missing"), (Kind::Note, "filter-unreadable")] {
        assert!(find(kind, name).is_some(), "{name}");
    }
}
