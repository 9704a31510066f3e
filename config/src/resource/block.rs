//! Allocation blocks: the owner of a block and the holders of its addresses.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::ValueError;
use super::attribute::Attribute;
use super::json::{Extra, Fields, Writer, elements};
use super::pool::same_cidr;
use tortie_net::Cidr;

/// Prefix length of new IPv4 blocks.
pub const BLOCK_LEN_V4: u8 = 26;
/// Prefix length of new IPv6 blocks.
pub const BLOCK_LEN_V6: u8 = 122;
/// Shortest prefix length of an IPv4 block.
pub const BLOCK_SHORTEST_V4: u8 = 20;
/// Shortest prefix length of an IPv6 block.
pub const BLOCK_SHORTEST_V6: u8 = 116;
/// Maximum number of addresses in a block: /20 and /116 are the shortest prefixes that Calico creates.
const MAX_ADDRESSES: u64 = 4096;

/// An allocation block. Always consistent: an address is allocated or cooling down (its entry refers to an
/// attribute), or exactly once in the free list, and every attribute is referenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    cidr: Cidr,
    affinity: BlockAffinity,
    /// Time at which the owner claimed the block, RFC 3339 (Calico 3.32).
    claim_time: Option<String>,
    strict: Option<bool>,
    allocations: Vec<Option<usize>>,
    unallocated: Vec<u32>,
    attributes: Vec<Attribute>,
    /// Number of the next write, in blocks of Calico 3.
    sequence: Option<u64>,
    /// Sequence number at the time of each allocation, by ordinal, in blocks of Calico 3.
    allocation_sequences: Option<BTreeMap<u32, u64>>,
    deleted: Option<bool>,
    extra: Extra,
}

/// The fields that show if a block is full.
#[derive(serde::Deserialize)]
struct BlockSummary<'a> {
    #[serde(borrow)]
    affinity: Option<Cow<'a, str>>,
    allocations: Vec<Option<u32>>,
    unallocated: Vec<u32>,
}

/// Owner of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BlockAffinity {
    /// The block has no owner.
    None,
    /// The named host owns the block.
    Host(String),
    /// Another owner known to Calico, such as `virtual:load-balancer`; the text as stored.
    Other(String),
}

impl Block {
    /// Returns the allowed prefix lengths of blocks, the default first.
    pub fn lengths(v4: bool) -> impl Iterator<Item = u8> {
        let (usual, shortest, longest) =
            if v4 { (BLOCK_LEN_V4, BLOCK_SHORTEST_V4, 32) } else { (BLOCK_LEN_V6, BLOCK_SHORTEST_V6, 128) };
        std::iter::once(usual).chain((shortest..=longest).filter(move |len| *len != usual))
    }

    /// Creates an empty block.
    ///
    /// # Errors
    /// If the prefix contains more than 4,096 addresses.
    pub fn new(cidr: Cidr, affinity: BlockAffinity, strict: bool) -> Result<Self, ValueError> {
        let size = size(cidr)?;
        Ok(Self {
            cidr,
            affinity,
            claim_time: None,
            strict: Some(strict),
            allocations: vec![None; size as usize],
            unallocated: (0..size).collect(),
            attributes: Vec::new(),
            sequence: None,
            allocation_sequences: None,
            deleted: None,
            extra: Extra::default(),
        })
    }

    /// Creates an empty block of Calico 3. `sequence` is the number of its first write: the nanoseconds since
    /// 1970, so that the numbers of a block that is deleted and created again never repeat.
    ///
    /// # Errors
    /// If the prefix contains more than 4,096 addresses.
    pub fn numbered(cidr: Cidr, affinity: BlockAffinity, sequence: u64) -> Result<Self, ValueError> {
        let mut block = Self::new(cidr, affinity, false)?;
        block.strict = None;
        block.sequence = Some(sequence);
        block.allocation_sequences = Some(BTreeMap::new());
        block.deleted = Some(false);
        Ok(block)
    }

    /// Returns the prefix of the block.
    #[must_use]
    pub fn cidr(&self) -> Cidr {
        self.cidr
    }

    /// Returns the owner.
    #[must_use]
    pub fn affinity(&self) -> &BlockAffinity {
        &self.affinity
    }

