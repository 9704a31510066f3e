//! The package and its units: what they contain, and what systemd makes of them in a machine of namespaces.

mod calico_unit;
mod machine;
mod package;
mod service;
mod systemd;
