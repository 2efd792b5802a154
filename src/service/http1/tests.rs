//! The service over memory: exact bytes.
