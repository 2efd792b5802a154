//! Helpers of the behaviour tests: start the built binary, talk raw TCP to it, read answers strictly.
//!
//! Not a client library: nothing here is lenient, and nothing is reused from the code under test, so that a
//! mistake in our own parser cannot hide itself.

// Every test program compiles its own copy and uses a part of it.
#![allow(dead_code)]

pub(crate) mod case;
pub(crate) mod judge;
pub(crate) mod live;
pub(crate) mod raw;
pub(crate) mod response;
pub(crate) mod server;
pub(crate) mod talk;
pub(crate) mod tree;
