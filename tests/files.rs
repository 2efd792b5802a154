//! Static files through the real server and through the client in memory: exact bytes, and nothing out of the root.

mod common;

use common::{
    live::{Live, descriptors, server, wait_until},
    raw::Raw,
    response::Response,
};
use everycore::{App, Files, Request, RouteProblem, Router, handler::Reply, http::Method, testing::Client};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    os::unix::{ffi::OsStrExt, fs::symlink, net::UnixListener},
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

fn then() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(784_111_777)
}

/// Puts a file there that is as old as `DATE`.
fn put(root: &Path, name: impl AsRef<OsStr>, content: &[u8]) {
    let path = root.join(name.as_ref());
    fs::create_dir_all(path.parent().expect("it is in the root")).expect("a directory");
    fs::write(&path, content).expect("a file");
    File::options().write(true).open(&path).and_then(|file| file.set_modified(then())).expect("its time is set");
}

/// A directory with these files.
fn tree(files: &[(&str, &[u8])]) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    files.iter().for_each(|(name, content)| put(root.path(), name, content));
    root
}

fn head(method: &str, target: &str, fields: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

type Ask<'a> = &'a dyn Fn(&str, &str, &str) -> Response;

/// Runs `test` against a server, and against the client in memory. What it is given sends a method, a target and fields.
fn both(app: impl Fn() -> Router + Clone + Send + Sync + 'static, test: impl Fn(Ask<'_>)) {
    let in_memory = Client::new(app.clone()).expect("no conflicts");
    test(&|method, target, fields| {
        let answer = in_memory.raw(head(method, target, fields));
        let (response, used) = Response::parse(&answer, method, true).expect("strict").expect("whole");
        assert_eq!(used, answer.len(), "nothing follows");
        response
    });
    let live = Live::start(1, move |_| app());
    test(&|method, target, fields| Raw::connect(live.http).exchange(head(method, target, fields)));
}

fn at_root(files: Files) -> impl Fn() -> Router + Clone + Send + Sync + 'static {
    move || Router::new().files("/", files.clone())
}

fn field<'a>(response: &'a Response, name: &'a str) -> Option<&'a str> {
    let mut values = response.values(name);
    let value = values.next();
    assert_eq!(values.next(), None, "{name} comes once");
    value
}

#[track_caller]
fn check_body(response: &Response, status: u16, body: impl AsRef<[u8]>) {
    assert_eq!(
        (response.status, response.body.escape_ascii().to_string()),
        (status, body.as_ref().escape_ascii().to_string())
    );
}

/// `count` bytes of which no two stretches are alike.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

// ---- answers -------------------------------------------------------------------------------------

#[test]
fn answer_has_these_bytes() {
    let root = tree(&[("a.css", b"a{}"), ("deep/b c.png", b"png")]);
    let files = Files::new(root.path()).cache_control("*.png", "max-age=60").cache_control("**", "no-cache");
    let tag = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(root.path().join(name)).expect("it is there");
        format!("\"{:x}-{:x}-{:x}\"", 784_111_777_000_000_000u64, metadata.len(), metadata.ino())
    };
    let live = Live::start(1, move |_| Router::new().files("/", files.clone()));
    let mut connection = Raw::connect(live.http);
    let mut answer = |request: String| {
        connection.send(request + &head("GET", "/nope", "Connection: close\r\n"));
        let answers = String::from_utf8(connection.until_close()).expect("text");
        connection = Raw::connect(live.http);
        let (answer, _) = answers.split_once("HTTP/1.1 404").expect("the second answer");
        let lines = answer.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: "));
        lines.collect::<String>()
    };
    let css = |more: &str, body: &str| {
        let tag = tag("a.css");
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/css; charset=utf-8\r\nContent-Length: 3\r\nServer: everycore\r\n\
             Etag: {tag}\r\nVary: Accept-Encoding\r\nCache-Control: no-cache\r\nLast-Modified: {DATE}\r\n\
             Accept-Ranges: bytes\r\n{more}\r\n{body}"
        )
    };
    // From the disk, then from memory.
    for _ in 0..2 {
        assert_eq!(answer(head("GET", "/a.css", "")), css("", "a{}"));
        assert_eq!(answer(head("HEAD", "/a.css", "")), css("", ""));
        let unchanged = answer(head("GET", "/a.css", &format!("If-Modified-Since: {DATE}\r\n")));
        let tag_css = tag("a.css");
        assert_eq!(
            unchanged,
            format!(
                "HTTP/1.1 304 Not Modified\r\nServer: everycore\r\nEtag: {tag_css}\r\nVary: Accept-Encoding\r\n\
                 Cache-Control: no-cache\r\n\r\n"
            )
        );
        let tag_png = tag("deep/b c.png");
        assert_eq!(
            answer(head("GET", "/deep/b%20c.png", "Range: bytes=1-\r\n")),
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Type: image/png\r\nContent-Length: 2\r\nServer: everycore\r\n\
                 Etag: {tag_png}\r\nCache-Control: max-age=60\r\nLast-Modified: {DATE}\r\nAccept-Ranges: bytes\r\n\
                 Content-Range: bytes 1-2/3\r\n\r\nng"
            )
        );
    }
}

