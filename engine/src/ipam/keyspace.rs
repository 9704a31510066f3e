//! Store keys of an IPAM address space.

use tortie_config::Dialect;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::{IpFamily, Key, escape, prefix, unescape};
use tortie_config::resource::Block;
use tortie_net::Cidr;

use crate::ipam::cluster;

/// An address space with its own pools, blocks, handles and affinities.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Keyspace {
    /// Pools of Calico's v1 data model, shared by all hosts and announced by BGP.
    Global,
    /// Pools of a Calico 3 store, which other hosts may use by Calico's own IPAM at the same time. Blocks,
    /// handles and affinities have the same keys as in [`Keyspace::Global`]; pools, reservations, readiness and
    /// hosts are objects.
    Calico3,
    /// Pools of a single host, below `/calico/tortie/v1/host/<host>/docker/<name>/`. They are never
    /// announced, and nothing outside of the space excludes its addresses from allocation.
    Local {
        /// Host that owns the space.
        host: String,
        /// Name of the space.
        name: String,
    },
}

/// Type and parameters of an IPAM key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Pool(Cidr),
    Config,
    Block(Cidr),
    Handle(String),
    /// Handle at the key given in the text of the specification, which writers used for a short time only.
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
    /// Returns the shared address space of a store.
    #[must_use]
    pub fn of(dialect: Dialect) -> Self {
        match dialect {
            Dialect::V1 => Self::Global,
            Dialect::V3 => Self::Calico3,
        }
    }

    /// Returns true if all hosts share the space, and its blocks are announced.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !matches!(self, Self::Local { .. })
    }

    /// Returns true if the space follows Calico 3's rules.
    pub(super) fn is_calico_3(&self) -> bool {
        matches!(self, Self::Calico3)
    }

    /// Returns the keys and prefixes that a request of a host depends on besides blocks, handles and affinities:
    /// readiness, configuration and pools, and the object of the host.
    pub(super) fn basis(&self, host: Option<&str>) -> (Vec<String>, Vec<String>) {
        match self {
            Self::Global | Self::Local { .. } => {
                (vec![Key::Ready.to_string(), self.config()], vec![self.pools()])
            }
            Self::Calico3 => {
                let host = host.map(cluster::host);
                (host.into_iter().chain([self.config()]).collect(), cluster::prefixes())
            }
        }
    }

    /// Returns the key prefix of a local space; `None` for a shared space.
    #[must_use]
    pub fn root(&self) -> Option<String> {
        match self {
            Self::Global | Self::Calico3 => None,
            Self::Local { host, name } => {
                Some(format!("/calico/tortie/v1/host/{}/docker/{}/", escape(host), escape(name)))
            }
        }
    }

    /// Returns the key of a pool. Its value is a pool of the data model in every kind of space. In a Calico 3
    /// store it exists in the projection only.
    #[must_use]
    pub fn pool(&self, cidr: &Cidr) -> String {
        format!("{}{}", self.pools_of(IpFamily::of_cidr(cidr)), cidr.to_key_text())
    }

    /// Returns the prefix of the pools of both families.
    #[must_use]
    pub fn pools(&self) -> String {
        self.root().map_or_else(|| prefix::POOLS.to_owned(), |root| format!("{root}pool/"))
    }

    fn pools_of(&self, family: IpFamily) -> String {
        match self {
            Self::Global | Self::Calico3 => format!("{}{}/pool/", prefix::POOLS, family.as_str()),
            Self::Local { .. } => format!("{}{}/", self.pools(), family.as_str()),
        }
    }

    /// Returns the prefix that lists the pools as the store has them.
    #[must_use]
    pub fn stored_pools(&self) -> String {
        if self.is_calico_3() { ObjectKey::prefix_of(Kind::IPPool) } else { self.pools() }
    }

    /// Returns the key of the IPAM configuration.
    #[must_use]
    pub fn config(&self) -> String {
        self.root().map_or_else(|| Key::IpamConfig.to_string(), |root| format!("{root}config"))
    }

    /// Returns the prefix of the blocks of a family.
    #[must_use]
    pub fn blocks(&self, family: IpFamily) -> String {
        let digit = if family == IpFamily::V4 { '4' } else { '6' };
        match self.root() {
            None => format!("{}ipv{digit}/block/", prefix::BLOCKS),
            Some(root) => format!("{root}block/v{digit}/"),
        }
    }

    /// Returns the key of a block.
    #[must_use]
    pub fn block(&self, cidr: &Cidr) -> String {
        format!("{}{}", self.blocks(IpFamily::of_cidr(cidr)), cidr.to_key_text())
    }

    /// Returns the key of a handle.
    #[must_use]
    pub fn handle(&self, id: &str) -> String {
        match self.root() {
            None => Key::Handle(id.to_owned()).to_string(),
            Some(root) => format!("{root}handle/{}", escape(id)),
        }
    }

    /// Returns the key under which older writers stored a handle.
    pub(super) fn legacy_handle(&self, id: &str) -> Option<String> {
        matches!(self, Self::Global).then(|| format!("{}handle/{}", prefix::BLOCKS, escape(id)))
    }

    /// Returns the prefix of a host's affinities.
    #[must_use]
    pub fn affinities(&self, host: &str) -> String {
        match self.root() {
            None => prefix::affinities_of(host),
            Some(root) => format!("{root}affinity/{}/", escape(host)),
        }
    }

    /// Returns the key of a host's affinity for a block.
    #[must_use]
    pub fn affinity(&self, host: &str, block: &Cidr) -> String {
        format!("{}ipv{}/block/{}", self.affinities(host), digit(block), block.to_key_text())
    }

    /// Returns the prefixes that cover all IPAM keys of the space.
    pub(super) fn root_prefixes(&self) -> Vec<String> {
        match self.root() {
            Some(root) => vec![root],
            None if self.is_calico_3() => {
                let mut prefixes = cluster::prefixes_of_holders();
                prefixes.push(prefix::IPAM.to_owned());
                prefixes
            }
            None => vec![prefix::POOLS.to_owned(), prefix::IPAM.to_owned()],
        }
    }

    /// Parses a key of the space. Returns `None` for other keys and for non-canonical spellings.
    pub(super) fn place(&self, key: &str) -> Option<Place> {
        let place = match self.root() {
            None => match Key::parse(key).ok()? {
                Key::Pool(cidr) => return Some(Place::Pool(cidr)),
                Key::IpamConfig => Place::Config,
                Key::Block(cidr) => Place::Block(cidr),
                Key::Affinity { host, block } => Place::Affinity { host, block },
                Key::Handle(id) => Place::Handle(id),
                old @ Key::Legacy(_) => match old.canonical() {
                    Key::Handle(id) if !self.is_calico_3() => {
                        return Some(Place::LegacyHandle(id.clone()));
                    }
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

    /// Returns the key of a place.
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

    /// Returns the blocks that may contain an address or prefix, the default size first.
    pub(super) fn blocks_overlapping(cidr: &Cidr) -> Vec<Cidr> {
        Block::lengths(cidr.is_v4())
            .filter(|len| *len <= cidr.len())
            .filter_map(|len| Cidr::new(cidr.addr(), len).ok())
            .collect()
    }
}
