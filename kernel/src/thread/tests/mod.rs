mod fake_kernel;
mod plan;
mod recursion;
