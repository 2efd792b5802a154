//! What disks do: many names, odd names, what is no file, files that change while they are sent, what may not be read,
//! and many slow readers of a large one.

mod common;

use common::{
    live::{descriptors, rss_kib, wait_until},
    raw::Raw,
    response::Response,
    server::Server,
    tree::{Tree, answer, encode, noise, octets, request, tcp},
};
use everycore::limits::{DOWNLOAD_BYTES_MAX, LISTING_ENTRIES_MAX, UNSENT_BYTES_MAX};
use socket2::{Domain, Socket, Type};
use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{Read, Write},
    net::SocketAddr,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// One shard, so that what it keeps in memory is asked for again.
fn start(tree: &Tree, more: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everycore"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--pin", "off", "--root"]).arg(tree.root());
    command.args(more);
    Server::launch(command)
}

fn get(server: &Server, target: &str) -> Response {
    answer(tcp(server.http), &request("GET", target, &[]))
}

/// Connects with the smallest window, so that the kernel holds little of what the server sends.
fn connect_slowly(server: SocketAddr) -> Raw {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("it can be set");
    socket.connect(&server.into()).expect("the server accepts");
    Raw::over(socket.into())
}

/// Asks for a file and reads so many octets of the answer.
fn begin(connection: &mut Raw, target: &str, count: usize) -> Vec<u8> {
    connection.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    connection.octets(count)
}

/// The octets after the head.
fn body_of(octets: &[u8]) -> &[u8] {
    let head = octets.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    &octets[head..]
}

/// The sum over the shards of what is counted by that name.
fn counted(server: &Server, name: &str) -> u64 {
    let stats = get(server, "/__stats");
    let stats: serde_json::Value = serde_json::from_slice(&stats.body).expect("JSON");
    fn sum(value: &serde_json::Value, name: &str) -> u64 {
        match value {
            serde_json::Value::Object(fields) => {
                let own = fields.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
                own + fields.iter().filter(|(key, _)| *key != "total").map(|(_, value)| sum(value, name)).sum::<u64>()
            }
            serde_json::Value::Array(values) => values.iter().map(|value| sum(value, name)).sum(),
            _ => 0,
        }
    }
    sum(&stats, name)
}

// ---- names -----------------------------------------------------------------------------------------

#[test]
fn directory_of_100_000_files_is_served_and_listed_up_to_the_bound() {
    const FILES: usize = 100_000;
    let tree = Tree::in_memory();
    tree.put("many/0.txt", "first");
    for number in 1..FILES {
        File::create(tree.root().join(format!("many/{number}.txt"))).expect("it is ours");
    }
    let server = start(&tree, &["--listing"]);
    assert_eq!(get(&server, "/many/0.txt").body, b"first");
    assert_eq!(get(&server, "/many/99999.txt").body, b"");
    assert_eq!(get(&server, "/many/100000.txt").status, 404);
    let page = get(&server, "/many/");
    let page = String::from_utf8(page.body).expect("UTF-8");
    assert_eq!(page.matches("<li><a href=\"./").count(), LISTING_ENTRIES_MAX);
    assert!(page.contains("There is more"), "{page:.300}");
}

#[test]
fn names_that_are_no_utf_8_are_served_and_listed() {
    let tree = Tree::new();
    let names: [&[u8]; 6] =
        [b"\xff.txt", b"a\xc3.txt", b"\xe4\xf6\xfc.html", b"line\nbreak.txt", b"tab\t.txt", b"<b>\"&'.txt"];
    for name in names {
        if fs::write(tree.root().join(OsStr::from_bytes(name)), name).is_err() {
            return println!("skipped: this file system takes UTF-8 names only");
        }
    }
    let server = start(&tree, &["--listing"]);
    for name in names {
        let path = encode(Path::new(OsStr::from_bytes(name)));
        assert_eq!(get(&server, &format!("/{path}")).body, name, "{path}");
    }
    let page = String::from_utf8(get(&server, "/").body).expect("UTF-8");
    assert!(!page.contains("<b>"), "{page}");
    // The page's own links lead to each of them.
    let mut found: Vec<Vec<u8>> = page
        .split("href=\"./")
        .skip(1)
        .map(|rest| rest.split('"').next().expect("one").replace("&amp;", "&").replace("&#39;", "'"))
        .map(|href| get(&server, &format!("/{href}")).body)
        .collect();
    found.sort_unstable();
    let mut all = names.map(<[u8]>::to_vec).to_vec();
    all.sort_unstable();
    assert_eq!(found, all);
}