#[test]
fn conditions_are_evaluated_in_memory_and_on_disk() {
    let root = tree(&[("small", b"0123456789"), ("empty", b"")]);
    put(root.path(), "large", &noise(1 << 20));
    both(at_root(Files::new(root.path())), |ask| {
        for name in ["/small", "/large", "/empty"] {
            // The first answer is from the disk, and tells the tag.
            let whole = ask("GET", name, "");
            let tag = field(&whole, "etag").expect("a tag").to_owned();
            assert_eq!((whole.status, field(&whole, "last-modified")), (200, Some(DATE)));
            let check = |fields: &str, expected: u16| {
                let answer = ask("GET", name, fields);
                assert_eq!(answer.status, expected, "{name} {fields}");
                assert_eq!(answer.body.is_empty(), expected == 304 || whole.body.is_empty() && expected == 200);
            };
            check(&format!("If-None-Match: {tag}\r\n"), 304);
            check(&format!("If-None-Match: \"x\", W/{tag}\r\n"), 304);
            check("If-None-Match: \"x\"\r\n", 200);
            check(&format!("If-Modified-Since: {DATE}\r\n"), 304);
            check(&format!("If-Modified-Since: {EARLIER}\r\n"), 200);
            check(&format!("If-Match: {tag}\r\n"), 200);
            check(&format!("If-Match: W/{tag}\r\n"), 412);
            check(&format!("If-Unmodified-Since: {EARLIER}\r\n"), 412);
            check(&format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {DATE}\r\n"), 200);
            let head = ask("HEAD", name, "");
            assert_eq!((head.status, field(&head, "content-length")), (200, field(&whole, "content-length")));
            assert_eq!(ask("HEAD", name, &format!("If-None-Match: {tag}\r\n")).status, 304);
        }
    });
}

#[test]
fn ranges_are_cut_from_memory_and_from_disk() {
    let (small, large) = (noise(1000), noise(700_000));
    let root = tree(&[("small", &small), ("large", &large), ("empty", b"")]);
    both(at_root(Files::new(root.path()).media_type("", "a/b")), |ask| {
        for (name, content) in [("/small", &small), ("/large", &large)] {
            let size = content.len();
            let part = |range: &str, from: usize, to: usize| {
                let answer = ask("GET", name, &format!("Range: bytes={range}\r\n"));
                check_body(&answer, 206, &content[from..to]);
                assert_eq!(field(&answer, "content-range"), Some(&*format!("bytes {from}-{}/{size}", to - 1)));
            };
            part("0-0", 0, 1);
            part("0-", 0, size);
            part("-1", size - 1, size);
            part("10-19", 10, 20);
            part(&format!("{}-{}", size - 5, size + 5), size - 5, size);
            part("99999999-, 3-4", 3, 5);
            if size > 200_000 {
                part("65530-131080", 65_530, 131_081);
                part("65536-131071", 65_536, 131_072);
            }

            let beyond = ask("GET", name, &format!("Range: bytes={size}-\r\n"));
            check_body(&beyond, 416, "416 Range Not Satisfiable\n");
            assert_eq!(field(&beyond, "content-range"), Some(&*format!("bytes */{size}")));

            let several = ask("GET", name, &format!("Range: bytes=0-4,{}-, 100-109\r\n", size - 3));
            let boundary =
                field(&several, "content-type").and_then(|t| t.strip_prefix("multipart/byteranges; boundary="));
            let boundary = boundary.expect("a boundary");
            let mut expected = Vec::new();
            for (from, to) in [(0, 5), (size - 3, size), (100, 110)] {
                let line = format!("bytes {from}-{}/{size}", to - 1);
                let before = if from == 0 { "" } else { "\r\n" };
                expected.extend_from_slice(
                    format!("{before}--{boundary}\r\nContent-Type: a/b\r\nContent-Range: {line}\r\n\r\n").as_bytes(),
                );
                expected.extend_from_slice(&content[from..to]);
            }
            expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            check_body(&several, 206, &expected);
            let again = ask("GET", name, "Range: bytes=0-0,2-2\r\n");
            assert_ne!(field(&again, "content-type"), field(&several, "content-type"), "boundaries are made anew");

            // Ignored: another method, a unit that is none of ours, a flood, a validator that is another's.
            assert_eq!(ask("HEAD", name, "Range: bytes=0-0\r\n").status, 200);
            for ignored in [
                "Range: lines=0-0\r\n".to_owned(),
                format!("Range: bytes={}\r\n", "0-,".repeat(5)),
                "Range: bytes=0-0\r\nIf-Range: \"x\"\r\n".to_owned(),
                format!("Range: bytes=0-0\r\nIf-Range: {EARLIER}\r\n"),
            ] {
                check_body(&ask("GET", name, &ignored), 200, content);
            }
            assert_eq!(ask("GET", name, &format!("Range: bytes=0-0\r\nIf-Range: {DATE}\r\n")).status, 206);
        }
        check_body(&ask("GET", "/empty", "Range: bytes=0-\r\n"), 200, "");
    });
}

#[test]
fn precompressed_sibling_is_chosen_by_weight() {
    let root = tree(&[
        ("a.js", b"plain"),
        ("a.js.br", b"as br"),
        ("a.js.gz", b"as gzip"),
        ("b.js", b"plain"),
        ("b.js.zst", b"as zstd"),
        ("docs/index.html", b"plain"),
        ("docs/index.html.gz", b"as gzip"),
        ("docs.gz", b"an archive"),
        ("only.js.gz", b"as gzip"),
        ("p.png", b"plain"),
        ("p.png.gz", b"as gzip"),
    ]);
    put(root.path(), "c.js", b"plain");
    fs::create_dir(root.path().join("c.js.gz")).expect("a directory");
    let check = |ask: Ask<'_>, target: &str, accept: &str, coding: Option<&str>| {
        let fields = if accept.is_empty() { String::new() } else { format!("Accept-Encoding: {accept}\r\n") };
        for _ in 0..2 {
            let answer = ask("GET", target, &fields);
            let expected = coding.map_or("plain".to_owned(), |coding| format!("as {coding}"));
            check_body(&answer, 200, expected);
            assert_eq!(field(&answer, "content-encoding"), coding);
            assert_eq!(field(&answer, "vary"), (target != "/p.png").then_some("Accept-Encoding"), "{target}");
        }
    };
    both(at_root(Files::new(root.path())), |ask| {
        check(ask, "/a.js", "", None);
        check(ask, "/a.js", "gzip, deflate, br, zstd", Some("br"));
        check(ask, "/a.js", "gzip, br;q=0.9", Some("gzip"));
        check(ask, "/a.js", "zstd", None);
        check(ask, "/a.js", "gzip;q=0", None);
        check(ask, "/a.js", "identity, gzip;q=0.5", None);
        check(ask, "/b.js", "gzip, br, zstd", Some("zstd"));
        check(ask, "/docs/", "gzip", Some("gzip"));
        check(ask, "/p.png", "gzip", None);
        check(ask, "/c.js", "gzip", None);
        let tag = |fields| field(&ask("GET", "/a.js", fields), "etag").expect("a tag").to_owned();
        assert_ne!(tag("Accept-Encoding: br\r\n"), tag(""), "each has a tag of its own");
        assert_eq!(ask("GET", "/docs", "Accept-Encoding: gzip\r\n").status, 301);
        assert_eq!(ask("GET", "/only.js", "Accept-Encoding: gzip\r\n").status, 404);
        let sibling = ask("GET", "/a.js.gz", "Accept-Encoding: gzip\r\n");
        check_body(&sibling, 200, "as gzip");
        assert_eq!(field(&sibling, "content-type"), Some("application/gzip"));
        assert_eq!(field(&sibling, "content-encoding"), None);
    });
    both(at_root(Files::new(root.path()).precompressed(false)), |ask| {
        let answer = ask("GET", "/a.js", "Accept-Encoding: br\r\n");
        check_body(&answer, 200, "plain");
        assert_eq!(field(&answer, "vary"), None);
    });
}

