//! Reservations: addresses that automatic assignment skips.

use serde_json::json;

use super::super::Object;
use super::super::output::Output;
use super::members::{Members, cidr};
use crate::key::Key;

/// Projects an IPReservation. Its prefixes that are not valid are left out.
pub(in crate::calico3) fn reservation(object: &Object) -> Output {
    let mut out = Output::default();
    let cidrs = Members::of(object, &mut out).parsed_list(
        "reservedCIDRs",
        "write ADDRESS/LENGTH; nothing is reserved by it",
        cidr,
    );
    let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    let key = Key::IpReservation(object.key.name.clone());
    out.put(key, json!({ "cidrs": cidrs }).to_string(), &object.key);
    out
}
