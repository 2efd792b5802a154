//! AJP/1.3 with the programs that speak it: Apache's mod_proxy_ajp, mod_jk, lighttpd's mod_ajp13. Each runs from a folder
//! of its own on a port of its own; the system's services and settings are left alone.

mod common;

use common::{
    live::{Live, get, request, server, wait_until},
    raw::Raw,
    response::Response as Answer,
    server::Server as Binary,
};
use everycore::{Request, Response, Router, ajp::Forwarded, config::AjpOptions, http::Body};
use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const SECRET: &str = "a secret, with = and spaces";
const APACHE: &str = "/usr/sbin/apache2";
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";
const LIGHTTPD: &str = "/usr/sbin/lighttpd";
/// How long a proxy may take to listen.
const START_MAX: Duration = Duration::from_secs(60);

/// A proxy that runs until it is dropped.
struct Proxy {
    child: Child,
    address: SocketAddr,
    /// Its settings and logs.
    _folder: TempDir,
}

impl Proxy {
    /// `start` makes its command, given its folder and its port.
    fn start(start: impl Fn(&Path, u16) -> Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Where it is started by root, its workers run as somebody else.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let until = Instant::now() + START_MAX;
        loop {
            // Somebody else may take the port in between: then another one is tried.
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("it is bound");
            drop(listener);
            let mut child = start(folder.path(), address.port()).stdin(Stdio::null()).spawn().expect("it starts");
            while child.try_wait().expect("a child can be waited for").is_none() {
                assert!(Instant::now() < until, "the proxy does not listen");
                if TcpStream::connect(address).is_ok() {
                    return Proxy { child, address, _folder: folder };
                }
                thread::sleep(Duration::from_millis(10));
            }
            assert!(Instant::now() < until, "the proxy does not start");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Not SIGKILL: its workers would outlive it.
        let _ = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", self.child.id())).status();
        let _ = self.child.wait();
    }
}

/// Whether these are here; says so if not.
fn has(files: &[&str]) -> bool {
    let missing = files.iter().find(|file| !Path::new(file).exists());
    missing.inspect(|file| println!("skipped: {file} is not installed")).is_none()
}

/// Apache with these modules beside the usual ones, and these directives.
fn apache(modules: &[&str], directives: impl Fn(&Path) -> String) -> Option<Proxy> {
    let files: Vec<String> = modules.iter().map(|module| format!("{APACHE_MODULES}/mod_{module}.so")).collect();
    if !has(&[&[APACHE], &files.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat()) {
        return None;
    }
    Some(Proxy::start(|folder, port| {
        let path = folder.display();
        // One process, so that all of its threads share the connections to us.
        let mut text = format!(
            "ServerRoot {path}\nServerName localhost\nDefaultRuntimeDir {path}\nPidFile {path}/pid\nErrorLog {path}/error.log\n\
             User www-data\nGroup www-data\nListen 127.0.0.1:{port}\nMaxKeepAliveRequests 0\n\
             StartServers 1\nServerLimit 1\nThreadsPerChild 64\nThreadLimit 64\nMaxRequestWorkers 64\nLimitRequestFields 100\n"
        );
        for module in ["mpm_event", "authz_core", "env"].iter().chain(modules) {
            text += &format!("LoadModule {module}_module {APACHE_MODULES}/mod_{module}.so\n");
        }
        fs::write(folder.join("conf"), text + &directives(folder)).expect("a file");
        let mut command = Command::new(APACHE);
        command.arg("-f").arg(folder.join("conf")).arg("-DFOREGROUND");
        command
    }))
}

fn proxy_ajp(ajp: SocketAddr) -> Option<Proxy> {
    apache(&["proxy", "proxy_ajp"], |_| {
        format!(
            "ProxyPass \"/stranger\" \"ajp://{ajp}/stranger\" secret=wrong\n\
             ProxyPass \"/\" \"ajp://{ajp}/\" \"secret={SECRET}\" ping=5 retry=0\n\
             SetEnv ap_trust_cgilike_cl 1\nSetEnv AJP_ROLE admin\n\
             <Location /forbidden>\nSetEnv AJP_OTHER x\n</Location>\n"
        )
    })
}

fn mod_jk(ajp: SocketAddr) -> Option<Proxy> {
    apache(&["jk"], |folder| {
        let (host, port, path) = (ajp.ip(), ajp.port(), folder.display());
        format!(
            "JkWorkerProperty worker.list=w\nJkWorkerProperty worker.w.type=ajp13\nJkWorkerProperty worker.w.host={host}\n\
             JkWorkerProperty worker.w.port={port}\nJkWorkerProperty worker.w.secret={SECRET}\n\
             JkWorkerProperty worker.w.ping_mode=A\nJkLogFile {path}/jk.log\nJkShmFile {path}/jk.shm\n\
             JkMount /* w\nJkEnvVar ROLE admin\nSetEnv ROLE admin\n"
        )
    })
}

fn lighttpd(ajp: SocketAddr) -> Option<Proxy> {
    if !has(&[LIGHTTPD, "/usr/lib/lighttpd/mod_ajp13.so"]) {
        return None;
    }
    Some(Proxy::start(|folder, port| {
        let (host, to, path) = (ajp.ip(), ajp.port(), folder.display());
        let text = format!(
            "server.document-root = \"{path}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\n\
             server.modules = (\"mod_proxy\", \"mod_ajp13\")\n\
             ajp13.server = (\"\" => ((\"host\" => \"{host}\", \"port\" => {to})))\n"
        );
        fs::write(folder.join("conf"), text).expect("a file");
        let mut command = Command::new(LIGHTTPD);
        command.arg("-D").arg("-f").arg(folder.join("conf"));
        command
    }))
}

fn megabyte() -> Vec<u8> {
    (0..1_000_000u32).map(|at| (at % 251) as u8).collect()
}

fn routes() -> Router {
    Router::new()
        .get("/", |_| "hello")
        .get("/small", |_| "OK")
        .get("/where", |req: Request| {
            let role = Forwarded::of(&req).and_then(|said| said.attribute("ROLE")).unwrap_or("-").to_owned();
            let peer = req.peer_addr().map(|addr| addr.to_string()).unwrap_or_default();
            Response::text(format!("{} {peer} {role} {}", req.scheme(), req.query("q").unwrap_or_default()))
        })
        .get("/path/{name}", |req: Request| req.param("name").unwrap_or_default().into_owned())
        .get("/fields", |req: Request| {
            let count = req.headers().filter(|(name, _)| name.to_ascii_lowercase().starts_with("x-in-")).count();
            (0..60).fold(Response::text(count.to_string()), |response, index| {
                response.with_header(format!("x-out-{index}"), "v".repeat(50))
            })
        })
        .get("/megabyte", |_| Response::stream(Body::from(megabyte())))
        .post("/echo", |req: Request| Response::stream(req.into_body()))
        .post("/ignore", |_| "ignored")
}

fn live(options: AjpOptions) -> (Live, SocketAddr) {
    let live = Live::with(server(2).ajp("127.0.0.1:0", options.allow_attributes("ROLE")), |_| routes());
    let ajp = live.address(1);
    (live, ajp)
}

fn post(path: &str, framing: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn chunked(bytes: &[u8]) -> Vec<u8> {
    let chunks = bytes.chunks(5000).map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    chunks.chain([b"0\r\n\r\n".to_vec()]).collect::<Vec<_>>().concat()
}

/// Everything that any of them does, over one connection.
fn check_reading(client: &mut Raw) {
    for _ in 0..20 {
        let answer = client.exchange(request("/"));
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
        assert_eq!(answer.values("content-type").next(), Some("text/plain; charset=utf-8"));
    }
    let answer = client.exchange("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((answer.status, answer.values("content-length").next()), (200, Some("5")));
    assert_eq!(client.exchange(request("/megabyte")).body, megabyte());
    let fields: String = (0..80).map(|index| format!("X-In-{index}: {}\r\n", "v".repeat(50))).collect();
    let answer = client.exchange(format!("GET /fields HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
    assert_eq!(String::from_utf8_lossy(&answer.body), "80");
    assert_eq!(answer.headers.iter().filter(|(name, _)| name.to_ascii_lowercase().starts_with("x-out-")).count(), 60);
    assert_eq!(client.exchange(request("/path/a%20b")).body, b"a b");
    assert_eq!(client.exchange(request("/nowhere")).status, 404);
}

/// What sends bodies, and names methods that have no code.
fn check_bodies(proxy: &Proxy) {
    let client = &mut Raw::connect(proxy.address);
    for len in [0, 1, 20_000, 1_000_000] {
        let body = &megabyte()[..len];
        let answer = client.exchange(post("/echo", &format!("Content-Length: {len}"), body));
        assert!(answer.status == 200 && answer.body == body, "{len} of known length");
        let answer = client.exchange(post("/echo", "Transfer-Encoding: chunked", &chunked(body)));
        assert!(answer.status == 200 && answer.body == body, "{len} in chunks");
        let answer = client.exchange(post("/ignore", &format!("Content-Length: {len}"), body));
        assert_eq!((answer.status, &answer.body[..]), (200, &b"ignored"[..]), "{len} unread");
    }
    // Apache closes its client's connection with a 501.
    for method in ["PURGE", "MKCOL"] {
        let asked = format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(Raw::connect(proxy.address).exchange(asked).status, 501, "{method}, as over HTTP");
    }
    assert_eq!(get(proxy.address, "/").body, b"hello", "and the server is not taken for dead");
}

/// `ab -k`, every request answered on a kept connection.
fn check_ab(proxy: SocketAddr) {
    if !has(&["/usr/bin/ab"]) {
        return;
    }
    let url = format!("http://{proxy}/small");
    let output =
        Command::new("ab").args(["-q", "-k", "-s", "60", "-c", "50", "-n", "20000", &url]).output().expect("ab");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let figure = |label: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let expected = [
        ("Complete requests:", Some(20_000)),
        ("Failed requests:", Some(0)),
        ("Keep-Alive requests:", Some(20_000)),
        ("Non-2xx responses:", None),
    ];
    for (label, expected) in expected {
        assert_eq!(figure(label), expected, "{label} {text}");
    }
}

#[test]
fn apache_with_mod_proxy_ajp() {
    let (live, ajp) = live(AjpOptions::with_secret(SECRET));
    let Some(proxy) = proxy_ajp(ajp) else { return };
    let mut client = Raw::connect(proxy.address);
    check_reading(&mut client);
    let seen = live.stats().total.ajp;
    assert!(seen.requests > 20 && seen.accepted <= 2, "connections are used again: {seen:?}");
    check_bodies(&proxy);
    let own = client.stream().local_addr().expect("it is connected");
    assert_eq!(client.exchange(request("/where?q=x%20y")).body, format!("http {own} admin x y").into_bytes());
    check_ab(proxy.address);
    assert_eq!(live.stats().total.ajp.malformed, 0);
    // Refused, each time anew: a worker that Apache took for dead would answer 503.
    for path in ["/stranger", "/forbidden", "/stranger", "/forbidden"] {
        assert_eq!(get(proxy.address, path).status, 403, "{path}");
    }
    assert_eq!(live.stats().total.ajp.forbidden, 4);
    assert_eq!(get(proxy.address, "/").body, b"hello");
}

#[test]
fn apache_with_mod_jk() {
    let (live, ajp) = live(AjpOptions::with_secret(SECRET));
    let Some(proxy) = mod_jk(ajp) else { return };
    let mut client = Raw::connect(proxy.address);
    check_reading(&mut client);
    check_bodies(&proxy);
    let own = client.stream().local_addr().expect("it is connected");
    assert_eq!(client.exchange(request("/where?q=z")).body, format!("http {own} admin z").into_bytes());
    check_ab(proxy.address);
    assert_eq!((live.stats().total.ajp.malformed, live.stats().total.ajp.forbidden), (0, 0));
}

/// It sends no secret, and bodies in a way of its own; so for GET only.
#[test]
fn lighttpd_with_mod_ajp13() {
    let (live, ajp) = live(AjpOptions::without_secret());
    let Some(proxy) = lighttpd(ajp) else { return };
    let mut client = Raw::connect(proxy.address);
    check_reading(&mut client);
    // It decodes paths: what would end one stays in it.
    assert_eq!(client.exchange(request("/path/a%3Fb")).body, b"a?b");
    assert_eq!(live.stats().total.ajp.malformed, 0);
    // What it sends as a body is refused, not misread.
    assert_eq!(client.exchange(post("/echo", "Content-Length: 5", b"hello")).status, 400);
    assert_eq!(client.exchange(request("/")).body, b"hello");
    check_ab(proxy.address);
}

#[test]
fn restart_behind_apache_loses_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    fs::write(&file, SECRET).expect("a file");
    let start = |ajp: &str| {
        let file = file.to_str().expect("UTF-8");
        let mut server =
            Binary::start(&["--share-port", "--ajp", ajp, "--ajp-secret-file", file, "--ajp-attributes", "ROLE"]);
        let line = server.await_line(|line| line.starts_with("AJP on "));
        (server, line["AJP on ".len()..].parse::<SocketAddr>().expect("an address"))
    };
    let (mut server, ajp) = start("127.0.0.1:0");
    let Some(proxy) = proxy_ajp(ajp) else { return };
    let (answers, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Raw::connect(proxy.address);
                    while !is_over.load(Ordering::Relaxed) {
                        let answer: Answer = client.exchange(request("/yo"));
                        if (answer.status, &answer.body[..]) != (200, b"Hey!") {
                            return Err(format!("{} {}", answer.status, answer.body.escape_ascii()));
                        }
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let more = |count: u64| {
            let goal = answers.load(Ordering::Relaxed) + count;
            let failed = || clients.iter().any(|client| client.is_finished());
            wait_until("answers come", || answers.load(Ordering::Relaxed) >= goal || failed());
        };
        for _ in 0..3 {
            more(300);
            let (next, _) = start(&ajp.to_string());
            more(300);
            server.signal("TERM");
            assert_eq!(server.wait().code(), Some(0), "it drained");
            server = next;
        }
        more(300);
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().expect("it does not panic"), Ok(()));
        }
    });
    // One that is gone without a word, and back: Apache finds it again.
    drop(server);
    assert_eq!(get(proxy.address, "/yo").status, 503);
    let _server = start(&ajp.to_string());
    wait_until("Apache finds it again", || get(proxy.address, "/yo").body == b"Hey!");
}
