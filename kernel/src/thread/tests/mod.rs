//! Tests of the kernel thread's planning and next hop resolution with an in-memory kernel.

mod fake_kernel;
mod plan;
mod recursion;
mod store_routes;
