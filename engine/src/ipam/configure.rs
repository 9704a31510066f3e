//! The one value that configures IPAM, and when it may change.

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::IpamConfig;

use super::IpamError;
use crate::ipam::draft;
use crate::ipam::keyspace::Space;
use crate::ipam::reads::{Next, State};

pub(super) fn ready(space: &Space, state: &State) -> Next<()> {
    draft::run(space, state, |desk| {
        desk.state.want([Key::Ready.to_string()], [])?;
        desk.ready()
    })
}

pub(super) fn read(space: &Space, state: &State) -> Next<IpamConfig> {
    draft::run(space, state, |desk| desk.config())
}

/// Blocks carry the strict flag of their time: with blocks around, a change would make two kinds of them.
pub(super) fn write(space: &Space, state: &State, config: &IpamConfig) -> Next<()> {
    draft::run(space, state, |desk| {
        if !config.strict_affinity && !config.auto_allocate_blocks {
            let text = "with strict_affinity and auto_allocate_blocks both off no address could ever be given; turn one on";
            return Err(IpamError::Refused(text.to_owned()).into());
        }
        let now = desk.config()?;
        let same = |a: &IpamConfig, b: &IpamConfig| {
            (a.strict_affinity, a.auto_allocate_blocks) == (b.strict_affinity, b.auto_allocate_blocks)
        };
        if !same(&now, config) {
            let families = [IpFamily::V4, IpFamily::V6];
            desk.state.want([], families.map(|family| space.blocks(family)))?;
            for family in families {
                if let Some(block) = desk.all_blocks(family)?.first() {
                    let text = format!(
                        "strict_affinity and auto_allocate_blocks cannot change while there are blocks, such as {block}; \
                         release their addresses and affinities first"
                    );
                    return Err(IpamError::Refused(text).into());
                }
            }
        }
        desk.put_config(config.clone());
        Ok(())
    })
}