    /// Returns the owner if it is a host.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match &self.affinity {
            BlockAffinity::Host(host) => Some(host),
            _ => None,
        }
    }

    /// Changes or removes the owner.
    pub fn set_affinity(&mut self, affinity: BlockAffinity) {
        if self.affinity != affinity {
            self.claim_time = None;
        }
        self.affinity = affinity;
    }

    /// Returns the time at which the owner claimed the block, RFC 3339, if it is recorded.
    #[must_use]
    pub fn claim_time(&self) -> Option<&str> {
        self.claim_time.as_deref()
    }

    /// Records the time at which the owner claimed the block, RFC 3339.
    pub fn set_claim_time(&mut self, time: String) {
        self.claim_time = Some(time);
    }

    /// Returns true if only the owner may allocate from the block.
    #[must_use]
    pub fn strict(&self) -> bool {
        self.strict.unwrap_or(false)
    }

    /// Returns true if a writer marked the block as gone.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted == Some(true)
    }

    /// Returns the number of the next write of a block of Calico 3.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Returns the sequence number of an allocation. Calico reads an absent one as 0.
    #[must_use]
    pub fn allocation_sequence(&self, ordinal: u32) -> u64 {
        self.allocation_sequences.as_ref().and_then(|all| all.get(&ordinal)).copied().unwrap_or(0)
    }

    /// Gives sequence numbers to a block that has none. Calico reads an absent one as 0.
    pub fn start_sequence(&mut self) {
        self.sequence.get_or_insert(0);
    }

    /// Increments the sequence number for a write. A block without one stays without.
    pub fn count_write(&mut self) {
        self.sequence = self.sequence.map(|number| number.saturating_add(1));
    }

    /// Returns the free ordinals, in the order of future allocations.
    #[must_use]
    pub fn free(&self) -> &[u32] {
        &self.unallocated
    }

    /// Returns true if no address is allocated or cooling down.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn size(&self) -> usize {
        self.allocations.len()
    }

    /// Returns the unknown fields, which are kept when the value is written.
    #[must_use]
    pub fn extra(&self) -> &Extra {
        &self.extra
    }

    /// Returns the attributes of an allocated ordinal; `None` if it is free, cooling down or outside of the
    /// block.
    #[must_use]
    pub fn allocation(&self, ordinal: u32) -> Option<&Attribute> {
        self.entry(ordinal).filter(|attribute| attribute.released_at.is_none())
    }

    fn entry(&self, ordinal: u32) -> Option<&Attribute> {
        let index = (*self.allocations.get(ordinal as usize)?)?;
        self.attributes.get(index)
    }

    fn entries(&self) -> impl Iterator<Item = (u32, &Attribute)> {
        (0u32..)
            .zip(&self.allocations)
            .filter_map(|(ordinal, index)| Some((ordinal, self.attributes.get((*index)?)?)))
    }

    /// Returns the allocated ordinals in order, with their attributes.
    pub fn allocated(&self) -> impl Iterator<Item = (u32, &Attribute)> {
        self.entries().filter(|(_, attribute)| attribute.released_at.is_none())
    }

    /// Returns the ordinals that are cooling down, with the time of their release, RFC 3339. They are neither
    /// allocated nor free.
    pub fn cooling(&self) -> impl Iterator<Item = (u32, &str)> {
        self.entries().filter_map(|(ordinal, attribute)| Some((ordinal, attribute.released_at.as_deref()?)))
    }

    /// Returns the allocated ordinals whose attribute `node` names a host other than the owner, with that
    /// host.
    pub fn borrowed(&self) -> impl Iterator<Item = (u32, &str)> {
        let owner = self.host();
        self.allocated().filter_map(move |(ordinal, attribute)| {
            let node = attribute.get("node")?;
            (owner != Some(node)).then_some((ordinal, node))
        })
    }

    /// Allocates a free ordinal. Returns false if it is allocated or outside of the block.
    pub fn allocate(&mut self, ordinal: u32, attribute: &Attribute) -> bool {
        let Some(position) = self.unallocated.iter().position(|free| *free == ordinal) else { return false };
        if self.allocations.get(ordinal as usize).is_none() || attribute.released_at.is_some() {
            return false;
        }
        self.unallocated.remove(position);
        self.refer(ordinal, attribute);
        if let Some(number) = self.sequence {
            self.allocation_sequences.get_or_insert_default().insert(ordinal, number);
        }
        true
    }

    /// Makes the entry of an ordinal refer to an attribute.
    fn refer(&mut self, ordinal: u32, attribute: &Attribute) {
        let Some(entry) = self.allocations.get_mut(ordinal as usize) else { return };
        let index =
            self.attributes.iter().position(|known| known == attribute).unwrap_or(self.attributes.len());
        if index == self.attributes.len() {
            self.attributes.push(attribute.clone());
        }
        *entry = Some(index);
    }

    /// Releases an ordinal. It goes to the end of the free list, so that the address is reused as late as
    /// possible. Returns `None` if it was free, was cooling down, or is outside of the block.
    pub fn release(&mut self, ordinal: u32) -> Option<Attribute> {
        let attribute = self.take(ordinal)?;
        self.unallocated.push(ordinal);
        Some(attribute)
    }

    /// Releases an ordinal that stays unusable until [`Block::sweep`] frees it. `time` is the time of the
    /// release, RFC 3339. Returns `None` as [`Block::release`] does.
    pub fn cool_down(&mut self, ordinal: u32, time: &str) -> Option<Attribute> {
        let attribute = self.take(ordinal)?;
        let released = Attribute { released_at: Some(time.to_owned()), ..Attribute::default() };
        self.refer(ordinal, &released);
        Some(attribute)
    }

    /// Removes an allocation, and its attribute if nothing else refers to it.
    fn take(&mut self, ordinal: u32) -> Option<Attribute> {
        let attribute = self.allocation(ordinal)?.clone();
        *self.allocations.get_mut(ordinal as usize)? = None;
        if let Some(numbers) = &mut self.allocation_sequences {
            numbers.remove(&ordinal);
        }
        self.drop_unused_attributes();
        Some(attribute)
    }

    /// Frees the ordinals whose cooling down is over, as `over` decides from the time of their release.
    pub fn sweep(&mut self, over: impl Fn(&str) -> bool) {
        let done: Vec<u32> =
            self.cooling().filter(|(_, time)| over(time)).map(|(ordinal, _)| ordinal).collect();
        for ordinal in &done {
            if let Some(entry) = self.allocations.get_mut(*ordinal as usize) {
                *entry = None;
            }
        }
        self.unallocated.extend(done);
        self.drop_unused_attributes();
    }

    /// Parses the value of the key of `cidr`, in the format of any Calico version.
    ///
    /// # Errors
    /// If a field is malformed, or if fields contradict each other.
    pub fn parse(cidr: Cidr, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        same_cidr(&mut fields, cidr)?;
        let size = size(cidr)?;
        let affinity = affinity(&mut fields)?;
        let camel = fields.bool("strictAffinity")?;
        let snake = fields.bool("strict_affinity")?;
        let attributes = fields.list("attributes", Attribute::parse)?;
        let allocations = allocations(&mut fields, size, attributes.len())?;
        let unallocated = unallocated(&mut fields, &allocations)?;
        let mut block = Self {
            cidr,
            affinity,
            claim_time: fields.text("affinity_claim_time")?,
            strict: camel.or(snake),
            allocations,
            unallocated,
            attributes,
            sequence: fields.number("sequenceNumber", 0, u64::MAX)?,
            allocation_sequences: allocation_sequences(&mut fields)?,
            deleted: fields.bool("deleted")?,
            extra: fields.rest(),
        };
        block.drop_unused_attributes();
        Ok(block)
    }

    /// Returns true if a value is a block of this host without free addresses. It costs a tenth of parsing;
    /// `false` is inconclusive.
    #[must_use]
    pub fn is_full_of(host: &str, cidr: Cidr, bytes: &[u8]) -> bool {
        let Ok(brief) = serde_json::from_slice::<BlockSummary<'_>>(bytes) else { return false };
        let own = brief.affinity.as_deref().and_then(|text| text.strip_prefix("host:")) == Some(host);
        own && brief.unallocated.is_empty()
            && brief.allocations.iter().all(Option::is_some)
            && size(cidr).is_ok_and(|size| brief.allocations.len() == size as usize)
    }

    fn drop_unused_attributes(&mut self) {
        let mut used = vec![false; self.attributes.len()];
        for index in self.allocations.iter().flatten() {
            if let Some(used) = used.get_mut(*index) {
                *used = true;
            }
        }
        if used.iter().all(|used| *used) {
            return;
        }
        let new_index: Vec<usize> = used
            .iter()
            .scan(0, |next, used| {
                let index = *next;
                *next += usize::from(*used);
                Some(index)
            })
            .collect();
        let mut keep = used.iter().copied();
        self.attributes.retain(|_| keep.next().unwrap_or(true));
        for index in self.allocations.iter_mut().flatten() {
            *index = new_index.get(*index).copied().unwrap_or(*index);
        }
    }

    /// Formats the value in its newest form. A block of Calico 3 has no `strictAffinity`, unless its value had
    /// it.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("cidr", self.cidr.to_string());
        writer.put(
            "affinity",
            match &self.affinity {
                BlockAffinity::None => Value::Null,
                BlockAffinity::Host(host) => format!("host:{host}").into(),
                BlockAffinity::Other(text) => text.clone().into(),
            },
        );
        writer.put_some("affinity_claim_time", self.claim_time.clone());
        if self.strict.is_some() || self.sequence.is_none() {
            writer.put("strictAffinity", self.strict());
        }
        writer.put("allocations", self.allocations.clone());
        writer.put("unallocated", self.unallocated.clone());
        let attributes: Vec<Value> = self.attributes.iter().map(Attribute::to_json).collect();
        writer.put("attributes", attributes);
        writer.put_some("deleted", self.deleted);
        writer.put_some("sequenceNumber", self.sequence);
        let numbers = |all: &BTreeMap<u32, u64>| {
            let members = all.iter().map(|(ordinal, number)| (ordinal.to_string(), (*number).into()));
            Value::Object(members.collect())
        };
        writer.put_some("sequenceNumberForAllocation", self.allocation_sequences.as_ref().map(numbers));
        writer.bytes(&self.extra)
    }
}

