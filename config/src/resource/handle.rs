//! Allocation handles: in which blocks a holder has addresses.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use tortie_net::Cidr;

/// The value of a handle key. Counts are hints: Calico's writers over-count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The handle, as in the key.
    pub id: String,
    /// Addresses per block.
    pub blocks: BTreeMap<Cidr, u32>,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl Handle {
    /// A handle without addresses.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), blocks: BTreeMap::new(), extra: Extra::default() }
    }

    /// Reads the value of the key of `id`.
    ///
    /// # Errors
    /// When a field is malformed or `id` differs from the key.
    pub fn parse(id: &str, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        // The Go writer leaves it out.
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

    /// The newest form.
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
