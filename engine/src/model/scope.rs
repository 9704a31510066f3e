//! Keys that an agent lists and watches.
//!
//! 5,000 agents must not receive each other's writes, so an agent watches its own affinities and blocks, and
//! not those of other hosts (if the routes of a pool come from the store it must: they need the blocks of all
//! hosts). The key of a block contains its prefix, not its host, so the own blocks are single keys that the own
//! affinities name, and their set changes. Two feeds handle this:
//!
//! - the **main** feed watches the fixed prefixes of [`watch_scope`]; it starts once;
//! - the **block** feed watches the keys of [`Model::block_scope`], a handful. When a
//!   [`ModelChanges`](super::ModelChanges) has `affinities` set and the scope differs from the one that the
//!   feed was opened with, it is reopened: it lists these few keys, passes them to [`Model::replace`] with
//!   [`WatchPart::Blocks`] (which forgets all other blocks), and watches from that revision.
//!
//! A block counts as own only if its affinity is confirmed *and* its value names this host. Neither order of
//! the two feeds can therefore announce a block of another host: nothing is announced until both were
//! received. A reader that has all keys in one snapshot (a cache, an offline command) uses
//! [`WatchPart::All`].

use tortie_config::key::{Key, prefix};
use tortie_net::Cidr;
use tortie_store::DataModel;

use super::state::Model;

/// Part of the keys that a snapshot contains completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchPart {
    /// All keys.
    All,
    /// All keys except blocks.
    Main,
    /// Blocks only.
    Blocks,
}

impl WatchPart {
    /// Returns true if a key belongs to this part.
    #[must_use]
    pub fn covers(self, text: &str) -> bool {
        match self {
            Self::All => true,
            Self::Main => !is_block(text),
            Self::Blocks => is_block(text),
        }
    }

    pub(super) fn covers_unknown(self) -> bool {
        self != Self::Blocks
    }
}

fn is_block(text: &str) -> bool {
    text.strip_prefix(prefix::BLOCKS)
        .is_some_and(|rest| rest.starts_with("ipv4/") || rest.starts_with("ipv6/"))
}

/// Returns the prefixes of an agent's main feed. Keys of both data models are watched, so that a store that
/// changes from one to the other, or has both, is noticed; objects only if the operator did not exclude them.
#[must_use]
pub fn watch_scope(node: &str, choice: DataModel) -> Vec<String> {
    let mut prefixes = prefix::watched_by(node);
    prefixes.retain(|prefix| choice != DataModel::V1 || prefix != prefix::CALICO_3);
    prefixes
}

impl Model {
    /// Returns the keys of the block feed: the blocks for which this host has an affinity in any state,
    /// sorted; the prefixes of all blocks if the routes of a pool come from the store.
    #[must_use]
    pub fn block_scope(&self) -> Vec<String> {
        if self.follows_all_blocks() {
            return ["ipv4/", "ipv6/"].map(|family| format!("{}{family}", prefix::BLOCKS)).into();
        }
        let blocks = self.affinities(&self.node).map(|stored| *stored.key);
        blocks.map(|block: Cidr| Key::Block(block).to_string()).collect()
    }
}
