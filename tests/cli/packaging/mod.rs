//! The package and its units: their content, and their behaviour under systemd in a machine made of
//! namespaces.

mod calico_unit;
mod machine;
mod package;
mod readme;
mod release;
mod service;
mod systemd;