#[test]
fn directories_have_their_index_behind_a_slash() {
    let root = tree(&[
        ("index.html", b"home"),
        ("docs/index.html", b"docs"),
        ("old/default.htm", b"old"),
        ("bare/file", b"x"),
        ("evil.example/index.html", b"e"),
    ]);
    let files = Files::new(root.path()).index("index.html").index("default.htm");
    let nested = {
        let files = files.clone();
        move || {
            let inner = Router::new().files("/m/", files.clone()).nest("/k", Router::new().files("/", files.clone()));
            Router::new().files("/static", files.clone()).nest("/n", inner)
        }
    };
    both(at_root(files), |ask| {
        let moved = |target: &str, to: &str| {
            let answer = ask("GET", target, "");
            assert_eq!((answer.status, field(&answer, "location")), (301, Some(to)), "{target}");
        };
        check_body(&ask("GET", "/", ""), 200, "home");
        check_body(&ask("GET", "/?x", ""), 200, "home");
        check_body(&ask("GET", "/docs/", ""), 200, "docs");
        check_body(&ask("GET", "/old/", ""), 200, "old");
        check_body(&ask("GET", "/docs/index.html", ""), 200, "docs");
        check_body(&ask("GET", "/bare/", ""), 403, "403 Forbidden\n");
        check_body(&ask("GET", "/docs/index.html/", ""), 404, "404 Not Found\n");
        check_body(&ask("GET", "/docs/index.html/x", ""), 404, "404 Not Found\n");
        moved("/docs", "/docs/");
        moved("/docs?a=b&c", "/docs/?a=b&c");
        moved("/%64ocs", "/docs/");
        moved("//evil.example", "/evil.example");
        moved("/evil.example", "/evil.example/");
        moved("//evil.example/%2e%2e", "/");
        moved("/docs//index.html", "/docs/index.html");
        moved("/x/../docs/?q", "/docs/?q");
    });
    both(nested, |ask| {
        for target in ["/static", "/n/m", "/n/k"] {
            check_body(&ask("GET", &format!("{target}/"), ""), 200, "home");
            check_body(&ask("GET", &format!("{target}/docs/"), ""), 200, "docs");
            for (from, to) in [("", "/"), ("?q", "/?q"), ("/docs", "/docs/"), ("/docs?q", "/docs/?q")] {
                let answer = ask("GET", &format!("{target}{from}"), "");
                assert_eq!((answer.status, field(&answer, "location")), (301, Some(&*format!("{target}{to}"))));
            }
        }
        assert_eq!(ask("GET", "/", "").status, 404);
    });
}