fn size(cidr: Cidr) -> Result<u32, ValueError> {
    let bits = u32::from(cidr.max_len() - cidr.len());
    let addresses = 1u64.checked_shl(bits).filter(|count| *count <= MAX_ADDRESSES);
    addresses.and_then(|count| u32::try_from(count).ok()).ok_or_else(|| {
        ValueError::new(
            "cidr",
            format_args!("`{cidr}`"),
            format!("a block has at most {MAX_ADDRESSES} addresses"),
        )
    })
}

fn affinity(fields: &mut Fields) -> Result<BlockAffinity, ValueError> {
    // Very old Go writers stored the bare host name in `hostAffinity`.
    let bare = fields.text("hostAffinity")?.filter(|host| !host.is_empty());
    let Some(text) = fields.text("affinity")?.filter(|text| !text.is_empty()) else {
        return Ok(bare.map_or(BlockAffinity::None, BlockAffinity::Host));
    };
    match text.split_once(':') {
        Some(("host", host)) if !host.is_empty() => Ok(BlockAffinity::Host(host.to_owned())),
        Some((kind, _)) if kind != "host" => Ok(BlockAffinity::Other(text)),
        _ => Err(ValueError::new("affinity", format_args!("`{text}`"), "write \"host:NAME\" or null")),
    }
}

