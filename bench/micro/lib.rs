//! Holds the benchmarks in `benches/`; `cargo bench` runs them.
