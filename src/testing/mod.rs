//! Tests without sockets: a connection in memory. Floor 6: above the services, below the workers, which it does without.

pub mod memory;