// ---- what is no file ---------------------------------------------------------------------------------

#[test]
fn sockets_and_devices_are_not_there() {
    let tree = Tree::new();
    tree.put("file.txt", "file");
    let _listener = UnixListener::bind(tree.root().join("socket")).expect("it is ours");
    let mut targets = vec!["/socket", "/socket/", "/zero-link", "/socket?x"];
    symlink("/dev/zero", tree.root().join("zero-link")).expect("it is ours");
    // Takes privileges that not everybody has.
    let made = Command::new("mknod").arg(tree.root().join("zero")).args(["c", "1", "5"]).output();
    if made.is_ok_and(|made| made.status.success()) {
        targets.push("/zero");
    }
    let server = start(&tree, &["--listing"]);
    for target in targets {
        assert_eq!(get(&server, target).status, 404, "{target}");
    }
    assert_eq!(get(&server, "/file.txt").body, b"file");
}

/// Opening a FIFO is seen by who waits to write into it, and takes the bytes from a reader that should have them.
#[test]
fn fifo_is_not_there_and_never_opened() {
    let tree = Tree::new();
    tree.put("file.txt", "file");
    let fifo = tree.root().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("a system has mkfifo");
    assert!(made.success());
    let server = start(&tree, &["--listing"]);
    let is_opened = Arc::new(AtomicBool::new(false));
    let (writer, path) = (is_opened.clone(), fifo.clone());
    let waiting = thread::spawn(move || {
        let mut writer_end = File::options().write(true).open(path).expect("it is there");
        writer.store(true, Ordering::SeqCst);
        // The last reader may be gone by now.
        let _ = writer_end.write_all(b"x");
    });
    for _ in 0..20 {
        for target in ["/fifo", "/fifo/", "/fifo/x"] {
            assert_eq!(get(&server, target).status, 404, "{target}");
        }
    }
    assert_eq!(get(&server, "/file.txt").body, b"file");
    let was_opened = is_opened.load(Ordering::SeqCst);
    // Let the writer go.
    let reader = thread::spawn(move || File::open(fifo).map(|mut fifo| fifo.read(&mut [0; 8])));
    waiting.join().expect("it does not panic");
    drop(reader);
    assert!(!was_opened, "the server opened the FIFO");
}

// ---- files that change -------------------------------------------------------------------------------

const LARGE: usize = 64 * 1024 * 1024;

#[test]
fn file_that_shrinks_while_it_is_sent_ends_the_connection_and_is_counted() {
    let tree = Tree::new();
    let path = tree.put("large.bin", "");
    let file = File::options().write(true).open(&path).expect("it is ours");
    file.set_len(LARGE as u64).expect("it is ours");
    let server = start(&tree, &[]);
    for (left, is_known) in [(0, false), (1_000_000, false), (0, true), (1_000_000, true)] {
        file.set_len(LARGE as u64).expect("it is ours");
        let uncopied = || counted(&server, "sent_uncopied");
        if is_known {
            wait_until("it rests, and is sent from the page cache", || {
                let before = uncopied();
                get(&server, "/large.bin");
                uncopied() == before + LARGE as u64
            });
        }
        let before = (counted(&server, "broken_off"), uncopied());
        let mut connection = connect_slowly(server.http);
        let begun = begin(&mut connection, "/large.bin", 10_000);
        assert!(begun.starts_with(b"HTTP/1.1 200 OK\r\n"));
        file.set_len(left).expect("it is ours");
        let rest = connection.until_close();
        let sent = body_of(&begun).len() + rest.len();
        assert!(sent < LARGE, "{sent} octets of a file of {left}");
        assert_eq!(counted(&server, "broken_off"), before.0 + 1);
        assert_eq!(uncopied() > before.1, is_known, "{sent} octets of a file of {left}");
    }
    // No one else is hurt.
    file.set_len(10).expect("it is ours");
    wait_until("the new size is seen", || get(&server, "/large.bin").body == [0; 10]);
}

