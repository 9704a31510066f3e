mod fake_kernel;
mod plan;