#[test]
fn methods_that_files_do_not_have_are_refused() {
    let root = tree(&[("a", b"x")]);
    both(at_root(Files::new(root.path())), |ask| {
        let refused = ask("POST", "/a", "Content-Length: 0\r\n");
        assert_eq!((refused.status, field(&refused, "allow")), (405, Some("GET, HEAD, OPTIONS")));
        let options = ask("OPTIONS", "/a", "");
        assert_eq!((options.status, field(&options, "allow")), (204, Some("GET, HEAD, OPTIONS")));
    });
}

#[test]
fn fallback_and_error_pages_stand_in() {
    let root = tree(&[
        ("index.html", b"app"),
        ("a.js", b"js"),
        ("bare/x", b"x"),
        ("e/404.html", b"<p>none"),
        ("e/400", b"bad"),
    ]);
    let pages = |files: Files| files.error_page(404, "/e/404.html").error_page(400, "e/400").error_page(403, "e/nope");
    both(at_root(pages(Files::new(root.path()))), |ask| {
        for _ in 0..2 {
            let answer = ask("GET", "/nope", "Range: bytes=0-0\r\nIf-None-Match: *\r\n");
            check_body(&answer, 404, "<p>none");
            assert_eq!(field(&answer, "content-type"), Some("text/html; charset=utf-8"));
            assert_eq!((field(&answer, "etag"), field(&answer, "accept-ranges")), (None, None));
            check_body(&ask("GET", "/%zz", ""), 400, "bad");
            check_body(&ask("GET", "/bare/", ""), 403, "403 Forbidden\n");
        }
    });
    both(at_root(pages(Files::new(root.path()).fallback("/index.html"))), |ask| {
        for target in ["/nope", "/some/route", "/bare/", "/.git", "/nope/"] {
            let answer = ask("GET", target, "");
            check_body(&answer, 200, "app");
            assert!(field(&answer, "etag").is_some());
        }
        check_body(&ask("GET", "/a.js", ""), 200, "js");
        check_body(&ask("GET", "/%zz", ""), 400, "bad");
    });
}

// ---- the root ------------------------------------------------------------------------------------

#[test]
fn nothing_out_of_the_root_is_served() {
    let outer =
        tree(&[("secret", b"secret"), ("site/a", b"inside"), ("site/.env", b"hidden"), ("site/d/.x/y", b"hidden")]);
    let root = outer.path().join("site");
    put(&root, ".well-known/security.txt", b"known");
    symlink("../secret", root.join("up")).expect("a link");
    symlink(outer.path(), root.join("outer")).expect("a link");
    symlink("/etc/passwd", root.join("absolute")).expect("a link");
    symlink(root.join("a"), root.join("absolute-inside")).expect("a link");
    symlink("/proc/self/root/etc/passwd", root.join("magic")).expect("a link");
    symlink("d/../a", root.join("inside")).expect("a link");
    symlink("loop", root.join("loop")).expect("a link");
    symlink(".", root.join("here")).expect("a link");
    let _socket = UnixListener::bind(root.join("socket")).expect("a socket");
    let fifo = Command::new("mkfifo").arg(root.join("fifo")).status().expect("mkfifo is there");
    assert!(fifo.success());
    let long = format!("/{}", "x".repeat(300));
    let refused = [
        "/up",
        "/outer/secret",
        "/outer/",
        "/absolute",
        "/absolute-inside",
        "/magic",
        "/loop",
        "/socket",
        "/fifo",
        "/fifo/",
        "/.env",
        "/d/.x/y",
        "/%2eenv",
        "/..%2fsecret",
        "/a%2f..%2f..%2fsecret",
        "/d%2f..",
        "/a/",
        "/a%20",
        "/A",
        &long,
        "/here/up",
        "/a%5c..%5c..%5csecret",
        "/site/a",
    ];
    both(at_root(Files::new(&root).listing(true)), |ask| {
        for target in refused {
            check_body(&ask("GET", target, ""), 404, "404 Not Found\n");
        }
        for target in ["/../secret", "/%2e%2e/secret", "/d/../../secret", "/a%00", "/%", "/%c", "/a%zz"] {
            check_body(&ask("GET", target, ""), 400, "400 Bad Request\n");
        }
        check_body(&ask("GET", "/inside", ""), 200, "inside");
        check_body(&ask("GET", "/here/here/a", ""), 200, "inside");
        check_body(&ask("GET", "/.well-known/security.txt", ""), 200, "known");
    });
    both(at_root(Files::new(&root).symlinks(false)), |ask| {
        for target in ["/inside", "/here/a", "/up"] {
            check_body(&ask("GET", target, ""), 404, "404 Not Found\n");
        }
        check_body(&ask("GET", "/a", ""), 200, "inside");
    });
}