#[test]
fn file_that_grows_while_it_is_sent_is_sent_as_it_was_announced() {
    let tree = Tree::new();
    let content = noise(1, 8 * 1024 * 1024);
    let path = tree.put("log.bin", &content);
    let server = start(&tree, &[]);
    let mut connection = connect_slowly(server.http);
    let begun = begin(&mut connection, "/log.bin", 10_000);
    File::options().append(true).open(path).expect("it is ours").write_all(&noise(2, 1_000_000)).expect("it is ours");
    let rest = connection.octets(content.len() - body_of(&begun).len());
    assert!([body_of(&begun), &rest].concat() == content);
    // The connection is in step: the next answer follows at once.
    let next = connection.exchange("GET /absent HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(next.status, 404);
}

#[test]
fn file_that_is_replaced_while_it_is_sent_is_sent_as_it_was() {
    let tree = Tree::new();
    let (old, new) = (noise(1, 8 * 1024 * 1024), noise(2, 3_000_000));
    let path = tree.put("release.bin", &old);
    let server = start(&tree, &[]);
    let mut connection = connect_slowly(server.http);
    let begun = begin(&mut connection, "/release.bin", 10_000);
    let staged = tree.put("staged.bin", &new);
    fs::rename(staged, &path).expect("it is ours");
    let rest = connection.octets(old.len() - body_of(&begun).len());
    assert!([body_of(&begun), &rest].concat() == old);
    wait_until("the new file is seen", || get(&server, "/release.bin").body == new);
    fs::remove_file(&path).expect("it is ours");
    wait_until("it is gone", || get(&server, "/release.bin").status == 404);
}

/// Small ones are kept in memory: what was replaced must not be answered with the old bytes under the new length, or the
/// other way round.
#[test]
fn small_file_that_is_replaced_all_the_time_is_always_one_of_its_versions() {
    let tree = Tree::new();
    let versions: Vec<Vec<u8>> = (1..8).map(|n| vec![b'0' + n as u8; 1000 * n]).collect();
    tree.put("small.txt", &versions[0]);
    let server = start(&tree, &[]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !done.load(Ordering::SeqCst) {
                at = (at + 1) % versions.len();
                let staged = tree.put("staged.txt", &versions[at]);
                fs::rename(staged, tree.root().join("small.txt")).expect("it is ours");
            }
        });
        let mut connection = Raw::connect(server.http);
        let mut faults = 0;
        for _ in 0..500 {
            let answer = connection.exchange("GET /small.txt HTTP/1.1\r\nHost: localhost\r\n\r\n");
            faults += usize::from(answer.status != 200 || !versions.contains(&answer.body));
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(faults, 0);
    });
}

#[test]
fn descriptors_are_given_back() {
    let tree = Tree::new();
    tree.put("large.bin", noise(1, 4_000_000));
    tree.put("small.txt", "small");
    tree.put("d/index.html", "index");
    let server = start(&tree, &["--listing"]);
    let ask = || {
        for target in ["/large.bin", "/small.txt", "/d", "/d/", "/absent", "/", "/large.bin/x"] {
            get(&server, target);
        }
        let mut connection = connect_slowly(server.http);
        begin(&mut connection, "/large.bin", 1000);
    };
    ask();
    let before = descriptors(server.pid());
    for _ in 0..50 {
        ask();
    }
    wait_until("as many are open as before", || descriptors(server.pid()) <= before + 2);
}

// ---- what may not be read ----------------------------------------------------------------------------

