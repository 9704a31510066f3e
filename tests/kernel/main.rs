//! Tests of the kernel thread and of container set-up with the real kernel, each test in its own network
//! namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says with a panic what is wrong")]

mod churn;
#[path = "../common/mod.rs"]
mod common;
mod containers;
mod endpoints;
mod links;
mod packet_rules;
mod routes;
mod three_ways;
mod vxlan;