#[test]
fn names_may_be_any_bytes() {
    let root =
        tree(&[("a b+c&d.txt", b"1"), ("é", b"2"), ("100%", b"3"), ("q?x#y", b"4"), ("\\", b"5"), ("new\nline", b"6")]);
    put(root.path(), OsStr::from_bytes(b"\xff\xfe"), b"7");
    both(at_root(Files::new(root.path()).listing(true)), |ask| {
        for _ in 0..2 {
            for (target, body) in [
                ("/a%20b+c&d.txt", "1"),
                ("/a%20b%2Bc%26d.txt", "1"),
                ("/%C3%A9", "2"),
                ("/100%25", "3"),
                ("/q%3Fx%23y", "4"),
                ("/%5c", "5"),
                ("/\\", "5"),
                ("/new%0aline", "6"),
                ("/%ff%fe", "7"),
            ] {
                check_body(&ask("GET", target, ""), 200, body);
            }
        }
        let page = ask("GET", "/", "");
        let rows: Vec<_> =
            str::from_utf8(&page.body).expect("UTF-8").lines().filter(|row| row.starts_with("<li>")).collect();
        assert_eq!(rows[0], "<li><a href=\"./100%25\">100%</a>");
        // Every link leads to its file.
        let links = rows.iter().filter_map(|row| row.split('"').nth(1)).map(|href| href.replace("&amp;", "&"));
        let found: Vec<_> = links.map(|href| ask("GET", &href[1..], "").body).collect();
        assert_eq!(found.concat(), b"3516427", "{rows:?}");
    });
}

#[test]
fn listing_of_many_is_cut() {
    const SHOWN: usize = everycore::limits::LISTING_ENTRIES_MAX;
    let root = tree(&[("many/.hidden", b"")]);
    let many = root.path().join("many");
    fs::create_dir(many.join("dir")).expect("a directory");
    for at in 0..SHOWN - 1 {
        File::create(many.join(format!("f{at:05}"))).expect("a file");
    }
    let live = Live::start(1, at_root_of_shard(Files::new(root.path()).listing(true)));
    let page = || String::from_utf8(live.get("/many/").body).expect("UTF-8");
    let whole = page();
    assert_eq!((whole.matches("<li>").count(), whole.contains("There is more")), (SHOWN + 1, false));
    assert!(
        whole
            .contains("<h1>Index of /many/</h1>\n<ul>\n<li><a href=\"../\">../</a>\n<li><a href=\"./dir/\">dir/</a>\n")
    );
    File::create(many.join("one more")).expect("a file");
    let cut = page();
    assert_eq!((cut.matches("<li>").count(), cut.contains("There is more: only 10000 entries")), (SHOWN + 1, true));
}

fn at_root_of_shard(files: Files) -> impl Fn(everycore::Shard) -> Router + Send + Sync + 'static {
    move |_| Router::new().files("/", files.clone())
}

#[test]
fn root_that_is_none_is_a_problem_of_the_routes() {
    let root = tree(&[("file", b"x")]);
    let problem = |router: Router| router.build().expect_err("it cannot be served");
    let missing = problem(Router::new().files("/static", Files::new(root.path().join("nope"))));
    assert!(matches!(missing.problems(), [RouteProblem::Files { path, .. }] if path == "/static"));
    let expected = format!(
        "the files cannot be served: files at `/static`: expected a directory at {}: No such file or directory (os error 2)",
        root.path().join("nope").display()
    );
    assert_eq!(missing.to_string(), expected);
    let file = problem(Router::new().files("/", Files::new(root.path().join("file"))));
    assert!(file.to_string().ends_with("Not a directory (os error 20)"), "{file}");
    let wrong =
        Files::new(root.path()).index("a/b").cache_control("[", "x").cache_control("*", "\n").error_page(200, "x");
    assert_eq!(problem(Router::new().files("/", wrong)).problems().len(), 4);
}

#[test]
fn new_release_takes_the_place_of_the_old() {
    let releases = tree(&[("1/a", b"one"), ("2/a", b"two")]);
    let current = releases.path().join("current");
    symlink("1", &current).expect("a link");
    let live = Live::start(1, at_root_of_shard(Files::new(&current)));
    check_body(&live.get("/a"), 200, "one");
    symlink("2", releases.path().join("next")).expect("a link");
    fs::rename(releases.path().join("next"), &current).expect("it is swapped");
    wait_until("the new release is served", || live.get("/a").body == b"two");
}

// ---- memory --------------------------------------------------------------------------------------

#[test]
fn small_files_are_served_from_memory_until_they_change() {
    let root = tree(&[("a", b"one"), ("b", &noise(300_000))]);
    let live = Live::start(1, at_root_of_shard(Files::new(root.path())));
    let counts = || {
        let files = live.stats().total.files;
        (files.cache_hits, files.cache_misses)
    };
    check_body(&live.get("/a"), 200, "one");
    assert_eq!(counts(), (0, 1));
    let kept = live.stats().total.files.cached_bytes;
    // A shard's second may end in between; so far it is served from memory.
    check_body(&live.get("/a"), 200, "one");
    assert_eq!(counts().0 + counts().1, 2);
    wait_until("it is served from memory", || {
        check_body(&live.get("/a"), 200, "one");
        counts().0 > 0
    });
    assert_eq!(live.stats().total.files.cached_bytes, kept);
    // What is larger is not kept: only what is known of it.
    assert_eq!(live.get("/b").body.len(), 300_000);
    let more = live.stats().total.files.cached_bytes - kept;
    assert!(more > 0 && more < 10_000, "{more}");

    put(root.path(), "a", b"other"); // as old as before, but longer
    wait_until("the change is seen", || live.get("/a").body == b"other");
    fs::remove_file(root.path().join("a")).expect("it is there");
    wait_until("it is gone", || live.get("/a").status == 404);
    put(root.path(), "a", b"again");
    check_body(&live.get("/a"), 200, "again");
}

