//! Masks the parts of screens that differ between runs: times, durations, revisions, counters.

/// Columns with such values.
const MOVING: &[&str] = &[
    "REVISION",
    "MSGIN",
    "MSGOUT",
    "UP/DOWN",
    "SAID",
    "BOOT",
    "STATUS OF",
    "CHANGE",
    "FIRST",
    "LAST",
    "KEYS",
    "BYTES",
    "FLAPS",
];
/// Words before such a number.
const BEFORE: &[&str] = &["rev", "revision", "port", "pid", "revisions", "after"];

/// Words after such a number.
const AFTER: &[&str] = &["inputs"];

/// Section of `tortie replay` that depends on the last input.
const LAST_INPUT: &str = "  decisions on the last input:";

/// Replaces such parts by `#`, and reduces blanks to at most two in a row.
pub(crate) fn mask(text: &str) -> String {
    let mut out = String::new();
    let mut moving: Vec<usize> = Vec::new();
    let mut is_last_input = false;
    for line in text.lines() {
        // The last input of a journal, and its decisions, differ between runs.
        if line.trim_end() == LAST_INPUT {
            is_last_input = true;
        } else if !line.starts_with("    ") {
            is_last_input = false;
        }
        if is_last_input {
            continue;
        }
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let is_head = |cell: &&str| cell.chars().all(|c| c.is_ascii_uppercase() || "46/-*> ".contains(c));
        if cells.len() > 1 && cells.iter().all(is_head) {
            moving = (0..cells.len()).filter(|at| MOVING.contains(&cells[*at])).collect();
        } else if line.trim().is_empty() {
            moving.clear();
        }
        let is_table = !moving.is_empty() && !cells.iter().all(is_head);
        // The number of kinds in the schema grows.
        if let Some((what, _)) = line.split_once(": there are AddressView") {
            out.push_str(&format!("{what}: there are #\n"));
            continue;
        }
        // The number of messages varies, and a peer's report about itself may be older than the lab.
        if let Some(at) =
            ["  messages ", "peer's view "].iter().find_map(|word| Some(line.find(word)? + word.len()))
        {
            out.push_str(&format!("  {} #\n", line[..at].trim()));
            continue;
        }
        let indent = if line.starts_with("  ") { "  " } else { "" };
        let cells: Vec<String> = cells
            .iter()
            .enumerate()
            .map(|(at, cell)| if is_table && moving.contains(&at) { "#".to_owned() } else { words(cell) })
            .collect();
        out.push_str(&format!("{indent}{}\n", cells.join("  ")));
    }
    out
}

/// Version of this program, replaced by `VERSION` in the agreed screens, so that no release changes them.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn words(cell: &str) -> String {
    let mut before = "";
    let mut out = Vec::new();
    let mut rest = cell.split(' ').peekable();
    while let Some(word) = rest.next() {
        let after = rest.peek().map_or("", |word| word.trim_matches(','));
        let core = word.trim_matches(|c: char| "(),;:.[]".contains(c));
        let moves = !core.is_empty()
            && (is_time(core)
                || is_span(core)
                || is_change(core)
                || is_mac(core)
                || (is_mac(before) && word.chars().all(|c| c.is_ascii_lowercase()))
                || ((BEFORE.contains(&before) || AFTER.contains(&after))
                    && core.chars().all(|c| c.is_ascii_digit())));
        out.push(if core == VERSION {
            word.replacen(core, "VERSION", 1)
        } else if moves {
            word.replacen(core, "#", 1)
        } else {
            word.to_owned()
        });
        before = word;
    }
    out.join(" ")
}

/// Matches `2026-11-20T14:02:41.000Z`, `2026-11-20` and `14:02:41.114Z`.
fn is_time(word: &str) -> bool {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    ["0000-00-00", "00:00:00.000Z", "00:00:00Z"].contains(&shape.as_str()) || shape.starts_with("0000-00-00T")
}

/// Matches `3s`, `1m02s`, `12d04h`, `0.2s`, `1.5ms`.
fn is_span(word: &str) -> bool {
    let mut rest = word;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let unit = ["ms", "s", "m", "h", "d"].into_iter().find(|unit| rest[digits..].starts_with(unit));
        let (true, Some(unit)) = (digits > 0, unit) else { return false };
        rest = &rest[digits + unit.len()..];
        parts += 1;
    }
    parts > 0
}

fn is_change(word: &str) -> bool {
    word.strip_prefix("c-").is_some_and(|id| !id.is_empty() && id.chars().all(|c| c.is_ascii_hexdigit()))
}

fn is_mac(word: &str) -> bool {
    let parts: Vec<&str> = word.split(':').collect();
    parts.len() == 6 && parts.iter().all(|p| p.len() == 2 && p.chars().all(|c| c.is_ascii_hexdigit()))
}
