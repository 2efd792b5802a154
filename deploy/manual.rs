//! Man pages and shell completions, for packages: `cargo run --example manual -- FOLDER`.
//!
//! Writes `everycore.1`, a page for each subcommand, and completions for bash, zsh and fish.

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};
use everycore::cli::args::Cli;
use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("usage: manual FOLDER"))?;
    fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(Cli::command(), &folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Cli::command(), "everycore", &folder)?;
    }
    Ok(())
}
