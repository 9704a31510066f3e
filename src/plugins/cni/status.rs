//! `STATUS`: tests if an `ADD` could succeed now. The writes of an `ADD` are planned, and the store checks
//! them without committing.

use serde_json::Value;
use tortie_config::key::IpFamily;
use tortie_engine::ipam::IpamError;

use crate::plugins::attach::{self, AgentAbsent};
use crate::plugins::cni::addresses::requests::address_requests;
use crate::plugins::cni::call::{Call, NO_RESULT};
use crate::plugins::cni::protocol::env::Command;
use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::pools::{PoolNames, pools};

/// Executes `STATUS` for the main plugin (`links`), or for the IPAM plugin.
pub(super) async fn answer(call: &Call, links: bool) -> Result<Option<Value>, CniError> {
    let not_available = |error: CniError| CniError { code: code::NOT_AVAILABLE, ..error };
    let store = call.store().await.map_err(not_available)?;
    attach::ready(&*store).await.map_err(|error| not_available(error.into()))?;
    if call.config.ipam.foreign.is_none() {
        // Addresses left in a disabled pool do not count, because no container should be sent here for them.
        let pools = pools(&*store).await.map_err(|error| not_available(error.into()))?;
        let enabled = |v4: bool| pools.iter().any(|pool| !pool.disabled && pool.cidr.is_v4() == v4);
        let ipam = &call.config.ipam;
        for (wanted, v4, name) in [(ipam.ipv4, true, "IPv4"), (ipam.ipv6, false, "IPv6")] {
            if wanted && !enabled(v4) {
                let error = IpamError::NoPools(if v4 { IpFamily::V4 } else { IpFamily::V6 });
                return Err(CniError::new(code::NOT_AVAILABLE, format!("no {name} addresses: {error}")));
            }
        }
        let names = PoolNames::read(&*store).await.map_err(|error| not_available(error.into()))?;
        let wanted = address_requests(&call.config, &call.args, &names)?;
        let wanted = wanted.into_iter().map(|request| request.want);
        let excluded = attach::exclusions(&call.agent(), &call.node).await;
        let planned = attach::rehearse_addresses(&store, &call.node, wanted.collect(), excluded).await;
        planned.map_err(|error| not_available(error.into()))?;
    }
    if links {
        let written = attach::rehearse_endpoint(&*store, &call.node).await;
        written.map_err(|error| not_available(error.into()))?;
    }
    if links && call.config.agent_absent != AgentAbsent::Continue {
        let agent = call.agent();
        if let Err(error) = tokio::net::UnixStream::connect(&agent.socket).await {
            let socket = agent.socket.display();
            let msg =
                format!("the agent does not answer at {socket} ({error}): start it (systemctl start tortie)");
            return Err(CniError::new(code::NOT_AVAILABLE, msg));
        }
    }
    call.forward(Command::Status).await.map(|()| NO_RESULT)
}
