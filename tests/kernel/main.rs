//! The kernel thread and the set-up of containers against the real kernel, each test in network namespaces of its own.

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
