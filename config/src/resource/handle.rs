//! Allocation handles: the blocks in which a holder has addresses.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use tortie_net::Cidr;

/// Value of a handle key. The counts are hints: Calico's writers may count too many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// Handle identifier, as in the key.
    pub id: String,
    /// Number of addresses by block.
    pub blocks: BTreeMap<Cidr, u32>,
    /// True if a writer marked the handle as gone (Calico 3); `None` if the value does not say.
    pub deleted: Option<bool>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Handle {
    /// Creates a handle without addresses.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), blocks: BTreeMap::new(), deleted: None, extra: Extra::default() }
    }

    /// Parses the value of the key of `id`.
    ///
    /// # Errors
    /// If a field is malformed, or `id` differs from the key.
    pub fn parse(id: &str, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        // Calico's Go writer omits the field.
        if let Some(found) = fields.text("id")?.filter(|found| found != id) {
            return Err(ValueError::new(
                "id",
                format_args!("`{found}`"),
                format!("the key says `{id}`: make them equal"),
            ));
        }
        let blocks = match fields.take("block") {
            None => BTreeMap::new(),
            Some(Value::Object(map)) => {
                map.into_iter().map(count).collect::<Result<_, _>>().map_err(|error| error.within("block"))?
            }
            Some(other) => {
                return Err(ValueError::json("block", &other, "write an object: {\"10.0.0.0/26\": 1}"));
            }
        };
        let deleted = fields.bool("deleted")?;
        Ok(Self { id: id.to_owned(), blocks, deleted, extra: fields.rest() })
    }

    /// Returns true if a writer marked the handle as gone.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted == Some(true)
    }

    /// Formats the value in its newest v1 form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        self.format(true)
    }

    /// Formats the value as Calico 3 writes it: without the member `id`, unless the value that it replaces
    /// has it.
    #[must_use]
    pub fn to_calico_3(&self, replaced: Option<&[u8]>) -> Vec<u8> {
        let members = replaced.and_then(|bytes| serde_json::from_slice::<Map<String, Value>>(bytes).ok());
        self.format(members.is_some_and(|members| members.contains_key("id")))
    }

    fn format(&self, with_id: bool) -> Vec<u8> {
        let mut writer = Writer::default();
        if with_id {
            writer.put("id", self.id.clone());
        }
        let blocks: Map<String, Value> =
            self.blocks.iter().map(|(cidr, count)| (cidr.to_string(), (*count).into())).collect();
        writer.put("block", Value::Object(blocks));
        writer.put_some("deleted", self.deleted);
        writer.bytes(&self.extra)
    }
}

fn count((cidr, value): (String, Value)) -> Result<(Cidr, u32), ValueError> {
    let count = value
        .as_u64()
        .and_then(|count| u32::try_from(count).ok())
        .ok_or_else(|| ValueError::json(cidr.clone(), &value, "write a count: a whole number"))?;
    match cidr.parse() {
        Ok(block) => Ok((block, count)),
        Err(_) => Err(ValueError::new("", format_args!("`{cidr}`"), "write the block as ADDRESS/LENGTH")),
    }
}
