//! The rules of style that a machine can check. CONTRIBUTING.md says what they are for.

use std::{collections::HashMap, fs, path::Path};

/// Lines of a source file without its tests, at most.
const LINES_MAX: usize = 500;
/// Files that are longer, and why none of their parts would stand alone.
const LONGER: &[(&str, &str)] = &[];
/// Lines above `unsafe` within which the facts it rests on begin.
const SAFETY_WITHIN: usize = 6;
/// What the pure floors must not know: clocks, I/O, the executor, the ring.
const IMPURE: &[&str] = &["glommio", "io_uring", "libc", "Instant", "SystemTime", "fs", "thread"];
/// Modules of the pure floor. `http::ConnInfo` names addresses, which are values.
const PURE: &[&str] = &["limits", "http", "stats", "ajp"];

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The code without its unit tests, which end a file here.
    fn code(&self) -> &str {
        let ends = ["mod tests {", "pub(crate) mod tests {"].map(|module| format!("\n#[cfg(test)]\n{module}"));
        let end = ends.iter().find_map(|end| self.text.find(end));
        &self.text[..end.unwrap_or(self.text.len())]
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path == "src/http/reference.rs"
    }

    /// The module of `src/lib.rs` that it belongs to.
    fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").expect("sources are in src");
        inside.split('/').next().expect("split gives one part").trim_end_matches(".rs")
    }

    /// Numbered lines of code; comments are cut off.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code().lines().enumerate().map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()))
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// All files below `directory` that end in `.rs`, by path from the repository's root.
fn sources(directory: &str) -> Vec<Source> {
    fn collect(root: &Path, directory: &Path, into: &mut Vec<Source>) {
        for entry in fs::read_dir(directory).expect("the sources are here") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                collect(root, &path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are UTF-8");
                let path = path.strip_prefix(root).expect("below the root").display().to_string();
                into.push(Source { path, text });
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    collect(root, &root.join(directory), &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no sources in {directory}");
    found
}

#[track_caller]
fn check(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// The floor of each module, and of what `src/lib.rs` re-exports from it, as `src/lib.rs` lists them.
fn floors() -> HashMap<String, u32> {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).expect("src/lib.rs is here");
    let mut floors = HashMap::new();
    let mut floor = None;
    for line in lib.lines() {
        if let Some(number) = line.strip_prefix("// ").and_then(|text| text.parse().ok()) {
            floor = Some(number);
        } else if let Some(module) = line.trim_start_matches("pub ").strip_prefix("mod ") {
            let floor = floor.unwrap_or_else(|| panic!("{module} stands under no floor"));
            floors.insert(module.trim_end_matches(';').to_owned(), floor);
        } else if let Some(export) = line.strip_prefix("pub use ") {
            let mut names = words(export).filter(|word| *word != "crate");
            let module = names.next().expect("a module is named");
            let floor = floors[module];
            // Names of the modules between do no harm.
            floors.extend(names.map(|name| (name.to_owned(), floor)));
        }
    }
    floors
}

/// What follows each `crate::`: a name, or the first names of a group.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.extend(words(rest).next().map(String::from));
            continue;
        };
        let (mut depth, mut is_first) = (1, true);
        let mut name = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => is_first = true,
                ':' => is_first = false,
                _ if depth == 1 && is_first && (c.is_alphanumeric() || c == '_') => name.push(c),
                _ => {}
            }
            if (depth == 0 || !is_first || c == ',') && !name.is_empty() {
                found.push(std::mem::take(&mut name));
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

#[test]
fn imports_point_down_the_floors() {
    let floors = floors();
    let mut faults = Vec::new();
    for source in sources("src").iter().filter(|source| !source.is_test()) {
        let Some(own) = floors.get(source.module()) else {
            assert!(matches!(source.module(), "lib" | "main"), "{}: its module is not in src/lib.rs", source.path);
            continue;
        };
        let code: Vec<&str> = source.lines().map(|(_, line)| line).collect();
        for name in imports(&code.join("\n")) {
            match floors.get(&name) {
                Some(floor) if floor <= own => {}
                Some(floor) => faults.push(format!("{}: floor {own} uses {name} of floor {floor}", source.path)),
                None => faults.push(format!("{}: crate::{name} is on no floor", source.path)),
            }
        }
    }
    check(faults);
}

#[test]
fn imports_are_found_alone_and_in_groups() {
    let code = "use crate::a::{x, y};\nuse crate::{b, c::d, e::{f, g::{h}}, i as j};\ncrate::k();";
    let found = imports(code);
    assert!(["a", "b", "c", "e", "k"].iter().all(|name| found.contains(&name.to_string())), "{found:?}");
    assert!(["x", "d", "f", "h"].iter().all(|name| !found.contains(&name.to_string())), "{found:?}");
}

#[test]
fn pure_floors_know_no_clock_and_no_io() {
    let mut faults = Vec::new();
    for source in sources("src").iter().filter(|source| PURE.contains(&source.module()) && !source.is_test()) {
        for (at, line) in source.lines() {
            // A field may be called `process`.
            let named = words(line).filter(|word| IMPURE.contains(word));
            for word in named.chain(line.contains("process::").then_some("process")) {
                faults.push(format!("{}:{at}: {word} on a pure floor", source.path));
            }
        }
    }
    check(faults);
}

#[test]
fn unsafe_is_in_the_ring_only_and_explained() {
    let mut faults = Vec::new();
    for source in ["src", "tests", "examples"].into_iter().flat_map(sources) {
        let all: Vec<&str> = source.text.lines().collect();
        for (at, line) in all.iter().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            if line.contains('"') || !words(line).any(|word| word == "unsafe") {
                continue;
            }
            let above = &all[at.saturating_sub(SAFETY_WITHIN)..=at];
            let is_explained = above.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"));
            if !source.path.starts_with("src/ring/") {
                faults.push(format!("{}:{}: unsafe outside src/ring", source.path, at + 1));
            } else if !is_explained {
                faults.push(format!("{}:{}: unsafe without SAFETY above it", source.path, at + 1));
            }
        }
    }
    check(faults);
}

#[test]
fn files_have_one_noun_and_a_header() {
    let floors = floors();
    let mut faults = Vec::new();
    for source in sources("src") {
        let lines = source.code().lines().count();
        let is_listed = LONGER.iter().any(|(path, _)| *path == source.path);
        if !source.is_test() && (lines > LINES_MAX) != is_listed {
            faults.push(match is_listed {
                true => format!("{}: {lines} lines; it need not be listed any more", source.path),
                false => format!("{}: {lines} lines without tests; split it, or say why not", source.path),
            });
        }
        if !source.text.starts_with("//! ") {
            faults.push(format!("{}: does not open with what it is for", source.path));
        }
        let is_module_root = source.path == format!("src/{}.rs", source.module())
            || source.path == format!("src/{}/mod.rs", source.module());
        let header: Vec<&str> = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
        if let Some(floor) = floors.get(source.module()).filter(|_| is_module_root)
            && !header.join(" ").contains(&format!("Floor {floor}"))
        {
            faults.push(format!("{}: its header does not say Floor {floor}", source.path));
        }
    }
    check(faults);
}

#[test]
fn code_neither_unwraps_nor_prints() {
    let mut faults = Vec::new();
    for source in sources("src").iter().filter(|source| !source.is_test()) {
        for (at, line) in source.lines() {
            if line.contains(".unwrap()") {
                faults.push(format!("{}:{at}: unwraps; say why it cannot fail", source.path));
            }
            if (line.contains("println!(") || line.contains("print!(")) && !source.path.starts_with("src/cli") {
                faults.push(format!("{}:{at}: prints; only the command line does", source.path));
            }
        }
    }
    check(faults);
}

#[test]
fn bounds_are_in_limits() {
    let mut faults = Vec::new();
    for source in sources("src").iter().filter(|source| source.module() != "limits" && !source.is_test()) {
        for (at, line) in source.lines() {
            let Some((_, declared)) = line.split_once("const ") else { continue };
            let name = words(declared).next().unwrap_or_default();
            let is_bound = ["_MAX", "_MIN", "_TIMEOUT", "_CEILING"].iter().any(|end| name.ends_with(end));
            if is_bound && declared.contains("= ") && declared.trim_end_matches(';').ends_with(|c: char| c.is_numeric())
            {
                faults.push(format!("{}:{at}: {name} belongs into src/limits.rs", source.path));
            }
        }
    }
    check(faults);
}