#[test]
fn change_whose_time_was_set_back_is_seen() {
    let root = tree(&[]);
    let path = root.path().join("a");
    fs::write(&path, "one").expect("a file");
    let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
    let live = Live::start(1, at_root_of_shard(Files::new(root.path())));
    check_body(&live.get("/a"), 200, "one");
    fs::write(&path, "two").expect("a file");
    File::options().write(true).open(&path).and_then(|file| file.set_modified(modified)).expect("its time is set");
    wait_until("the change is seen", || live.get("/a").body == b"two");
}

#[test]
fn memory_for_files_is_bounded() {
    let content = noise(100_000);
    let names: Vec<_> = (0..40).map(|at| format!("f{at}")).collect();
    let root = tree(&names.iter().map(|name| (name.as_str(), content.as_slice())).collect::<Vec<_>>());
    let live = Live::start(1, at_root_of_shard(Files::new(root.path()).cache_bytes(1_000_000)));
    for _ in 0..2 {
        for name in &names {
            assert!(live.get(&format!("/{name}")).body == content);
        }
    }
    let files = live.stats().total.files;
    assert!(files.cached_bytes <= 1_000_000 && files.cached_bytes > 500_000, "{files:?}");
    assert!(files.cache_evictions >= 30, "{files:?}");
}

#[test]
fn file_in_memory_is_answered_without_an_allocation() {
    let root = tree(&[("index.html", b"home"), ("a.css", b"a{}"), ("a.css.br", b"br")]);
    let app: App = Router::new().files("/", Files::new(root.path())).build().expect("no conflicts");
    let request = |target: &str, fields: &[(&str, &str)]| {
        let builder = Request::builder(Method::GET, target);
        fields.iter().fold(builder, |builder, (name, value)| builder.header(name, value)).body(()).expect("a request")
    };
    let accept: &[(&str, &str)] = &[("accept-encoding", "gzip, br"), ("user-agent", "x")];
    let since: &[(&str, &str)] = &[("if-modified-since", DATE)];
    for (target, fields, status) in [("/", &[][..], 200), ("/a.css", accept, 200), ("/a.css?x", since, 304)] {
        futures_lite::future::block_on(app.handle(request(target, fields)).into_future());
        drop(app.handle(request(target, fields)));
        let request = request(target, fields);
        let mut reply = None;
        let made = allocation_counter::measure(|| reply = Some(app.handle(request)));
        // On a machine so slow that a second went by, it looks at the disk again.
        if let Some(Reply::Ready(response)) = reply {
            assert_eq!((response.status().as_u16(), made.count_total), (status, 0), "{target}");
        }
    }
}

// ---- while it is sent ----------------------------------------------------------------------------

#[test]
fn large_file_arrives_whole_and_the_connection_is_kept() {
    let content = noise(5_000_001);
    let root = tree(&[("large", &content), ("a", b"small")]);
    let live = Live::start(1, at_root_of_shard(Files::new(root.path())));
    let mut connection = Raw::connect(live.http);
    // Pipelined, behind and before others.
    connection.send(
        [head("GET", "/a", ""), head("GET", "/large", ""), head("HEAD", "/large", ""), head("GET", "/a", "")].concat(),
    );
    check_body(&connection.response("GET"), 200, "small");
    assert!(connection.response("GET").body == content);
    assert_eq!(field(&connection.response("HEAD"), "content-length"), Some("5000001"));
    check_body(&connection.response("GET"), 200, "small");
    assert!(connection.exchange(head("GET", "/large", "")).body == content);
}

#[test]
fn large_file_is_sent_from_the_page_cache_once_it_was_read() {
    const SIZE: usize = (1 << 20) + 4321;
    let content: Vec<u8> = (0..SIZE).map(|at| (at * 7 % 251) as u8).collect();
    let root = tree(&[]);
    fs::write(root.path().join("f"), &content).expect("a file");
    let live = Live::start(1, at_root_of_shard(Files::new(root.path())));
    let mut connection = Raw::connect(live.http);
    let uncopied = || live.stats().total.files.sent_uncopied;
    assert!(connection.exchange(head("GET", "/f", "")).body == content);
    // A file that changed just now has a new state each time; one that rests is remembered.
    loop {
        let before = uncopied();
        assert!(connection.exchange(head("GET", "/f", "")).body == content);
        if uncopied() == before + SIZE as u64 {
            break;
        }
    }
    // In parts, whose beginnings and ends are in the middle of what is remembered.
    let parts = connection.exchange(head("GET", "/f", "Range: bytes=5-200000, 300000-300000, -70000\r\n"));
    let found = |part: &[u8]| parts.body.windows(part.len().min(4096)).any(|window| part.starts_with(window));
    assert_eq!(parts.status, 206);
    for range in [5..200_001, 300_000..300_001, SIZE - 70_000..SIZE] {
        assert!(found(&content[range.clone()]), "{range:?}");
    }
    let part = connection.exchange(head("GET", "/f", "Range: bytes=65537-1000000\r\n"));
    assert!(part.body == content[65_537..=1_000_000]);
}

