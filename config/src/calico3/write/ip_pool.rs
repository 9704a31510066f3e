//! The IPPool of an operator, with the members that Calico's own client writes.

use serde_json::{Value, json};

use super::super::convert::pool_name;
use super::super::{Kind, ObjectError, ObjectKey};
use super::draft::{Birth, Draft};
use crate::resource::{IpipMode, Pool};
use tortie_net::Cidr;

/// Returns the key of a new pool: its name is the prefix with dashes, such as `10-65-0-0-16`.
#[must_use]
pub fn ip_pool_key(cidr: &Cidr) -> ObjectKey {
    ObjectKey::global(Kind::IPPool, &pool_name(cidr))
}

/// Returns the value of a new pool for workloads and tunnels on all hosts. A pool that IPAM shall not use is
/// disabled, because Calico 3 has no other word for it.
///
/// # Errors
/// Never; the same signature as of the other values.
pub fn ip_pool(pool: &Pool, birth: &Birth) -> Result<Vec<u8>, ObjectError> {
    let mut draft = Draft::open(&ip_pool_key(&pool.cidr), None, birth)?;
    let mode = |mode: Option<IpipMode>| match mode {
        None => "Never",
        Some(IpipMode::Always) => "Always",
        Some(IpipMode::CrossSubnet) => "CrossSubnet",
    };
    let members: [(&str, Value); 7] = [
        ("cidr", json!(pool.cidr.to_string())),
        ("ipipMode", json!(mode(pool.ipip.as_ref().map(|ipip| ipip.mode)))),
        ("vxlanMode", json!(mode(pool.vxlan))),
        ("natOutgoing", json!(pool.masquerade)),
        ("blockSize", json!(pool.block_len())),
        ("nodeSelector", json!("all()")),
        ("allowedUses", json!(["Workload", "Tunnel"])),
    ];
    for (name, value) in members {
        draft.spec.set(name, &value);
    }
    if pool.disabled || !pool.ipam {
        draft.spec.set("disabled", &json!(true));
    }
    // A new object differs from none.
    Ok(draft.close().unwrap_or_default())
}

/// Returns the value of a stored pool that is enabled or disabled, or `None` if it does not change. Calico
/// omits the member of an enabled pool.
///
/// # Errors
/// If the stored value is no object.
pub fn switch_ip_pool(
    key: &ObjectKey,
    stored: &[u8],
    disabled: bool,
    birth: &Birth,
) -> Result<Option<Vec<u8>>, ObjectError> {
    let mut draft = Draft::open(key, Some(stored), birth)?;
    if disabled {
        draft.spec.set("disabled", &json!(true));
    } else if draft.spec.get("disabled").is_some_and(|value| value != json!(false)) {
        draft.spec.remove("disabled");
    }
    Ok(draft.close())
}
