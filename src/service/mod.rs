//! What runs on a connection. Floor 5.

pub mod ajp;
pub mod http1;
mod pace;
pub mod tcp;