#[test]
fn file_that_shrinks_breaks_off_and_one_that_grows_does_not() {
    const SIZE: u64 = 64 << 20;
    let root = tree(&[]);
    let path = root.path().join("f");
    let resize = |size: u64| {
        let file = File::options().write(true).create(true).truncate(false).open(&path).expect("a file");
        file.set_len(size).expect("a sparse file");
    };
    let live = Live::start(1, at_root_of_shard(Files::new(root.path())));

    let uncopied = || live.stats().total.files.sent_uncopied;
    // Read while it is sent; then, once it rests, sent from the page cache.
    for (is_known, broken_off) in [(false, 1), (true, 2)] {
        resize(SIZE);
        let mut connection = Raw::connect(live.http);
        if is_known {
            wait_until("it is sent uncopied", || {
                let before = uncopied();
                assert_eq!(connection.exchange(head("GET", "/f", "")).body.len() as u64, SIZE);
                uncopied() == before + SIZE
            });
        }
        let before = uncopied();
        connection.send(head("GET", "/f", ""));
        connection.octets(1000);
        resize(1 << 20);
        let received = connection.until_close().len() as u64;
        assert!(received < SIZE, "{received}");
        assert_eq!(live.stats().total.files.broken_off, broken_off);
        assert_eq!(uncopied() > before, is_known);
    }

    resize(SIZE);
    let mut connection = Raw::connect(live.http);
    connection.send(head("GET", "/f", ""));
    connection.octets(1000);
    resize(SIZE + 1000);
    let start = connection.received_bytes();
    while connection.received_bytes() < SIZE {
        let step = (SIZE - connection.received_bytes()).min(1 << 20) as usize;
        connection.octets(step.max(1));
    }
    assert!(start > 0);
    // Whatever of the first answer is left, the second comes right behind it.
    connection.send(head("GET", "/nope", "Connection: close\r\n"));
    let rest = connection.until_close();
    let zeros = rest.iter().take_while(|byte| **byte == 0).count();
    assert!(rest[zeros..].starts_with(b"HTTP/1.1 404 Not Found\r\n"));
    assert_eq!(live.stats().total.files.broken_off, 2);
}

#[test]
fn files_are_closed_after_they_were_sent() {
    let root = tree(&[("large", &noise(1_000_000)), ("a", b"small")]);
    let live = Live::with(server(1), at_root_of_shard(Files::new(root.path())));
    live.get("/large");
    wait_until("idle", || live.stats().total.connections.active == 0);
    let open = || {
        let links = fs::read_dir("/proc/self/fd")
            .expect("it is ours")
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|path| path.starts_with(root.path()) && *path != root.path()).count()
    };
    for _ in 0..20 {
        live.get("/large");
        live.get("/a");
        // One that goes away in the middle.
        let mut connection = Raw::connect(live.http);
        connection.send(head("GET", "/large", ""));
        connection.octets(10);
    }
    wait_until("every file is closed", || open() == 0);
}

// ---- the program ---------------------------------------------------------------------------------

