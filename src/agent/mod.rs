//! The agent: starts the threads of the daemon, passes messages between them and answers the API.
//!
//! Threads start in an order that keeps forwarding intact: store snapshot or cache, kernel dump, BGP
//! listeners and connections, own blocks, End-of-RIB, removal of stale routes. Routing decisions, netlink and
//! the BGP protocol are in other crates and folders.
//!
//! ```text
//!   io (2 workers)          main thread                          plain threads
//!  feeds main, blocks --> core/: Model -> routing -> intents --> kernel (only writer) <-- watch
//!  API <--- CoreRequest ->   |  ^                                    | facts
//!  cache, status key         |  +------------------------------------+--- speaker (all BGP sockets)
//!                            +--> effects: intents, next hops, sweep      | learned, two batches at a time
//!                                                                         +----------> kernel
//! ```
//!
//! Facts travel over unbounded channels on purpose: a thread that waited for the core could deadlock with it.
//! Each source bounds the number of its facts: two batches of routes in transit, one state per peer, one
//! entry per tracked next hop.
//!
//! A panic in any thread ends the process. Kernel state stays, graceful restart keeps forwarding, and the
//! supervisor restarts the agent.

mod api;
mod bmp;
mod config;
mod controllers;
mod core;
mod event_loop;
mod explain;
mod handle;
mod health;
mod http;
mod journal;
mod log;
mod logging;
mod metrics;
mod observe;
mod policy_view;
mod process;
mod replay;
mod time;

pub use crate::agent::controllers::evidence::evidence;
pub use crate::agent::health::problems::is_skewed;
pub use crate::agent::logging::format::LogForm;
pub use crate::agent::process::allocator::SystemAllocator;
pub use crate::agent::process::host::router_id;
pub use crate::agent::process::sandbox::{HELPER as NAMESPACE_HELPER, enter_namespaces};
pub use config::{AddressChoice, CACHE_PATH, HttpChoice, ModeChoice, Settings};
pub use event_loop::{AgentError, AgentOptions, run};
pub use policy_view::{OfflinePolicyView, PolicyView};
pub use replay::{FILE as JOURNAL_FILE, JournalError, Question, ReplayError, ReplayOptions, replay};
