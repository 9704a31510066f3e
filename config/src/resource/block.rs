//! Allocation blocks: the owner of a block and the holders of its addresses.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::ValueError;
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

/// An allocation block. Always consistent: an address is either allocated (its entry refers to an attribute)
/// or exactly once in the free list, and every attribute is referenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    cidr: Cidr,
    affinity: BlockAffinity,
    strict: bool,
    allocations: Vec<Option<usize>>,
    unallocated: Vec<u32>,
    attributes: Vec<Attribute>,
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

/// Attributes of an allocation. Equal attributes are stored once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attribute {
    /// Handle under which the address can be released.
    pub handle: Option<String>,
    /// Free-form attributes: `node`, `timestamp`, `pod`, `namespace` and others.
    pub secondary: Option<Map<String, Value>>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Attribute {
    /// Returns a free-form attribute, if it is a string.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.secondary.as_ref()?.get(name)?.as_str()
    }
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
            strict,
            allocations: vec![None; size as usize],
            unallocated: (0..size).collect(),
            attributes: Vec::new(),
            extra: Extra::default(),
        })
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
        self.affinity = affinity;
    }

    /// Returns true if only the owner may allocate from the block.
    #[must_use]
    pub fn strict(&self) -> bool {
        self.strict
    }

    /// Returns the free ordinals, in the order of future allocations.
    #[must_use]
    pub fn free(&self) -> &[u32] {
        &self.unallocated
    }

    /// Returns true if no address is allocated.
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

    /// Returns the attributes of an allocated ordinal; `None` if it is free or outside of the block.
    #[must_use]
    pub fn allocation(&self, ordinal: u32) -> Option<&Attribute> {
        let index = (*self.allocations.get(ordinal as usize)?)?;
        self.attributes.get(index)
    }

    /// Returns the allocated ordinals in order, with their attributes.
    pub fn allocated(&self) -> impl Iterator<Item = (u32, &Attribute)> {
        (0u32..)
            .zip(&self.allocations)
            .filter_map(|(ordinal, index)| Some((ordinal, self.attributes.get((*index)?)?)))
    }

    /// Allocates a free ordinal. Returns false if it is allocated or outside of the block.
    pub fn allocate(&mut self, ordinal: u32, attribute: &Attribute) -> bool {
        let Some(position) = self.unallocated.iter().position(|free| *free == ordinal) else { return false };
        let Some(entry) = self.allocations.get_mut(ordinal as usize) else { return false };
        self.unallocated.remove(position);
        let index =
            self.attributes.iter().position(|known| known == attribute).unwrap_or(self.attributes.len());
        if index == self.attributes.len() {
            self.attributes.push(attribute.clone());
        }
        *entry = Some(index);
        self.count_up(ordinal, true);
        true
    }

    /// Increments the sequence number of a block that has one. Calico 3 records it with each allocation, so
    /// that its garbage collector distinguishes a new allocation of an address from an old one.
    fn count_up(&mut self, ordinal: u32, allocated: bool) {
        let Some(number) = self.extra.get("sequenceNumber").and_then(Value::as_u64) else { return };
        let Some(next) = number.checked_add(1) else { return };
        self.extra.0.insert("sequenceNumber".to_owned(), next.into());
        let of_allocations =
            self.extra.0.entry("sequenceNumberForAllocation").or_insert_with(|| Map::new().into());
        if let Value::Object(of_allocations) = of_allocations {
            if allocated {
                of_allocations.insert(ordinal.to_string(), number.into());
            } else {
                of_allocations.shift_remove(&ordinal.to_string());
            }
        }
    }

    /// Releases an ordinal. It goes to the end of the free list, so that the address is reused as late as
    /// possible. Returns `None` if it was free or is outside of the block.
    pub fn release(&mut self, ordinal: u32) -> Option<Attribute> {
        let index = self.allocations.get_mut(ordinal as usize)?.take()?;
        self.unallocated.push(ordinal);
        self.count_up(ordinal, false);
        if self.allocations.contains(&Some(index)) {
            return self.attributes.get(index).cloned();
        }
        let attribute = self.attributes.remove(index);
        for other in self.allocations.iter_mut().flatten().filter(|other| **other > index) {
            *other -= 1;
        }
        Some(attribute)
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
        let attributes = fields.list("attributes", attribute)?;
        let allocations = allocations(&mut fields, size, attributes.len())?;
        let unallocated = unallocated(&mut fields, &allocations)?;
        let mut block = Self {
            cidr,
            affinity,
            strict: camel.or(snake).unwrap_or(false),
            allocations,
            unallocated,
            attributes,
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

    /// Formats the value in its newest form.
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
        writer.put("strictAffinity", self.strict);
        writer.put("allocations", self.allocations.clone());
        writer.put("unallocated", self.unallocated.clone());
        let attributes: Vec<Value> = self.attributes.iter().map(attribute_json).collect();
        writer.put("attributes", attributes);
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

fn attribute(value: Value) -> Result<Attribute, ValueError> {
    let mut fields = Fields::of(value)?;
    let older = fields.text("primary")?;
    let handle = fields.text("handle_id")?.or(older);
    let secondary = match fields.take("secondary") {
        None => None,
        Some(Value::Object(map)) => Some(map),
        Some(other) => return Err(ValueError::json("secondary", &other, "write an object or null")),
    };
    Ok(Attribute { handle, secondary, extra: fields.rest() })
}

fn attribute_json(attribute: &Attribute) -> Value {
    let mut writer = Writer::default();
    writer.put("handle_id", attribute.handle.clone());
    writer.put("secondary", attribute.secondary.clone().map_or(Value::Null, Value::Object));
    writer.object(&attribute.extra)
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
