//! What is announced, chosen and passed on: by our speaker and by the daemons of others.

mod add_path;
mod bird_tests;
mod communities;
mod dry_run;
mod exchange;
mod features;
mod filters;
mod multipath;
mod others;
