//! Where the keys of an address space lie.

use tortie_config::key::{IpFamily, Key, escape, prefix, unescape};
use tortie_config::resource::Block;
use tortie_net::Cidr;

/// An address space: pools, blocks, handles and affinities of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Keyspace {
    /// The pools of the data model: the same on all hosts, announced.
    Global,
    /// Pools of one host alone, below `/calico/tortie/v1/host/<host>/docker/<name>/`; never announced, and nothing outside of
    /// the space keeps its addresses from being given out in it.
    Local {
        /// The host.
        host: String,
        /// The name of the space.
        name: String,
    },
}

/// What a key of a space is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Pool(Cidr),
    Config,
    Block(Cidr),
    Handle(String),
    /// Where the specification's text puts a handle; no one wrote there for long.
    LegacyHandle(String),
    Affinity {
        host: String,
        block: Cidr,
    },
}

fn digit(cidr: &Cidr) -> char {
    if cidr.is_v4() { '4' } else { '6' }
}

impl Keyspace {
    /// The part of the key space that a local space has for itself; `None` for the global one.
    #[must_use]
    pub fn root(&self) -> Option<String> {
        match self {
            Self::Global => None,
            Self::Local { host, name } => {
                Some(format!("/calico/tortie/v1/host/{}/docker/{}/", escape(host), escape(name)))
            }
        }
    }

    /// The key of a pool. Its value is a pool of the data model in both kinds of space.
    #[must_use]
    pub fn pool(&self, cidr: &Cidr) -> String {
        format!("{}{}", self.pools_of(IpFamily::of_cidr(cidr)), cidr.to_key_text())
    }

    /// The prefix of the pools of both families.
    #[must_use]
    pub fn pools(&self) -> String {
        self.root().map_or_else(|| prefix::POOLS.to_owned(), |root| format!("{root}pool/"))
    }

    fn pools_of(&self, family: IpFamily) -> String {
        match self {
            Self::Global => format!("{}{}/pool/", prefix::POOLS, family.as_str()),
            Self::Local { .. } => format!("{}{}/", self.pools(), family.as_str()),
        }
    }

    /// The key of IPAM's configuration.
    #[must_use]
    pub fn config(&self) -> String {
        self.root().map_or_else(|| Key::IpamConfig.to_string(), |root| format!("{root}config"))
    }

    /// The prefix of the blocks of a family.
    #[must_use]
    pub fn blocks(&self, family: IpFamily) -> String {
        let digit = if family == IpFamily::V4 { '4' } else { '6' };
        match self.root() {
            None => format!("{}ipv{digit}/block/", prefix::BLOCKS),
            Some(root) => format!("{root}block/v{digit}/"),
        }
    }

    /// The key of a block.
    #[must_use]
    pub fn block(&self, cidr: &Cidr) -> String {
        format!("{}{}", self.blocks(IpFamily::of_cidr(cidr)), cidr.to_key_text())
    }

    /// The key of a handle.
    #[must_use]
    pub fn handle(&self, id: &str) -> String {
        match self.root() {
            None => Key::Handle(id.to_owned()).to_string(),
            Some(root) => format!("{root}handle/{}", escape(id)),
        }
    }

    /// Where the older writers had a handle.
    pub(super) fn legacy_handle(&self, id: &str) -> Option<String> {
        matches!(self, Self::Global).then(|| format!("{}handle/{}", prefix::BLOCKS, escape(id)))
    }

    /// The prefix of the affinities of a host.
    #[must_use]
    pub fn affinities(&self, host: &str) -> String {
        match self.root() {
            None => prefix::affinities_of(host),
            Some(root) => format!("{root}affinity/{}/", escape(host)),
        }
    }

    /// The key of a block's affinity to a host.
    #[must_use]
    pub fn affinity(&self, host: &str, block: &Cidr) -> String {
        format!("{}ipv{}/block/{}", self.affinities(host), digit(block), block.to_key_text())
    }

    /// The prefixes that hold all of the space.
    pub(super) fn root_prefixes(&self) -> Vec<String> {
        self.root().map_or_else(|| vec![prefix::POOLS.to_owned(), prefix::IPAM.to_owned()], |root| vec![root])
    }

    /// What a key of the space is about; `None` for other keys and for spellings that are not canonical.
    pub(super) fn place(&self, key: &str) -> Option<Place> {
        let place = match self.root() {
            None => match Key::parse(key).ok()? {
                Key::Pool(cidr) => return Some(Place::Pool(cidr)),
                Key::IpamConfig => Place::Config,
                Key::Block(cidr) => Place::Block(cidr),
                Key::Affinity { host, block } => Place::Affinity { host, block },
                Key::Handle(id) => Place::Handle(id),
                old @ Key::Legacy(_) => match old.canonical() {
                    Key::Handle(id) => return Some(Place::LegacyHandle(id.clone())),
                    _ => return None,
                },
                _ => return None,
            },
            Some(root) => {
                let parts: Vec<&str> = key.strip_prefix(&root)?.split('/').collect();
                match parts.as_slice() {
                    ["config"] => Place::Config,
                    ["pool", _, cidr] => Place::Pool(Cidr::from_key_text(cidr).ok()?),
                    ["block", _, cidr] => Place::Block(Cidr::from_key_text(cidr).ok()?),
                    ["handle", id] => Place::Handle(unescape(id).into_owned()),
                    ["affinity", host, _, "block", cidr] => Place::Affinity {
                        host: unescape(host).into_owned(),
                        block: Cidr::from_key_text(cidr).ok()?,
                    },
                    _ => return None,
                }
            }
        };
        (self.text(&place) == key).then_some(place)
    }

    /// The key of a place.
    pub(super) fn text(&self, place: &Place) -> String {
        match place {
            Place::Pool(cidr) => self.pool(cidr),
            Place::Config => self.config(),
            Place::Block(cidr) => self.block(cidr),
            Place::Handle(id) => self.handle(id),
            Place::LegacyHandle(id) => self.legacy_handle(id).unwrap_or_default(),
            Place::Affinity { host, block } => self.affinity(host, block),
        }
    }

    /// The blocks that an address or prefix may lie in, of the usual size first.
    pub(super) fn blocks_overlapping(cidr: &Cidr) -> Vec<Cidr> {
        Block::lengths(cidr.is_v4())
            .filter(|len| *len <= cidr.len())
            .filter_map(|len| Cidr::new(cidr.addr(), len).ok())
            .collect()
    }
}
