//! What runs on a connection. Floor 5.

pub mod http1;
pub mod tcp;
