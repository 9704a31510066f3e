//! What the sources and the documents promise of each other: who may use whom, and which test proves which sentence.

#![allow(clippy::unwrap_used, reason = "a test says with a panic what is wrong")]

mod arrows;
mod ignored;
mod sentences;
