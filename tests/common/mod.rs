//! Helpers of several tests: programs under test, hosts and namespaces, other daemons and the data that they
//! write.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "each test binary compiles all of it and uses a part; a test ends where something is not as it must be"
)]

pub(crate) mod calico3;
pub(crate) mod command;
pub(crate) mod concurrency;
pub(crate) mod containers;
pub(crate) mod etcd;
pub(crate) mod fake_agent;
pub(crate) mod felix_rules;
pub(crate) mod hosts;
pub(crate) mod kernel_thread;
pub(crate) mod netns;
pub(crate) mod neutron;
pub(crate) mod policy_store;
pub(crate) mod route_churn;
pub(crate) mod schema;
pub(crate) mod tools;
