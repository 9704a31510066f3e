//! Host checks: the common list of tests of a host that `tortie doctor`, `tortie migrate check` and the
//! health probe of `tortie status` run.
//!
//! Reads the host into a [`HostSnapshot`] and runs those checks of [`CHECKS`] that apply to a command, each a
//! pure function. It changes nothing and prints nothing. The commands query the store and the agent and add
//! the answers to the snapshot. Only this module can create a [`CheckResult`], so that no command has a check
//! outside of the list.
//!
//! ```text
//!   proc.rs: /proc ---------------------------------+
//!   reader.rs, owners.rs: /sys, /etc, iptables-save +--> HostSnapshot --table.rs, checks/--> CheckResult
//!   kernel::probe_kernel, speaker::try_sockets -----+     (pure)             ok, a Problem, or not tried
//!   cli: store, agent, Calico's daemons and BIRD ---+
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
    MigrationPhase, ObjectProblem, PORTS, Restarts, Role, SocketFile, StoreContent, StoreState, Unreadable,
};
pub use table::{CHECKS, Check, Place, problems, run};
