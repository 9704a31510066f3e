//! Host checks: the one list of tests of a host that `tortie doctor`, `tortie migrate check` and the health probe behind
//! `tortie status` run.
//!
//! What it does: reads the host into a [`HostSnapshot`], and runs over it the checks of [`CHECKS`] that a command has, each a
//! pure function. What it does not: change anything, ask the store or the agent (the commands do, and put the answers into the
//! snapshot), or print. A [`CheckResult`] is made here alone, so that no command has a check outside of the list.
//!
//! ```text
//!   proc.rs: /proc ----------------------------------------+
//!   reader.rs, owners.rs: /sys, /etc, iptables-save -------+--> HostSnapshot --table.rs, checks/--> CheckResult
//!   kernel::probe_kernel, speaker::try_sockets ------------+     (pure)                             ok, a Problem, not tried
//!   cli: store, agent, Calico's daemons and BIRD ----------+
//! ```

mod checks;
mod fix;
mod host;
mod owners;
mod proc;
mod reader;
mod result;
mod snapshot;
mod table;

pub use checks::store::pool_overlap_text;
pub use host::{Command, Host};
pub use owners::Owner;
pub use proc::TcpDropped;
pub use reader::{read, role};
pub use result::{CheckResult, Verdict};
pub use snapshot::{
    CalicoDaemon, CalicoKernel, Clock, Conntrack, Disk, FELIX_FILE, HostSnapshot, Link, Migration,
    MigrationPhase, PORTS, Restarts, Role, SocketFile, StoreContent, StoreState, Unreadable,
};
pub use table::{CHECKS, Check, Place, problems, run};
