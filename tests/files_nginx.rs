//! nginx as oracle: the same tree and the same requests, and every difference in status, fields or bytes either on the
//! list below, with its reason, or a fault.

mod common;

use common::{
    response::Response,
    server::Server,
    tree::{Tree, answer, encode, noise, request, tcp, unix},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Where we mean to differ: group of requests, or the status that both answer with (`*`: any); what differs; ours;
/// nginx's (`*`: whatever it is); and why. An entry that no request needs is a fault too.
#[rustfmt::skip]
const DIFFERENCES: &[(&str, &str, &str, &str, &str)] = &[
    // What a file is.
    ("type js", "content-type", "text/javascript; charset=utf-8", "application/javascript", "RFC 9239: the others are obsolete"),
    ("type js", "content-type", "text/javascript; charset=utf-8", "application/octet-stream", "nginx 1.22 knows no .mjs, which browsers then refuse to run"),
    ("type gz", "content-type", "application/gzip", "application/octet-stream", "RFC 6713; nginx's table has no .gz"),
    // What is said of it.
    ("200", "vary", "Accept-Encoding", "", "wherever a sibling may be put, also before it is there: caches remember what they are told now"),
    ("206", "vary", "Accept-Encoding", "", "as above"),
    ("304", "vary", "Accept-Encoding", "", "as above; RFC 9110 §15.4.5"),
    ("404", "vary", "", "Accept-Encoding", "nginx says it of the .gz that it did not send"),
    ("304", "last-modified", "", SAME, "RFC 9110 §15.4.5: not needed beside an entity tag"),
    ("206", "accept-ranges", "bytes", "", "true of a part as of the whole, RFC 9110 §14.3"),
    // Paths.
    ("index is a directory", "status", "403", "301", "what is no file is no index; nginx sends the client into it"),
    ("dot segments", "status", "301", "200", "one spelling a file, so that what a proxy or a middleware checked is what is served"),
    ("empty segments", "status", "301", "200", "as above"),
    ("escaped slash", "status", "404", "200", "an escaped slash is no separator (RFC 3986 §2.2): whoever checked the path took it for a name"),
    ("above the root", "status", "404", "400", "of /..%2fx, which is one strange name, for the same reason"),
    // Conditions.
    ("If-None-Match with a date", "status", "304", "200", "RFC 9110 §13.1.3: the date is ignored beside If-None-Match; nginx wants both to hold"),
    ("If-Match with a date", "status", "200", "412", "RFC 9110 §13.1.4: the date is ignored beside If-Match"),
    ("odd date", "status", "200", "412", "RFC 9110 §13.1.4: what is no date is ignored"),
    ("odd date", "status", "200", "304", "RFC 9110 §13.1.3: a date without GMT is none"),
    ("malformed tag", "status", "304", "200", "the tag is there, whatever follows it"),
    // Ranges.
    ("range", "status", "206", "416", "more digits than 63 bits hold are a number all the same"),
    ("huge range", "status", "206", "416", "as above"),
    ("invalid range", "status", "200", "416", "RFC 9110 §14.2: a malformed field is ignored"),
    ("invalid range", "status", "206", "416", "RFC 9110 §5.6.1: empty elements of a list are tolerated"),
    ("invalid range", "status", "200", "206", "RFC 9110 §14.1.1: no part of a malformed set is served"),
    ("range of nothing", "status", "200", "416", "nothing has no parts: the field is ignored, as nginx does too for most"),
    ("ranges of nothing", "status", "200", "416", "as above"),
    ("head of a range", "status", "200", "206", "RFC 9110 §14.2: Range is for GET"),
    ("head of a range", "status", "200", "416", "as above"),
    // Codings.
    ("only compressed", "status", "404", "200", "a sibling stands for a file that is there: HEAD, ranges and validators are of one resource"),
    ("precompressed, other words", "content-encoding", "gzip", "", "RFC 9110 §12.5.3 and §8.4.1.3: `*` and x-gzip mean it too"),
    ("precompressed, other words", "content-length", "*", "*", "as above"),
    ("precompressed, other words", "body", "*", "*", "as above"),
    ("precompressed", "accept-ranges", "bytes", "", "the sibling is a file with a strong entity tag of its own: a part of it is a part of it"),
    ("range of precompressed", "status", "206", "200", "as above"),
    ("range of precompressed", "status", "416", "200", "as above"),
    // Methods.
    ("method", "status", "204", "405", "OPTIONS says what is allowed"),
    ("method absent", "status", "204", "405", "as above; it is answered without a look at the disk"),
    ("method absent", "status", "405", "404", "no file could have taken it: no look at the disk either"),
    ("method", "status", "501", "405", "RFC 9110 §9.1: a method that nothing here has"),
    ("method absent", "status", "501", "405", "as above"),
];

/// Fields that are compared. Of an entity tag and a Date only the form can be.
const FIELDS: [&str; 9] = [
    "content-type",
    "content-length",
    "content-range",
    "content-encoding",
    "accept-ranges",
    "last-modified",
    "etag",
    "location",
    "vary",
];

// ---- nginx -----------------------------------------------------------------------------------------

struct Nginx {
    child: Child,
    socket: PathBuf,
}

impl Nginx {
    /// `None`: it is not installed.
    fn start(tree: &Tree) -> Option<Self> {
        let around = tree.around();
        let socket = around.join("nginx.sock");
        let at = |name: &str| around.join(name).display().to_string();
        // One process without a master, as whoever runs the test; nothing outside the temporary directory.
        let config = format!(
            r#"
daemon off; master_process off; worker_processes 1; pid {pid}; error_log {log} crit;
events {{ worker_connections 256; }}
http {{
    access_log off; server_tokens off; sendfile on; etag on; absolute_redirect off;
    client_body_temp_path {tmp}; proxy_temp_path {tmp}; fastcgi_temp_path {tmp}; uwsgi_temp_path {tmp}; scgi_temp_path {tmp};
    include /etc/nginx/mime.types; default_type application/octet-stream;
    charset utf-8; charset_types text/plain text/css text/csv text/markdown text/javascript text/xml;
    gzip_static on; gzip_vary on; if_modified_since before;
    server {{
        listen unix:{socket};
        root {root}; index index.html;
        location ~ "/\.(?!well-known(/|$))" {{ return 404; }}
        location / {{ }}
    }}
}}
"#,
            pid = at("nginx.pid"),
            log = at("nginx.log"),
            tmp = at("nginx.tmp"),
            socket = socket.display(),
            root = tree.root_flag(),
        );
        fs::write(around.join("nginx.conf"), config).expect("it is ours");
        let mut command = Command::new("nginx");
        command.arg("-e").arg(at("nginx.log")).arg("-c").arg(around.join("nginx.conf")).arg("-p").arg(around);
        let child = command.stdin(Stdio::null()).spawn().ok()?;
        let mut nginx = Nginx { child, socket };
        let until = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(&nginx.socket).is_err() {
            let ended = nginx.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "nginx ended: {}", fs::read_to_string(at("nginx.log")).unwrap_or_default());
            assert!(Instant::now() < until, "nginx does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- what is served, and what is asked ---------------------------------------------------------------

const SIZES: [usize; 9] = [0, 1, 2, 10, 1000, 4096, 65_536, 70_001, 2_000_003];

const NAMES: [&str; 46] = [
    "a.html",
    "a.htm",
    "a.css",
    "a.js",
    "a.mjs",
    "a.json",
    "a.txt",
    "a.svg",
    "a.png",
    "a.jpg",
    "a.jpeg",
    "a.gif",
    "a.webp",
    "a.ico",
    "a.woff",
    "a.woff2",
    "a.wasm",
    "a.xml",
    "a.pdf",
    "a.mp4",
    "a.webm",
    "a.mp3",
    "a.zip",
    "a.tar.gz",
    "a.bin",
    "a.unheard-of",
    "none",
    "A.HTML",
    "a b.txt",
    "ü.txt",
    "100%.txt",
    "q?.txt",
    "h#.txt",
    "s;p.txt",
    "plus+.txt",
    "tilde~.txt",
    "quote'.txt",
    "double\".txt",
    "amp&.txt",
    "back\\slash.txt",
    "star*.txt",
    "colon:.txt",
    "at@.txt",
    "a..b.txt",
    "trailing.",
    "less<.txt",
];

fn grow(tree: &Tree) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut put = |path: &str, content: Vec<u8>| {
        tree.put(path, content);
        files.push(path.into());
    };
    for size in SIZES {
        put(&format!("size/{size}.bin"), noise(size as u64, size));
    }
    for (at, name) in NAMES.iter().enumerate() {
        put(&format!("name/{name}"), noise(at as u64, 100 + at));
    }
    put("index.html", b"<p>home".to_vec());
    put("with/index.html", b"<p>with".to_vec());
    put("with/deep/er/index.html", b"<p>deep".to_vec());
    put("with a space/index.html", b"<p>space".to_vec());
    put("ä/index.html", b"<p>umlaut".to_vec());
    put("without/file.txt", b"file".to_vec());
    put("index-is-directory/index.html/x.txt", b"x".to_vec());
    put(".hidden", b"hidden".to_vec());
    put(".git/config", b"hidden".to_vec());
    put("with/.env", b"hidden".to_vec());
    put(".well-known/security.txt", b"Contact: x".to_vec());
    put("pre/app.css", b"p { color: red }".repeat(20));
    put("pre/app.css.gz", b"not really gzip, but who looks".to_vec());
    put("pre/large.css", noise(1, 300_000));
    put("pre/large.css.gz", noise(2, 100_000));
    put("pre/only.txt.gz", b"only compressed".to_vec());
    put("pre/picture.png", noise(3, 500));
    files
}

struct Case {
    group: &'static str,
    method: &'static str,
    target: String,
    /// `{etag}` is each server's own for `/size/1000.bin`.
    fields: Vec<(&'static str, String)>,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(
        &mut self,
        group: &'static str,
        method: &'static str,
        target: impl Into<String>,
        fields: &[(&'static str, &str)],
    ) {
        let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.0.push(Case { group, method, target: target.into(), fields });
    }

    fn both(&mut self, group: &'static str, target: impl Into<String>, fields: &[(&'static str, &str)]) {
        let target = target.into();
        self.add(group, "GET", target.clone(), fields);
        self.add(group, "HEAD", target, fields);
    }
}

const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const LATER: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

fn cases(files: &[PathBuf]) -> Vec<Case> {
    let mut cases = Cases::default();
    for file in files {
        let is_hidden = file.components().any(|part| {
            let name = part.as_os_str().to_string_lossy().into_owned();
            name.starts_with('.') && name != ".well-known"
        });
        let group = match file.extension().and_then(|extension| extension.to_str()) {
            _ if is_hidden => "hidden",
            Some("js" | "mjs") => "type js",
            Some("gz") => "type gz",
            _ => "file",
        };
        cases.both(group, format!("/{}", encode(file)), &[]);
    }
    paths(&mut cases);
    conditions(&mut cases);
    ranges(&mut cases);
    codings(&mut cases);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        cases.add("method", method, "/size/10.bin", &[("Content-Length", "0")]);
        cases.add("method absent", method, "/absent", &[("Content-Length", "0")]);
    }
    cases.0
}

fn paths(cases: &mut Cases) {
    for directory in
        ["/", "/with", "/with/", "/with/deep", "/with/deep/er/", "/with%20a%20space", "/%C3%A4", "/%c3%a4/"]
    {
        cases.both("directory", directory, &[]);
        cases.both("directory", format!("{directory}?a=b&c"), &[]);
    }
    for without in ["/without", "/without/", "/size/"] {
        cases.both("no index", without, &[]);
    }
    cases.both("index is a directory", "/index-is-directory/", &[]);
    for absent in [
        "/absent",
        "/absent/",
        "/with/absent",
        "/size/10.bi",
        "/size/10.bin.",
        "/Size/10.bin",
        "/with/deep/er/index.htm",
    ] {
        cases.both("absent", absent, &[]);
    }
    for beneath_file in ["/size/10.bin/", "/size/10.bin/x", "/index.html/"] {
        cases.both("beneath a file", beneath_file, &[]);
    }
    for target in ["/size/10.bin?", "/size/10.bin?x=%00", "/size/10.bin?a/../b", "/%73ize/10%2Ebin", "/size/10.bin?//"]
    {
        cases.both("other spelling", target, &[]);
    }
    for dots in [
        "/with/../size/10.bin",
        "/./size/10.bin",
        "/with/deep/../../size/10.bin",
        "/size/./10.bin",
        "/with/%2e%2e/size/10.bin",
    ] {
        cases.both("dot segments", dots, &[]);
    }
    for slashes in ["//size/10.bin", "/size//10.bin", "/size///10.bin", "//with//"] {
        cases.both("empty segments", slashes, &[]);
    }
    for above in ["/..", "/../", "/../x", "/with/../../x", "/%2e%2e/x", "/..%2fx"] {
        cases.both("above the root", above, &[]);
    }
    for broken in ["/%", "/%4", "/%zz", "/a%00b", "/size/10.bin%00"] {
        cases.both("malformed", broken, &[]);
    }
    for slash in ["/size%2f10.bin", "/size%2F10.bin", "/with%2f"] {
        cases.both("escaped slash", slash, &[]);
    }
    cases.both("long name", format!("/{}", "n".repeat(255)), &[]);
    cases.both("long name", format!("/{}", "n".repeat(256)), &[]);
    cases.both("long name", format!("/{}", "n/".repeat(2000)), &[]);
}

fn conditions(cases: &mut Cases) {
    let file = "/size/1000.bin";
    let tags = [
        "{etag}",
        "W/{etag}",
        "\"other\"",
        "W/\"other\"",
        "\"a\", {etag}",
        "{etag}, \"a\"",
        "\"a\",W/{etag} , \"b\"",
        "*",
    ];
    let dates = [SAME, EARLIER, LATER];
    for tag in tags {
        cases.both("If-None-Match", file, &[("If-None-Match", tag)]);
        cases.both(if tag.contains("W/") { "If-Match weak" } else { "If-Match" }, file, &[("If-Match", tag)]);
        for date in dates {
            cases.both("If-None-Match with a date", file, &[("If-None-Match", tag), ("If-Modified-Since", date)]);
            let group = if tag.contains("W/") { "If-Match weak" } else { "If-Match with a date" };
            cases.both(group, file, &[("If-Match", tag), ("If-Unmodified-Since", date)]);
        }
        cases.both("both tags", file, &[("If-Match", "{etag}"), ("If-None-Match", tag)]);
    }
    for date in dates {
        cases.both("If-Modified-Since", file, &[("If-Modified-Since", date)]);
        cases.both("If-Unmodified-Since", file, &[("If-Unmodified-Since", date)]);
    }
    for date in [
        "",
        "yesterday",
        "0",
        "Sun, 06 Nov 1994 08:49:37",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ] {
        cases.both("odd date", file, &[("If-Modified-Since", date)]);
        cases.both("odd date", file, &[("If-Unmodified-Since", date)]);
    }
    for tag in ["", "other", "\"unclosed", "{etag}x"] {
        cases.both("malformed tag", file, &[("If-None-Match", tag)]);
    }
    for absent in ["If-None-Match", "If-Match"] {
        cases.both("condition on what is absent", "/absent", &[(absent, "*")]);
        cases.both("condition on a directory", "/with", &[(absent, "\"x\"")]);
    }
    cases.both("conditional index", "/", &[("If-Modified-Since", SAME)]);
    cases.both("conditional index", "/with/", &[("If-Modified-Since", LATER)]);
    cases.add("range and condition", "GET", file, &[("Range", "bytes=0-9"), ("If-None-Match", "{etag}")]);
    cases.add("range and condition", "GET", file, &[("Range", "bytes=0-9"), ("If-None-Match", "\"x\"")]);
    cases.add("range and condition", "GET", file, &[("Range", "bytes=0-9"), ("If-Match", "{etag}")]);
    cases.add("range and condition", "GET", file, &[("Range", "bytes=0-9"), ("If-Match", "\"x\"")]);
    cases.add("range and condition", "GET", file, &[("Range", "bytes=0-9"), ("If-Modified-Since", SAME)]);
    for validator in ["{etag}", "W/{etag}", "\"other\"", SAME, EARLIER, LATER, "odd", ""] {
        let group = if validator.is_empty() { "If-Range empty" } else { "If-Range" };
        cases.add(group, "GET", file, &[("Range", "bytes=10-19"), ("If-Range", validator)]);
        cases.add(group, "GET", file, &[("Range", "bytes=5000-"), ("If-Range", validator)]);
    }
}

fn ranges(cases: &mut Cases) {
    let single = [
        "0-0",
        "0-",
        "0-9",
        "1-1",
        "5-",
        "9-9",
        "9-",
        "10-",
        "10-10",
        "11-20",
        "-1",
        "-5",
        "-10",
        "-11",
        "-1000000",
        "999-999",
        "1000-",
        "0-999",
        "0-1000",
        "500-99999999",
        "70000-70000",
        "65535-65536",
        "65536-",
        "1999999-2000002",
        "0-18446744073709551615",
        "-9223372036854775807",
    ];
    let several = [
        "0-0,2-2",
        "0-1, 5-6",
        "0-0,-1",
        "1-2,  4-5 ,7-8",
        "0-3,2-5",
        "5-6,0-1",
        "0-0,9999999-",
        "9999999-,0-0",
        "1-1,1-1",
    ];
    let invalid = [
        "", "-", "a-b", "5-4", "0-1-2", "0", "+0-1", "0-1,", ",0-1", "0--1", "0x0-1", "1-a", "0-0,5-4", "0 - 1",
        "0-1;x", "--1",
    ];
    for size in SIZES {
        let file = format!("/size/{size}.bin");
        for range in single {
            cases.add(
                if size == 0 { "range of nothing" } else { "range" },
                "GET",
                &file,
                &[("Range", &format!("bytes={range}"))],
            );
        }
        for range in several {
            cases.add(
                if size == 0 { "ranges of nothing" } else { "ranges" },
                "GET",
                &file,
                &[("Range", &format!("bytes={range}"))],
            );
        }
    }
    for file in ["/size/10.bin", "/size/70001.bin"] {
        for range in invalid {
            cases.add("invalid range", "GET", file, &[("Range", &format!("bytes={range}"))]);
        }
        for value in
            ["lines=0-1", "bytes 0-1", "0-1", "Bytes=0-1", "BYTES=0-1", "bytes= 0-1", "bytes =0-1", "bytes:0-1"]
        {
            cases.add("range unit", "GET", file, &[("Range", value)]);
        }
        cases.add("suffix of nothing", "GET", file, &[("Range", "bytes=-0")]);
        cases.add("head of a range", "HEAD", file, &[("Range", "bytes=0-4")]);
        cases.add("head of a range", "HEAD", file, &[("Range", "bytes=0-0,3-4")]);
        cases.add("head of a range", "HEAD", file, &[("Range", "bytes=99999999-")]);
        cases.add("huge range", "GET", file, &[("Range", "bytes=0-99999999999999999999999")]);
        cases.add("huge range", "GET", file, &[("Range", "bytes=99999999999999999999999-")]);
        cases.add("huge range", "GET", file, &[("Range", "bytes=-99999999999999999999999")]);
    }
    cases.add("range of a directory", "GET", "/with/", &[("Range", "bytes=0-1")]);
    cases.add("range of a redirect", "GET", "/with", &[("Range", "bytes=0-1")]);
    cases.add("range of what is absent", "GET", "/absent", &[("Range", "bytes=0-1")]);
}

fn codings(cases: &mut Cases) {
    let accepts = [
        "gzip",
        "gzip, deflate, br",
        "br",
        "gzip;q=0",
        "gzip;q=0.5",
        "*",
        "identity",
        "",
        "deflate",
        "gzip;q=0.0, *",
        "x-gzip",
    ];
    for accept in accepts {
        for file in ["/pre/app.css", "/pre/large.css", "/pre/picture.png", "/size/10.bin"] {
            let group = match (file, accept) {
                ("/pre/picture.png" | "/size/10.bin", _) => "nothing compressed",
                (_, "*" | "x-gzip") => "precompressed, other words",
                _ => "precompressed",
            };
            cases.both(group, file, &[("Accept-Encoding", accept)]);
        }
        cases.both("only compressed", "/pre/only.txt", &[("Accept-Encoding", accept)]);
    }
    cases.add(
        "range of precompressed",
        "GET",
        "/pre/large.css",
        &[("Accept-Encoding", "gzip"), ("Range", "bytes=10-19")],
    );
    cases.add("range of precompressed", "GET", "/pre/large.css", &[("Accept-Encoding", "gzip"), ("Range", "bytes=-7")]);
    cases.add(
        "range of precompressed",
        "GET",
        "/pre/large.css",
        &[("Accept-Encoding", "gzip"), ("Range", "bytes=200000-")],
    );
}

// ---- what is compared --------------------------------------------------------------------------------

type Seen = BTreeMap<&'static str, String>;

fn seen(response: &Response) -> Seen {
    let mut seen = Seen::from([("status", response.status.to_string())]);
    for name in FIELDS {
        let mut value = response.values(name).collect::<Vec<_>>().join(", ");
        if name == "etag" && !value.is_empty() {
            value = (if value.starts_with("W/") { "weak" } else { "strong" }).to_owned();
        }
        // Error pages are each server's own.
        let is_pages = matches!(name, "content-type" | "content-length") && !(200..300).contains(&response.status);
        if !is_pages {
            seen.insert(name, value);
        }
    }
    let boundary = response.values("content-type").next().and_then(|value| value.split_once("boundary="));
    let mut body = response.body.clone();
    if let Some((_, boundary)) = boundary {
        // Both choose one; beside it nothing may differ. nginx's has 20 digits, ours 16.
        seen.insert("content-type", "multipart/byteranges".to_owned());
        seen.remove("content-length");
        let text = body.iter().map(|&byte| char::from(byte)).collect::<String>().replace(boundary, "BOUNDARY");
        let text = text.trim_start_matches("\r\n").to_owned();
        body = text.chars().map(|c| c as u8).collect();
    }
    if (200..300).contains(&response.status) {
        seen.insert("body", format!("{} bytes, {:x}", body.len(), fingerprint(&body)));
    }
    seen
}

/// FNV-1a: tells bodies apart without printing them.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn etag(response: &Response) -> String {
    response.values("etag").next().expect("files have one").to_owned()
}

#[test]
fn answers_are_nginx_answers_but_for_what_is_listed() {
    let tree = Tree::new();
    let files = grow(&tree);
    let Some(nginx) = Nginx::start(&tree) else { return println!("skipped: nginx not installed") };
    let ours = Server::start(&["--root", &tree.root_flag()]);
    let ask_ours = |octets: &[u8]| answer(tcp(ours.http), octets);
    let ask_nginx = |octets: &[u8]| answer(unix(&nginx.socket), octets);
    let tagged = request("GET", "/size/1000.bin", &[]);
    let (our_tag, their_tag) = (etag(&ask_ours(&tagged)), etag(&ask_nginx(&tagged)));

    let cases = cases(&files);
    assert!(cases.len() > 800, "{} requests", cases.len());
    let mut used = BTreeSet::new();
    let mut faults = Vec::new();
    for case in &cases {
        let with = |tag: &str| {
            let fields: Vec<_> =
                case.fields.iter().map(|(name, value)| (*name, value.replace("{etag}", tag))).collect();
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            request(case.method, &case.target, &fields)
        };
        let (ours, theirs) = (seen(&ask_ours(&with(&our_tag))), seen(&ask_nginx(&with(&their_tag))));
        let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).copied().collect();
        let none = String::new();
        for name in names {
            // Another status is another answer: its fields need not agree.
            if name != "status" && ours["status"] != theirs["status"] {
                continue;
            }
            let (our, their) = (ours.get(name).unwrap_or(&none), theirs.get(name).unwrap_or(&none));
            if our == their {
                continue;
            }
            let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
            let listed = DIFFERENCES.iter().position(|(group, what, one, other, _)| {
                (fits(group, case.group) || *group == ours["status"])
                    && *what == name
                    && fits(one, our)
                    && fits(other, their)
            });
            match listed {
                Some(at) => _ = used.insert(at),
                None => faults.push(format!(
                    "{}: {} {} {:?}: {name}: ours {our:?}, nginx's {their:?}",
                    case.group,
                    case.method,
                    &case.target[..case.target.len().min(60)],
                    case.fields
                )),
            }
        }
    }
    for (at, (group, what, ours, theirs, _)) in DIFFERENCES.iter().enumerate() {
        if !used.contains(&at) {
            faults.push(format!("listed, and seen nowhere: {group}: {what}: {ours:?}, nginx {theirs:?}"));
        }
    }
    assert!(faults.is_empty(), "{} requests, {} faults:\n{}", cases.len(), faults.len(), faults.join("\n"));
}