#[test]
fn what_may_not_be_read_is_forbidden() {
    let tree = Tree::new();
    let lock =
        |path: &str| fs::set_permissions(tree.root().join(path), Permissions::from_mode(0o000)).expect("it is ours");
    tree.put("open.txt", "open");
    tree.put("locked.txt", "locked");
    tree.put("room/inside.txt", "inside");
    tree.put("room/index.html", "inside");
    tree.put("pre.js", "plain".repeat(100));
    tree.put("pre.js.gz", "locked");
    for path in ["locked.txt", "room", "pre.js.gz"] {
        lock(path);
    }
    // Nobody has fewer rights than the one who runs the tests: root reads everything.
    let is_root = fs::read(tree.root().join("locked.txt")).is_ok();
    let server = if is_root {
        // Where nobody can reach both of them.
        let program = tree.around().join("everycore");
        fs::copy(env!("CARGO_BIN_EXE_everycore"), &program).expect("it is ours");
        for path in [tree.around().to_owned(), program.clone()] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
        }
        if Command::new("setpriv").arg("--version").output().is_err() {
            return println!("skipped: setpriv not installed");
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--pin", "off", "--root"]).arg(tree.root());
        Server::launch(command)
    } else {
        start(&tree, &[])
    };
    for (target, status) in
        [("/open.txt", 200), ("/locked.txt", 403), ("/room/inside.txt", 403), ("/room/", 403), ("/locked.txt/x", 404)]
    {
        let answer = get(&server, target);
        assert_eq!(answer.status, status, "{target}");
        assert!(!answer.body.windows(6).any(|six| six == b"inside" || six == b"locked"), "{target}");
    }
    // A sibling that may not be read does not take its file with it.
    let answer = answer(tcp(server.http), &request("GET", "/pre.js", &[("Accept-Encoding", "gzip")]));
    assert_eq!((answer.status, answer.body.as_slice()), (200, "plain".repeat(100).as_bytes()));
    // So that the directory can be removed.
    fs::set_permissions(tree.root().join("room"), Permissions::from_mode(0o755)).expect("it is ours");
}

// ---- slow readers ------------------------------------------------------------------------------------

/// What the kernel holds of the connections at this port of ours, each: sent and not acknowledged, or not sent.
fn queued_octets(port: u16) -> Vec<usize> {
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux tells");
    let end = format!(":{port:04X}");
    let own = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // proc_net_tcp: local address, remote address, state (01: established), tx_queue:rx_queue.
    let own = own.filter(|words| words.len() > 4 && words[1].ends_with(&end) && words[3] == "01");
    own.map(|words| usize::from_str_radix(&words[4][..8], 16).expect("eight digits")).collect()
}

#[test]
fn thousand_slow_downloads_stay_within_their_bound() {
    const CLIENTS: usize = 1000;
    let tree = Tree::new();
    let path = tree.put("huge.bin", "");
    File::options().write(true).open(path).expect("it is ours").set_len(100 * 1024 * 1024).expect("it is ours");
    let server = start(&tree, &[]);
    let open = |count: usize| -> Vec<Raw> {
        let connections = (0..count).map(|_| {
            let mut connection = connect_slowly(server.http);
            begin(&mut connection, "/huge.bin", 8_000);
            connection
        });
        connections.collect()
    };
    drop(open(8)); // what is made once is there
    let before = rss_kib(server.pid());
    let slow = open(CLIENTS);
    let grown = rss_kib(server.pid()).saturating_sub(before);
    let bound = (DOWNLOAD_BYTES_MAX / 1024 * CLIENTS) as u64;
    assert!(grown < bound, "{grown} KiB for {CLIENTS} downloads, expected less than {bound}");
    // Nor does the kernel hold much of them: it would take 4 MiB of each, and reset others for want of memory.
    let queued = queued_octets(server.http.port());
    assert!(queued.len() >= CLIENTS, "{} connections are open", queued.len());
    let most = queued.into_iter().max().unwrap_or(0);
    assert!(most <= 2 * UNSENT_BYTES_MAX as usize, "{most} octets wait in the kernel for one client");
    // All of them are being served, and someone else is still served.
    assert_eq!(get(&server, "/absent").status, 404);
    drop(slow);
    let head = octets(tcp(server.http), &request("HEAD", "/huge.bin", &[]));
    assert!(head.starts_with(b"HTTP/1.1 200 OK\r\n"));
}
