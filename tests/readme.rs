//! README.md's tables of flags against what the program itself says. Its Rust is a doc test, its commands run in CI.

use std::{collections::HashMap, process::Command};

/// The flags of `serve`, each with its default: `None` if it has none.
fn flags() -> HashMap<String, Option<String>> {
    let mut help = Command::new(env!("CARGO_BIN_EXE_everycore"));
    let help = help.args(["serve", "--help"]).env_clear().output().expect("the built program runs");
    let help = String::from_utf8(help.stdout).expect("help is UTF-8");
    let mut flags = HashMap::new();
    let mut flag = String::new();
    for line in help.lines().map(str::trim_start) {
        if let Some(at) = line.find("--").filter(|at| line.starts_with('-') && *at <= "-l, ".len()) {
            flag = line[at..].split([' ', ',']).next().unwrap_or_default().to_owned();
            flags.insert(flag.clone(), None);
        } else if let Some(default) = line.strip_prefix("[default: ") {
            flags.insert(flag.clone(), Some(default.trim_end_matches(']').to_owned()));
        }
    }
    flags
}

#[test]
fn tables_of_flags_agree_with_the_help() {
    let flags = flags();
    let mut rows = 0;
    for row in include_str!("../README.md").lines().filter(|line| line.starts_with("| `--")) {
        let mut cells = row.split('|').skip(1).map(|cell| cell.trim().trim_matches('`'));
        let (flag, default) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        let expected = flags.get(flag).unwrap_or_else(|| panic!("serve has no {flag}"));
        assert_eq!(default, expected.as_deref().unwrap_or_default(), "{flag}");
        rows += 1;
    }
    assert!(rows > 0, "README.md has its tables of flags");
}
