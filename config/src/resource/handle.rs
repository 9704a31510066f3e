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
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Handle {
    /// Creates a handle without addresses.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), blocks: BTreeMap::new(), extra: Extra::default() }
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
        Ok(Self { id: id.to_owned(), blocks, extra: fields.rest() })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("id", self.id.clone());
        let blocks: Map<String, Value> =
            self.blocks.iter().map(|(cidr, count)| (cidr.to_string(), (*count).into())).collect();
        writer.put("block", Value::Object(blocks));
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
