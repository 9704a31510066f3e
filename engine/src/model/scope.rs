//! What an agent lists and watches.
//!
//! 5,000 agents must not multiply each other's writes, so an agent watches its own affinities and its own blocks,
//! never others'. Blocks lie under their prefix, not under their host, so the own ones are single keys that the own
//! affinities name, and the set of them changes. Two feeds keep that simple:
//!
//! - the **main** feed has the fixed prefixes of [`watch_scope`]; it starts once;
//! - the **block** feed has the keys of [`Model::block_scope`], a handful. When a [`ModelChanges`](super::ModelChanges) has
//!   `affinities` set and the scope differs from the one that the feed was opened with, it is opened anew with the new
//!   one: it lists these few keys, gives them to [`Model::replace`] with [`WatchPart::Blocks`] (which forgets the others),
//!   and watches on from there.
//!
//! A block counts as own only when its affinity is confirmed *and* its value names this host, so neither order of the
//! two feeds can announce a block that is not ours: until both are seen, nothing is announced. Whoever has all keys in
//! one snapshot (a cache, an offline command) uses [`WatchPart::All`].

use tortie_config::key::{Key, prefix};
use tortie_net::Cidr;

use super::state::Model;

/// Which keys a snapshot is complete for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchPart {
    /// Every key.
    All,
    /// Every key but blocks.
    Main,
    /// Blocks only.
    Blocks,
}

impl WatchPart {
    /// Whether a key belongs to it.
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

/// The prefixes of the main feed of an agent.
#[must_use]
pub fn watch_scope(node: &str) -> Vec<String> {
    prefix::watched_by(node)
}

impl Model {
    /// The keys of the block feed: the blocks that this host has an affinity to, in any state; sorted.
    #[must_use]
    pub fn block_scope(&self) -> Vec<String> {
        let blocks = self.affinities(&self.node).map(|stored| *stored.key);
        blocks.map(|block: Cidr| Key::Block(block).to_string()).collect()
    }
}
