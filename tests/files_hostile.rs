//! Paths that are to lead out of the root: whatever they are, no byte comes from there.

mod common;

use common::{
    server::Server,
    tree::{Tree, octets, tcp},
};
use std::{fs, net::SocketAddr, os::unix::fs::symlink, thread};

/// In every file beside the root. The last one is what a system's own files have.
const SENTINEL: &str = "SENTINEL-4c1d-outside-of-the-root";
const OUTSIDE: [&str; 3] = [SENTINEL, "root:x:0:0:", "\0LANG="];
/// In every file beneath the root.
const INSIDE: &str = "inside-of-the-root";

/// Ways to write the name of the directory above, right and wrong ones.
const DOTS: [&str; 26] = [
    "..",
    "%2e%2e",
    ".%2e",
    "%2e.",
    "%2E%2E",
    "%252e%252e",
    "%25%32%65%25%32%65",
    "%c0%ae%c0%ae",
    "%e0%80%ae%e0%80%ae",
    "%f0%80%80%ae%f0%80%80%ae",
    "%uff0e%uff0e",
    "%ef%bc%8e%ef%bc%8e",
    "..;",
    "..;x=y",
    "..%00",
    "%00..",
    "..%20",
    "..%09",
    "..%0d%0a",
    "...",
    "..%5c",
    "..\\",
    "%2e%2e%2f..",
    ".",
    "%2e",
    "..%23",
];

/// Ways to write what is between two names.
const SLASHES: [&str; 12] =
    ["/", "%2f", "%2F", "%5c", "\\", "%c0%af", "%e0%80%af", "%252f", "//", "/./", "%2f/", "/%00/"];

const STARTS: [&str; 8] = ["/", "//", "/a/", "/a/b/", "/m/", "/m", "/.well-known/", "/to-deep/"];

const TARGETS: [&str; 4] = ["secret.txt", "etc/passwd", "proc/self/environ", "root-sibling/secret.txt"];

/// Sends each of the targets, and looks at all that comes back.
fn check(server: SocketAddr, targets: &[String]) {
    for target in targets {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let received = octets(tcp(server), request.as_bytes());
        let text = String::from_utf8_lossy(&received);
        let shown = target.escape_debug();
        assert!(text.starts_with("HTTP/1.1 "), "{shown}: {text:.60}");
        for outside in OUTSIDE {
            assert!(!text.contains(outside), "{shown}: {text:.300}");
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{shown}: no head in {text:.60}"));
        if head.starts_with("HTTP/1.1 2") {
            assert!(body.starts_with(INSIDE), "{shown}: {head}: {body:.100}");
        }
        let locations: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("Location: ")).collect();
        let is_redirect = head.starts_with("HTTP/1.1 3");
        assert_eq!(locations.len(), usize::from(is_redirect), "{shown}: {head}");
        for location in locations {
            // A browser takes `//host`, `/\host` and a tab or a line break between them for another server.
            let path = location.strip_prefix('/').unwrap_or_else(|| panic!("{shown}: redirected to {location}"));
            assert!(!path.starts_with(['/', '\\', '\t', ' ']), "{shown}: redirected to {location}");
            assert!(location.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\'), "{shown}: to {location}");
        }
        // No field of ours was made by what was in the path.
        assert!(!head.to_ascii_lowercase().contains("\r\nx-injected"), "{shown}: {head}");
    }
}

/// From several threads, since most of the time is waiting.
fn check_all(server: &Server, targets: &[String]) {
    let server = server.http;
    thread::scope(|scope| {
        for part in targets.chunks(targets.len().div_ceil(4)) {
            scope.spawn(move || check(server, part));
        }
    });
}

/// A root with links of all kinds, and secrets around it.
fn grow() -> Tree {
    let tree = Tree::new();
    fs::write(tree.around().join("secret.txt"), SENTINEL).expect("it is ours");
    // Its name begins as the root's does: a comparison of strings would let it pass.
    fs::create_dir(tree.around().join("root-sibling")).expect("it is ours");
    fs::write(tree.around().join("root-sibling/secret.txt"), SENTINEL).expect("it is ours");
    for path in [
        "index.html",
        "a/index.html",
        "a/b/index.html",
        "deep/er/x.txt",
        "m/x.txt",
        ".well-known/x.txt",
        "a/secret-not.txt",
    ] {
        tree.put(path, INSIDE);
    }
    tree.put(".hidden", SENTINEL);
    tree.put("a/.git/config", SENTINEL);
    let around = tree.around().to_str().expect("plain names").to_owned();
    let root = tree.root();
    let link = |to: &str, name: &str| symlink(to, root.join(name)).expect("it is ours");
    link("../secret.txt", "out.txt");
    link("..", "out");
    link("../root-sibling", "sibling");
    link(&format!("{around}/secret.txt"), "absolute.txt");
    link(&around, "absolute");
    link("/", "slash");
    link("/etc/passwd", "passwd");
    link("/proc/self/root", "magic-root");
    link("/proc/self/cwd", "magic-cwd");
    link("/proc/self/environ", "environ");
    link("/proc/self/fd", "fd");
    link("/dev/fd/0", "stdin");
    link("chain2", "chain");
    link("a/../../secret.txt", "chain2");
    link("deep/er", "to-deep");
    link("../../../secret.txt", "deep/er/up.txt");
    link("loop2", "loop");
    link("loop", "loop2");
    link("out/secret.txt", "through");
    link(".hidden", "to-hidden");
    tree
}

fn start(tree: &Tree, more: &[&str]) -> Server {
    let root = tree.root_flag();
    let mounted = format!("/m={root}/a");
    let mut flags = vec!["--root", &root, "--root", &mounted];
    flags.extend(more);
    Server::start(&flags)
}

#[test]
fn no_spelling_of_a_path_leads_out() {
    let tree = grow();
    let server = start(&tree, &[]);
    let mut targets = Vec::new();
    for start in STARTS {
        for dots in DOTS {
            for slash in SLASHES {
                for (at, target) in TARGETS.into_iter().enumerate() {
                    // As deep as it takes from each start, and far deeper than the root lies.
                    let depth = [1, 2, 3, 12][(at + start.len()) % 4];
                    targets.push(format!("{start}{}{target}", format!("{dots}{slash}").repeat(depth)));
                }
            }
        }
    }
    check_all(&server, &targets);
}

#[test]
fn no_link_leads_out() {
    let tree = grow();
    for more in [&[][..], &["--listing"], &["--symlinks", "never"], &["--fallback", "index.html"]] {
        let server = start(&tree, more);
        let mut targets = Vec::new();
        for link in ["out", "sibling", "absolute", "slash", "magic-root", "magic-cwd", "fd", "loop", "to-deep/..", "m"]
        {
            for end in [
                "",
                "/",
                "/.",
                "/..",
                "/../secret.txt",
                "/secret.txt",
                "/root-sibling/secret.txt",
                "/etc/passwd",
                "/0",
                "/proc/self/environ",
            ] {
                targets.push(format!("/{link}{end}"));
            }
        }
        for link in [
            "out.txt",
            "absolute.txt",
            "passwd",
            "environ",
            "stdin",
            "chain",
            "chain2",
            "deep/er/up.txt",
            "to-deep/up.txt",
            "through",
        ] {
            targets.extend(["", "/", "%00", "?x"].map(|end| format!("/{link}{end}")));
        }
        // A listing names what it must not follow; it says nothing of what is there.
        if more != ["--listing"] {
            check(server.http, &targets);
        } else {
            for target in targets {
                let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                let text = String::from_utf8_lossy(&octets(tcp(server.http), request.as_bytes())).into_owned();
                assert!(OUTSIDE.iter().all(|outside| !text.contains(outside)), "{target}: {text:.300}");
            }
        }
        let request = "GET /to-deep/x.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = String::from_utf8_lossy(&octets(tcp(server.http), request.as_bytes())).into_owned();
        let is_followed = more != ["--symlinks", "never"];
        assert_eq!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(INSIDE), is_followed, "{answer}");
    }
}

