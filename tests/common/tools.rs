//! Programs that `make peers` unpacks.

use std::path::PathBuf;

/// Returns the path of a program unpacked by tests/tools/peers.sh.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin");
    let dir = std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    let path = dir.join(name);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "{name} is missing in CI; tests/tools/peers.sh brings it");
    eprintln!("skipped: {name} is missing; tests/tools/peers.sh brings it");
    None
}

/// Returns a folder in memory, if there is one: for tests of many writers, which wait for a busy disk longer
/// than for each other.
pub(crate) fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}
