//! `tortie-ipam`: allocates addresses for other main plugins.
//!
//! A plugin such as bridge creates a network on the host: it needs the prefix length of the network and a
//! gateway in it. A /32 does not work with it, because its container could not reach the gateway. By default,
//! the result has the network of the *block* that contains the address, with the block's first address as
//! gateway. The block is what this host announces to all others, and the bridge's route to it is as specific
//! as the block's blackhole and precedes it. With the pool's prefix length, the blackhole would win, and
//! addresses of other hosts would be resolved on the bridge. `prefix_length`, `prefix_length6`, `subnet`,
//! `ranges`, `gateway` and `routes` override this. Called as `calico-ipam`, it returns /32 and /128 without
//! gateway, as Calico's plugin does.

use std::net::IpAddr;

use serde_json::Value;

use crate::plugins::attach::{self, Absent};
use crate::plugins::cni::addresses::AddressAllocator;
use crate::plugins::cni::call::{Call, NO_RESULT, collect};
use crate::plugins::cni::protocol::env::Command;
use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::cni::protocol::result::CniResult;
use tortie_engine::ipam::Ipam;

/// Executes a call and returns its result.
pub(super) async fn answer(call: &Call, calico: bool) -> Result<Option<Value>, CniError> {
    if let Some(other) = &call.config.ipam.foreign
        && call.env.command != Command::Del
    {
        let expected = "this is tortie-ipam: set that name there, or call the other plugin";
        return Err(CniError::value("ipam.type", &other.as_str().into(), expected));
    }
    let command = call.env.command;
    if command == Command::Status {
        return super::status::answer(call, false).await;
    }
    if matches!(command, Command::Del | Command::Gc) && call.no_store() {
        return Ok(NO_RESULT);
    }
    let store = call.store().await?;
    let ipam = Ipam::new(store);
    if command == Command::Gc {
        let Some(valid) = &call.config.valid_attachments else {
            let msg = "`cni.dev/valid-attachments` is missing: without it everything would be released";
            return Err(CniError::new(code::CONFIG, msg));
        };
        let addrs = collect(&ipam, &call.config.name, &call.node, valid).await?;
        tracing::info!(target: "tortie", ?addrs, "released what no listed container has");
        return Ok(NO_RESULT);
    }
    let identity = call.identity()?;
    let holder =
        AddressAllocator { ipam: &ipam, config: &call.config, node: &call.node, identity: &identity };
    match command {
        Command::Add => {
            let store = ipam.store();
            let excluded = attach::preflight(&**store, &call.agent(), &call.node, Absent::Passes).await?;
            let ipam = ipam.clone().excluding(excluded);
            let holder = AddressAllocator { ipam: &ipam, ..holder };
            let ips = holder.assign_framed(&call.args, calico).await?;
            let dns = call.config.wanted_dns().cloned().unwrap_or_default();
            let routes = call.config.ipam.frame.routes.clone();
            let result = CniResult { ips, routes, dns, ..CniResult::default() };
            Ok(Some(result.to_json(call.config.version)))
        }
        Command::Del => holder.release(&[]).await.map(|()| NO_RESULT),
        Command::Check => {
            let given: Vec<IpAddr> = call
                .config
                .prev_result
                .iter()
                .flat_map(|result| &result.ips)
                .map(|ip| ip.address.ip)
                .collect();
            if given.is_empty() {
                let msg = "CHECK needs `prevResult`, the result of the ADD, with its addresses";
                return Err(CniError::new(code::CONFIG, msg));
            }
            match holder.missing_families(&given).await?.as_slice() {
                [] => Ok(NO_RESULT),
                lacking => {
                    let list: Vec<String> = lacking.iter().map(ToString::to_string).collect();
                    let msg = format!("not held by `{}` in IPAM: {}", identity.handle, list.join(", "));
                    Err(CniError::new(code::CHECK, msg))
                }
            }
        }
        Command::Gc | Command::Status | Command::Version => Ok(NO_RESULT),
    }
}
