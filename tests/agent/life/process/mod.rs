//! The agent as a process: dropped privileges, a pause of the process, and its end.

mod host_shutdown;
mod paused;
mod protections;
mod stop_and_purge;