/// Reads the sequence numbers of allocations, an object with ordinals as member names.
fn allocation_sequences(fields: &mut Fields) -> Result<Option<BTreeMap<u32, u64>>, ValueError> {
    const NAME: &str = "sequenceNumberForAllocation";
    let map = match fields.take(NAME) {
        None => return Ok(None),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(ValueError::json(NAME, &other, "write an object: {\"0\": 7}")),
    };
    let entry = |(ordinal, value): (String, Value)| match (ordinal.parse(), value.as_u64()) {
        (Ok(ordinal), Some(number)) => Ok((ordinal, number)),
        _ => Err(ValueError::json(ordinal, &value, "write a whole number for each ordinal").within(NAME)),
    };
    map.into_iter().map(entry).collect::<Result<_, _>>().map(Some)
}

fn allocations(fields: &mut Fields, size: u32, attributes: usize) -> Result<Vec<Option<usize>>, ValueError> {
    let Some(list) = fields.take("allocations") else {
        return Err(ValueError::missing("allocations", format!("write a list of {size} entries")));
    };
    let entry = |value: Value| match &value {
        Value::Null => Ok(None),
        other => other
            .as_u64()
            .and_then(|index| usize::try_from(index).ok())
            .filter(|index| *index < attributes)
            .map(Some)
            .ok_or_else(|| {
                let expected = format!("write null or the index of one of the {attributes} attributes");
                ValueError::json("", other, expected)
            }),
    };
    let list = elements(list, entry).map_err(|error| error.within("allocations"))?;
    if list.len() == size as usize {
        Ok(list)
    } else {
        let found = format!("{} entries", list.len());
        Err(ValueError::new("allocations", found, format!("write one entry per address: {size}")))
    }
}

/// Parses the free list. A free address that is missing is appended. An address that is allocated or listed
/// twice is an error, because it could be allocated twice.
fn unallocated(fields: &mut Fields, allocations: &[Option<usize>]) -> Result<Vec<u32>, ValueError> {
    let mut free: Vec<bool> = allocations.iter().map(Option::is_none).collect();
    let mut list = fields.list("unallocated", |value| {
        let ordinal = value.as_u64().and_then(|ordinal| u32::try_from(ordinal).ok());
        let entry = ordinal.and_then(|ordinal| Some((ordinal, free.get_mut(ordinal as usize)?)));
        match entry {
            Some((ordinal, free)) if *free => {
                *free = false;
                Ok(ordinal)
            }
            _ => Err(ValueError::json("", &value, "list every free ordinal once, and no allocated one")),
        }
    })?;
    list.extend((0u32..).zip(&free).filter_map(|(ordinal, missing)| missing.then_some(ordinal)));
    Ok(list)
}