#[test]
fn hidden_names_stay_hidden_however_they_are_written() {
    let tree = grow();
    let server = start(&tree, &["--listing"]);
    for target in [
        "/.hidden",
        "/%2ehidden",
        "/%2Ehidden",
        "/a/.git/config",
        "/a/%2egit/config",
        "/a/.git/",
        "/a/.git",
        "/m/.git/config",
        "/.well-known/../.hidden",
        "/.well-known/%2e%2e/.hidden",
        "/.well-known/../a/.git/config",
        "/a/b/../.git/config",
        "/a//.git/config",
        "/a/./.git/config",
        "/a/.git%2fconfig",
        "/m/%2egit/config",
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let text = String::from_utf8_lossy(&octets(tcp(server.http), request.as_bytes())).into_owned();
        assert!(!text.contains(SENTINEL) && !text.starts_with("HTTP/1.1 200"), "{target}: {text}");
    }
    for listed in ["/", "/a/"] {
        let request = format!("GET {listed}?list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let text = String::from_utf8_lossy(&octets(tcp(server.http), request.as_bytes())).into_owned();
        assert!(!text.contains(".hidden") && !text.contains(".git"), "{text}");
    }
}

#[test]
fn redirect_never_names_another_server() {
    let tree = grow();
    fs::create_dir_all(tree.root().join("evil.example/x")).expect("it is ours");
    let server = start(&tree, &[]);
    let mut targets = Vec::new();
    for start in [
        "//",
        "///",
        "/\\",
        "/%5c",
        "/%2f",
        "/%09/",
        "/%0d%0a",
        "/.//",
        "/..//",
        "/a/..//",
        "/m//",
        "/m/..//",
        "/;//",
        "/%20/",
        "/a/%2e%2e//",
    ] {
        for host in [
            "evil.example",
            "evil.example/",
            "evil.example/..",
            "evil.example/%2e%2e/x",
            "evil.example/x",
            "evil.example//x",
        ] {
            targets.push(format!("{start}{host}"));
            targets.push(format!("{start}{host}?%0d%0aX-Injected:%201"));
        }
    }
    for path in [
        "/a%0d%0aX-Injected:%201",
        "/a/b%0aX-Injected:1/..",
        "/a/%0d%0aX-Injected:1/../b",
        "/evil.example%5c..",
        "/a?x//evil.example",
    ] {
        targets.push(path.to_owned());
    }
    check_all(&server, &targets);
}

#[test]
fn long_and_deep_paths_are_refused_in_good_order() {
    let tree = grow();
    let server = start(&tree, &[]);
    let mut targets = Vec::new();
    for unit in
        ["a", "/", "/a", "../", "%2e%2e/", "a/../", "./", "%00", "%2f", "/a/..", "%ff", "\\..", "~/", "a/b/../../"]
    {
        for bytes in [250, 4090, 4096, 4100, 7900] {
            targets.push(format!("/{}", unit.repeat(bytes / unit.len())));
            targets.push(format!("/{}secret.txt", unit.repeat(bytes / unit.len())));
        }
    }
    check_all(&server, &targets);
    let absolute = [
        "http://localhost/../secret.txt",
        "http://localhost/..%2fsecret.txt",
        "http://localhost//../secret.txt",
        "http://evil.example/../../secret.txt",
        "http:///../secret.txt",
    ];
    check(server.http, &absolute.map(str::to_owned));
}
