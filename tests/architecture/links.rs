//! Links of the tree's Markdown files: each relative path, anchor and image resolves, each external address is well formed, and
//! every page below `docs/` is reachable from `docs/README.md`. Nothing is fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

const INDEX: &str = "docs/README.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Markdown files below `folder`, relative to the root, without build output and hidden folders.
fn pages(folder: &Path, out: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().unwrap().is_dir() {
            let hidden = name.starts_with('.') && name != ".github";
            if !hidden && name != "target" {
                pages(&path, out);
            }
        } else if name.ends_with(".md") {
            out.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
        }
    }
}

/// Lines of a page outside of fenced and indented code, with their numbers.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let (mut fence, mut indented, mut blank, mut out) = (false, false, true, Vec::new());
    for (at, line) in page.lines().enumerate() {
        // Behind a line of text, an indented one continues it.
        indented = line.starts_with("    ") && (indented || blank);
        blank = line.trim().is_empty();
        if line.trim_start().starts_with("```") {
            fence = !fence;
        } else if !fence && !indented {
            out.push((at + 1, line));
        }
    }
    out
}

/// The line without its code spans; a span that does not end stays.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let closed = parts.len() % 2 == 1;
    let kept = parts
        .iter()
        .enumerate()
        .filter(|(at, _)| at.is_multiple_of(2) || (!closed && *at + 1 == parts.len()));
    kept.map(|(_, part)| *part).collect::<Vec<_>>().join("`code`")
}

/// Targets of links and images: `[text](target)`, `[name]: target`, and `src`, `srcset` and `href` of HTML.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let mut found = Vec::new();
    for rest in line.split("](").skip(1) {
        let target = rest.split(')').next().unwrap();
        found.push(target.split(" \"").next().unwrap().trim().to_owned());
    }
    if let Some((label, target)) = line.split_once("]: ")
        && label.starts_with('[')
        && !label.contains(']')
    {
        found.push(target.trim().to_owned());
    }
    for attribute in ["src=\"", "srcset=\"", "href=\""] {
        found.extend(
            line.split(attribute).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
        );
    }
    found
}

/// The anchor that GitHub gives to a heading.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    // Of a link only its text counts.
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        match link.split_once("](").and_then(|(name, rest)| Some((name, rest.split_once(')')?.1))) {
            Some((name, after)) => {
                text.push_str(name);
                rest = after;
            }
            None => {
                text.push('[');
                rest = link;
            }
        }
    }
    text.push_str(rest);
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Anchors of a page; the second of two equal headings ends in `-1`.
fn anchors(page: &str) -> BTreeSet<String> {
    let (mut count, mut found) = (BTreeMap::new(), BTreeSet::new());
    for (_, line) in prose(page) {
        let level = line.chars().take_while(|c| *c == '#').count();
        if !(1..=6).contains(&level) || !line[level..].starts_with(' ') {
            continue;
        }
        let name = slug(&line[level..]);
        let earlier = count.entry(name.clone()).or_insert(0);
        found.insert(if *earlier == 0 { name } else { format!("{name}-{earlier}") });
        *earlier += 1;
    }
    found
}

/// The path that a target of a page means, without `.` and `..`; `None` above the root.
fn resolve(page: &str, target: &str) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in Path::new(page).parent().unwrap().join(target).components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir => out.pop().then_some(())?,
            _ => return None,
        }
    }
    Some(out)
}

/// Reason why an external address is malformed.
fn malformed(url: &str) -> Option<&'static str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else {
        return (!url.starts_with("mailto:") || !url.contains('@'))
            .then_some("no https:, http: or mailto: address");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap().split(':').next().unwrap();
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    if host.is_empty() || !host.contains('.') || !host.chars().all(fine) || host.starts_with('.') {
        return Some("no host name");
    }
    url.contains(char::is_whitespace).then_some("a space")
}

/// Faults of the links of one page, and the pages that it links to.
fn check(page: &str, text: &str) -> (Vec<String>, Vec<String>) {
    let (mut faults, mut linked) = (Vec::new(), Vec::new());
    for (line, target) in prose(text)
        .into_iter()
        .flat_map(|(at, line)| targets(line).into_iter().map(move |target| (at, target)))
    {
        let mut fault = |text: &str| faults.push(format!("{page}:{line}: {target}: {text}"));
        if target.split('/').next().unwrap().contains(':') {
            if let Some(text) = malformed(&target) {
                fault(text);
            }
            continue;
        }
        let (path, anchor) = target.split_once('#').map_or((target.as_str(), None), |(p, a)| (p, Some(a)));
        let file = if path.is_empty() { Some(PathBuf::from(page)) } else { resolve(page, path) };
        let Some(file) = file.filter(|file| path.is_empty() || root().join(file).exists()) else {
            fault("no such file or folder");
            continue;
        };
        let name = file.to_string_lossy().into_owned();
        if let Some(anchor) = anchor {
            let there = if name == page {
                text.to_owned()
            } else {
                fs::read_to_string(root().join(&file)).unwrap_or_default()
            };
            if !anchors(&there).contains(anchor) {
                fault("no such heading");
            }
        }
        linked.push(name);
    }
    (faults, linked)
}

#[test]
fn every_link_resolves_and_every_page_is_reachable() {
    let mut all = Vec::new();
    pages(root(), &mut all);
    assert!(all.len() > 30, "{all:?}");
    let (mut faults, mut links) = (Vec::new(), BTreeMap::new());
    for page in &all {
        let (found, linked) = check(page, &fs::read_to_string(root().join(page)).unwrap());
        faults.extend(found);
        links.insert(page.clone(), linked);
    }
    let (mut reached, mut open) = (BTreeSet::new(), vec![INDEX.to_owned()]);
    while let Some(page) = open.pop() {
        if page.starts_with("docs/") && reached.insert(page.clone()) {
            open.extend(links.get(&page).into_iter().flatten().cloned());
        }
    }
    let lost = all.iter().filter(|page| page.starts_with("docs/") && !reached.contains(*page));
    faults.extend(lost.map(|page| format!("{page}: not reachable from {INDEX}")));
    if !links["README.md"].iter().any(|target| target == INDEX) {
        faults.push(format!("README.md: no link to {INDEX}"));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn wrong_links_are_found() {
    let text = "# One `two`: [three](https://a.example/)\n## Again\n## Again\n[a](#again-1) [b](#one-two-three) `[c](gone.md)`\n\
                ```text\n[d](gone.md)\n```\n\n    [e](gone.md)\n![f](gone.png) [g](../../up.md) [h](#again-2)\n[i](https://nowhere/x)\n\
                [j]: gone.md\n<img src=\"gone.svg\"> [k](README.md#no-such-heading)\n";
    let (faults, linked) = check("docs/sample.md", text);
    let places: Vec<&str> = faults.iter().map(|fault| fault.split(": ").nth(1).unwrap()).collect();
    let wrong = [
        "gone.png",
        "../../up.md",
        "#again-2",
        "https://nowhere/x",
        "gone.md",
        "README.md#no-such-heading",
        "gone.svg",
    ];
    assert_eq!(places, wrong, "{faults:#?}");
    assert_eq!(linked.iter().filter(|page| *page == "docs/sample.md").count(), 3);
}
