//! The threads and channels that join the rooms; the flight recorder.
//!
//! What it does: starts the threads in the order that keeps forwarding (store snapshot or cache, kernel dump, listen and
//! dial, own blocks, End-of-RIB, sweep), carries facts between them, and answers the API. What it does not: routing
//! decisions, netlink, BGP.
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
//! Facts come over unbounded channels on purpose: their number is bounded at the source (two batches of routes under way,
//! one state a peer, one entry a tracked next hop), and a thread that waits for the core could wait for itself.
//!
//! A panic in any thread ends the process: kernel state stays, graceful restart covers it, the supervisor restarts.

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
pub use crate::agent::process::sandbox::{HELPER as NAMESPACE_HELPER, enter_namespaces};
pub use config::{AddressChoice, CACHE_PATH, HttpChoice, ModeChoice, Settings};
pub use event_loop::{AgentError, AgentOptions, run};
pub use policy_view::{OfflinePolicyView, PolicyView};
pub use replay::{FILE as JOURNAL_FILE, JournalError, Question, ReplayError, ReplayOptions, replay};
