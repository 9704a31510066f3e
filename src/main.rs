//! Arguments and wiring only.

fn main() {}
