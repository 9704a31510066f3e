//! Reads and writes the IPAM configuration, and restricts when it may change.

use tortie_config::key::IpFamily;
use tortie_config::resource::IpamConfig;

use super::IpamError;
use crate::ipam::draft;
use crate::ipam::keyspace::Keyspace;
use crate::ipam::reads::{PlanStep, ReadState};

pub(super) fn ready(keyspace: &Keyspace, state: &ReadState) -> PlanStep<()> {
    draft::run(keyspace, state, |draft| {
        let (keys, prefixes) = keyspace.basis(None);
        draft.state.request_key(keys, prefixes)?;
        draft.ready()
    })
}

pub(super) fn read(keyspace: &Keyspace, state: &ReadState) -> PlanStep<IpamConfig> {
    draft::run(keyspace, state, |draft| draft.config())
}

/// Plans a write of the configuration. Each block records the strict flag of its creation, so strict and
/// automatic allocation cannot change while blocks exist.
pub(super) fn write(keyspace: &Keyspace, state: &ReadState, config: &IpamConfig) -> PlanStep<()> {
    draft::run(keyspace, state, |draft| {
        if !config.strict_affinity && !config.auto_allocate_blocks {
            let text = "with strict_affinity and auto_allocate_blocks both off no address could be \
                        allocated; turn one on";
            return Err(IpamError::Refused(text.to_owned()).into());
        }
        if keyspace.is_calico_3() && config.max_blocks_per_host.is_some() && !config.strict_affinity {
            let text = "Calico 3 accepts a limit of blocks only with strict_affinity; turn it on, or leave the \
                        limit out";
            return Err(IpamError::Refused(text.to_owned()).into());
        }
        let now = draft.config()?;
        let same = |a: &IpamConfig, b: &IpamConfig| {
            (a.strict_affinity, a.auto_allocate_blocks) == (b.strict_affinity, b.auto_allocate_blocks)
        };
        if !same(&now, config) {
            let families = [IpFamily::V4, IpFamily::V6];
            draft.state.request_key([], families.map(|family| keyspace.blocks(family)))?;
            for family in families {
                if let Some(block) = draft.all_blocks(family)?.first() {
                    let text = format!(
                        "strict_affinity and auto_allocate_blocks cannot change while there are blocks, such as {block}; \
                         release their addresses and affinities first"
                    );
                    return Err(IpamError::Refused(text).into());
                }
            }
        }
        draft.put_config(config.clone());
        Ok(())
    })
}
