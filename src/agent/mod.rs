//! The threads and channels that join the rooms; the flight recorder.
//!
//! What it does: starts the threads in the order that keeps forwarding (store snapshot or cache, kernel dump, listen and
//! dial, own blocks, End-of-RIB, sweep), carries facts between them, and answers the API. What it does not: routing
//! decisions, netlink, BGP.
//!
//! ```text
//!   io (2 workers)          main thread                          plain threads
//!  feeds main, blocks --> core.rs: Model -> routing -> intents --> kernel (only writer) <-- watch
//!  API <--- Ask --------->   |  ^                                    | facts
//!  cache, status key         |  +------------------------------------+--- speaker (all BGP sockets)
//!                            +--> effects: intents, next hops, sweep      | learned, two batches at a time
//!                                                                         +----------> kernel
//! ```
//!
//! Facts come over unbounded channels on purpose: their number is bounded at the source (two batches of routes under way,
//! one state a peer, one entry a tracked next hop), and a thread that waits for the core could wait for itself.
//!
//! A panic in any thread ends the process: kernel state stays, graceful restart covers it, the supervisor restarts.

mod addresses;
mod answers;
mod applied;
mod asked;
mod backend;
mod beside;
mod books;
mod caps;
mod census;
mod collector;
mod core;
mod dry_run;
mod enforce;
mod events;
mod evidence;
mod facts;
mod heap;
mod heard;
mod host;
mod keeper;
mod leave;
mod live;
mod locrib;
mod log_levels;
mod log_lines;
mod log_repeats;
mod logging;
mod lookout;
mod measures;
mod metrics;
mod mrt;
mod notify;
mod options;
mod packet;
mod picture;
mod presence;
mod problems;
mod recorder;
mod register;
mod remarks;
mod reports;
mod run;
mod start;
mod station;
mod status;
mod story;
mod surroundings;
mod teller;
mod trace;
mod tunnel_addr;
mod turn;
mod why;

pub use evidence::evidence;
pub use heap::Heap;
pub use log_lines::LogForm;
pub use options::{AddressChoice, Extent, HttpChoice, Settings};
pub use picture::{Offline, Picture, endpoint_name};
pub use problems::is_skewed;
pub use run::{AgentError, AgentOptions, run};
pub use surroundings::{Clock, Conntrack, Link, Role, Surroundings, judge, mend};
