//! The `everycore` command.
fn main() {}
