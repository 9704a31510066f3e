//! The agent as a process: what it has given up, a pause of it, and how it ends.

mod host_shutdown;
mod paused;
mod protections;
mod stop_and_purge;
