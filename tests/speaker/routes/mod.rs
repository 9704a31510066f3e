//! Announcement, selection and propagation of routes by this speaker and by other daemons.

mod add_path;
mod bird_tests;
mod communities;
mod dry_run;
mod exchange;
mod features;
mod filters;
mod multipath;
mod others;
