//! Calico 3's objects, and their projection to entries of the v1 data model.
//!
//! Calico 3 stores objects below `/calico/resources/v3/`, and every consumer turns them back into entries of
//! the v1 model before anything is decided. This module does the same: it parses keys and objects, and
//! [`Projection`] computes the v1 entries, each with the objects that it came from. It does no I/O, and
//! writes no objects.
//!
//! ```text
//!  (raw key, value) --ObjectKey, Object--> objects --one file per kind--> v1 entries, problems
//! ```

mod bgp;
pub mod convert;
mod kind;
mod object;
mod objects;
mod output;
mod policy;
mod projection;
mod settings;
mod staged;
mod value;
pub mod write;

pub use crate::dialect::Dialect;
pub use kind::{Kind, ObjectKey};
pub use object::{Metadata, Object, ObjectError};
pub use output::Problem;
pub use policy::{WorkloadEndpointName, policy_name};
pub use projection::{Entry, EntryChange, Projection, RawChange, RawEntry, is_v1};
pub(crate) use settings::is_felix_setting;
pub use staged::{StagedEffect, staged_effect};
pub use value::EntryValue;