#[cfg(feature = "cli")]
mod program {
    use super::*;
    use common::server::Server;
    use std::{
        fs::Permissions,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

    #[test]
    fn roots_take_the_place_of_the_demo() {
        let root = tree(&[("index.html", b"home"), ("404.html", b"none"), ("s/a.css", b"a{}"), ("x.log", b"log")]);
        let docs = tree(&[("start.html", b"start"), ("b", b"b")]);
        let (root, docs) = (root.path().display().to_string(), format!("/docs={}", docs.path().display()));
        let server = Server::start(&[
            "--root",
            &root,
            "--root",
            &docs,
            "--index",
            "index.html,start.html",
            "--error-page",
            "404=404.html",
            "--cache-control",
            "s/**=max-age=60, public",
            "--mime",
            "log=text/plain; charset=utf-8",
            "--symlinks",
            "never",
            "--no-precompressed",
        ]);
        let get = |target: &str| common::live::get(server.http, target);
        check_body(&get("/"), 200, "home");
        check_body(&get("/docs/"), 200, "start");
        check_body(&get("/docs/b"), 200, "b");
        check_body(&get("/yo"), 404, "none");
        assert_eq!(field(&get("/docs"), "location"), Some("/docs/"));
        assert_eq!(field(&get("/s/a.css"), "cache-control"), Some("max-age=60, public"));
        assert_eq!(field(&get("/x.log"), "content-type"), Some("text/plain; charset=utf-8"));
        for endpoint in ["/livez", "/readyz", "/healthz", "/__stats", "/metrics"] {
            assert_eq!(get(endpoint).status, 200, "{endpoint}");
        }
    }

    /// `everycore serve` with these flags, as a user who may not read everything.
    fn start_unprivileged(flags: &[&str], copy_to: &Path) -> Server {
        let built = Path::new(env!("CARGO_BIN_EXE_everycore"));
        let serve = ["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--pin", "off"];
        let is_root = fs::metadata("/proc/self").expect("it is there").uid() == 0;
        let mut command = match is_root {
            false => Command::new(built),
            true => {
                // The build's directory may not be for everybody.
                let program = copy_to.join("everycore");
                fs::copy(built, &program).expect("it is copied");
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
                command
            }
        };
        command.args(serve).args(flags);
        Server::launch(command)
    }

    #[test]
    fn what_may_not_be_read_is_forbidden() {
        if Command::new("setpriv").arg("--version").output().is_err() {
            return println!("skipped: setpriv not installed");
        }
        let root = tree(&[
            ("file", b"x"),
            ("open", b"y"),
            ("closed/a", b"z"),
            ("passable/a", b"through"),
            ("403.html", b"no"),
        ]);
        let modes = [("", 0o755), ("file", 0o200), ("closed", 0o600), ("passable", 0o311)];
        let set = |name: &str, mode| fs::set_permissions(root.path().join(name), Permissions::from_mode(mode));
        modes.iter().for_each(|(name, mode)| set(name, *mode).expect("it is ours"));
        let copy = tempfile::tempdir().expect("a directory");
        fs::set_permissions(copy.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let path = root.path().display().to_string();
        let server = start_unprivileged(&["--root", &path, "--listing", "--error-page", "403=403.html"], copy.path());
        let get = |target: &str| common::live::get(server.http, target);
        for target in ["/file", "/closed/a", "/passable/"] {
            check_body(&get(target), 403, "no");
        }
        check_body(&get("/passable/a"), 200, "through");
        assert_eq!(field(&get("/passable"), "location"), Some("/passable/"));
        check_body(&get("/open"), 200, "y");
        set("open", 0o200).expect("it is ours");
        wait_until("the change is seen", || get("/open").status == 403);
        modes.iter().for_each(|(name, _)| set(name, 0o755).expect("it is ours")); // for whoever cleans up
    }

    #[test]
    fn slow_downloads_take_bounded_memory() {
        const DOWNLOADS: usize = 60;
        let root = tree(&[]);
        File::create(root.path().join("f")).and_then(|file| file.set_len(100 << 20)).expect("a sparse file");
        let server = Server::start(&["--root", &root.path().display().to_string()]);
        let writing = || -> u64 {
            let stats = common::live::get(server.http, "/__stats").body;
            let stats: serde_json::Value = serde_json::from_slice(&stats).expect("JSON");
            stats["total"]["connections"]["writing"].as_u64().expect("a number")
        };
        let begin = || {
            let mut connection = Raw::connect(server.http);
            connection.send(head("GET", "/f", ""));
            connection.octets(1000);
            connection
        };
        let first = begin();
        assert!(writing() > 0);
        let before = common::live::rss_kib(server.pid());
        let others: Vec<_> = (1..DOWNLOADS).map(|_| begin()).collect();
        wait_until("all are on their way", || writing() >= DOWNLOADS as u64);
        let grown = common::live::rss_kib(server.pid()).saturating_sub(before);
        let allowed = (DOWNLOADS * everycore::limits::DOWNLOAD_BYTES_MAX / 1024) as u64;
        assert!(grown <= allowed + 2048, "{grown} KiB for {DOWNLOADS} downloads");
        drop((first, others));
    }

    #[test]
    fn without_descriptors_the_answer_is_503() {
        if Command::new("prlimit").arg("--version").output().is_err() {
            return println!("skipped: prlimit not installed");
        }
        let root = tree(&[("a", b"a"), ("b", b"b")]);
        let server = Server::start(&["--root", &root.path().display().to_string()]);
        let mut connection = Raw::connect(server.http);
        check_body(&connection.exchange(head("GET", "/a", "")), 200, "a");
        let limit = |soft: String| {
            let set =
                Command::new("prlimit").args([format!("--pid={}", server.pid()), format!("--nofile={soft}:")]).status();
            assert!(set.is_ok_and(|status| status.success()));
        };
        wait_until("what was open is closed", || descriptors(server.pid()) > 0);
        limit("3".to_owned());
        let refused = connection.exchange(head("GET", "/b", ""));
        assert_eq!((refused.status, field(&refused, "retry-after")), (503, Some("1")));
        limit("1024".to_owned());
        check_body(&connection.exchange(head("GET", "/b", "")), 200, "b");
    }

    #[test]
    fn what_makes_no_sense_is_refused_at_the_start() {
        let root = tree(&[("a", b"a")]);
        let root = root.path().display().to_string();
        for (flags, said) in [
            (vec!["--root", "/nonexistent/x"], "files at `/`: expected a directory at /nonexistent/x: No such file"),
            (
                vec!["--root", &root, "--error-page", "404=no.html"],
                "--error-page 404=no.html: expected a file beneath a --root",
            ),
            (vec!["--root", &root, "--error-page", "204=a"], "expected the status of an error, 400 to 599"),
            (vec!["--root", &root, "--cache-control", "x"], "expected a name, = and a value"),
            (vec!["--root", &root, "--index", "a/b"], "expected the name of an index file, got \"a/b\""),
        ] {
            let mut program = Command::new(env!("CARGO_BIN_EXE_everycore"));
            let program =
                program.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--pin", "off"]).args(&flags);
            let mut child = program.stderr(std::process::Stdio::piped()).spawn().expect("the built program runs");
            let mut error = String::new();
            child.stderr.take().expect("piped").read_to_string(&mut error).expect("text");
            assert_eq!(child.wait().expect("it ends").code(), Some(2), "{flags:?}: {error}");
            assert!(error.contains(said), "{flags:?}: {error}");
        }
    }
}
