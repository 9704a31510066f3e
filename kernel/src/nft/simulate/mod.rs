//! What the rules do with packets, worked out without a kernel: for tests of this crate and of the whole program.
//!
//! Builds for release have none of it.

#[cfg(feature = "test-hooks")]
mod flows;
pub(in crate::nft) mod interpret;

#[cfg(feature = "test-hooks")]
pub use self::flows::Simulated;
#[cfg(feature = "test-hooks")]
pub(crate) use self::flows::simulate;
