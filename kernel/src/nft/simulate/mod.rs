//! Interpreter of the rules without a kernel, for tests of this crate and of the whole program.
//!
//! Not part of release builds.

#[cfg(feature = "test-hooks")]
mod flows;
pub(in crate::nft) mod interpret;

#[cfg(feature = "test-hooks")]
pub use self::flows::Simulated;
#[cfg(feature = "test-hooks")]
pub(crate) use self::flows::simulate;
