//! What the sources and the documents promise of each other: who may use whom, which words they use, and which test proves which
//! sentence. It links nothing of the product.

#![allow(clippy::unwrap_used, reason = "a test says with a panic what is wrong")]

mod arrows;
mod ignored;
mod lexer;
mod links;
mod reads;
mod sentences;
mod walks;
mod words;
mod workspace;
