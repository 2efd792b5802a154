//! Programs that people use: curl, wget, a browser.

mod common;

use common::{
    live::Live,
    server::Server,
    tree::{Tree, noise},
};
use everycore::{Files, Request, Response, Router, http::StatusCode};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

/// Runs a program; `None`: it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let status = output.status;
    assert!(status.success(), "{program} {arguments:?}: {status}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(content).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

#[test]
fn curl_decodes_what_was_compressed_beforehand_and_what_is_on_the_fly() {
    let tree = Tree::new();
    let text = "function f() { return 'words and words'; }\n".repeat(2000);
    tree.put("app.js", &text);
    tree.put("app.js.gz", gzip(text.as_bytes()));
    tree.put("plain.js", &text);
    tree.put("large.js", text.repeat(20));
    let server = Server::start(&["--root", &tree.root_flag(), "--compress", "all"]);
    for (path, expected) in [("app.js", &text), ("plain.js", &text), ("large.js", &text.repeat(20))] {
        for coding in ["gzip", "gzip, br"] {
            let url = format!("http://{}/{path}", server.http);
            let accept = format!("Accept-Encoding: {coding}");
            let arguments = [
                "-sS",
                "--max-time",
                "60",
                "--compressed",
                "-H",
                &accept,
                "-w",
                "%{stderr}%{size_download} %header{vary}",
                &url,
            ];
            let Some(output) = run("curl", &arguments) else { return println!("skipped: curl not installed") };
            assert!(output.stdout == expected.as_bytes(), "{path} as {coding}");
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let (size, vary) = told.split_once(' ').expect("two words");
            let size: usize = size.parse().expect("a number");
            assert!(size < expected.len() / 10, "{path} as {coding}: {size} bytes");
            assert_eq!(vary.to_ascii_lowercase(), "accept-encoding", "{path}");
        }
    }
}

#[test]
fn curl_resumes_a_download() {
    let tree = Tree::new();
    let content = noise(1, 3_000_000);
    tree.put("large.bin", &content);
    let server = Server::start(&["--root", &tree.root_flag()]);
    let (url, part) = (format!("http://{}/large.bin", server.http), tree.around().join("part"));
    let part_name = part.to_str().expect("a plain name");
    for begun in [0, 1, 1_234_567, 2_999_999] {
        fs::write(&part, &content[..begun]).expect("it is ours");
        let arguments =
            ["-sS", "--max-time", "60", "-C", "-", "-o", part_name, "-w", "%{http_code} %{size_download}", &url];
        let Some(output) = run("curl", &arguments) else { return println!("skipped: curl not installed") };
        let expected = format!("{} {}", if begun == 0 { 200 } else { 206 }, content.len() - begun);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "from {begun}");
        assert!(fs::read(&part).expect("it is there") == content, "from {begun}");
    }
}

#[test]
fn wget_resumes_a_download_and_keeps_what_is_complete() {
    let tree = Tree::new();
    let content = noise(2, 3_000_000);
    tree.put("large.bin", &content);
    let server = Server::start(&["--root", &tree.root_flag()]);
    let url = format!("http://{}/large.bin", server.http);
    let part = tree.around().join("large.bin");
    let directory = tree.around().to_str().expect("a plain name").to_owned();
    for begun in [700_001, content.len()] {
        fs::write(&part, &content[..begun]).expect("it is ours");
        let arguments = ["--no-proxy", "--tries=1", "--timeout=60", "-S", "-c", "-P", &directory, &url];
        let Ok(output) = Command::new("wget").args(arguments).output() else {
            return println!("skipped: wget not installed");
        };
        let told = String::from_utf8_lossy(&output.stderr);
        let status = if begun < content.len() { "206 Partial Content" } else { "416 Range Not Satisfiable" };
        assert!(told.contains(status), "{told}");
        assert!(fs::read(&part).expect("it is there") == content, "from {begun}: {told}");
    }
}

#[test]
fn wget_mirrors_a_site_by_its_links() {
    let tree = Tree::new();
    tree.put(
        "index.html",
        "<a href='a/'>a</a> <a href='b%20c'>redirected</a> <a href='d%C3%A4.txt'>d</a> <img src='i.png'>",
    );
    tree.put("a/index.html", "<a href='../e.txt?x=1'>e</a> <a href='deep/'>deep</a>");
    tree.put("a/deep/index.html", "<a href='/f.txt'>f</a>");
    tree.put("b c/index.html", "space");
    tree.put("dä.txt", "umlaut");
    tree.put("e.txt", "query");
    tree.put("f.txt", "from the root");
    tree.put("i.png", noise(1, 1000));
    let server = Server::start(&["--root", &tree.root_flag()]);
    let mirror = tree.around().join("mirror");
    let mirror_name = mirror.to_str().expect("a plain name");
    let url = format!("http://{}/", server.http);
    let arguments = [
        "--no-proxy",
        "--tries=1",
        "--timeout=60",
        "-q",
        "-r",
        "-l",
        "5",
        "-nH",
        "-e",
        "robots=off",
        "--restrict-file-names=nocontrol",
        "-P",
        mirror_name,
        &url,
    ];
    if run("wget", &arguments).is_none() {
        return println!("skipped: wget not installed");
    }
    for (copied, original) in [
        ("index.html", "index.html"),
        ("a/index.html", "a/index.html"),
        ("a/deep/index.html", "a/deep/index.html"),
        ("b c", "b c/index.html"),
        ("dä.txt", "dä.txt"),
        ("e.txt?x=1", "e.txt"),
        ("f.txt", "f.txt"),
        ("i.png", "i.png"),
    ] {
        let copy = fs::read(mirror.join(copied)).unwrap_or_else(|error| panic!("{copied}: {error}"));
        assert!(copy == fs::read(tree.root().join(original)).expect("it is ours"), "{copied}");
    }
}

// ---- a browser ---------------------------------------------------------------------------------------

/// A sound of so many seconds: 8,000 samples a second of 16 bits, a quiet wave.
fn wav(seconds: u32) -> Vec<u8> {
    const RATE: u32 = 8000;
    let data_bytes = seconds * RATE * 2;
    let mut wav = Vec::with_capacity(44 + data_bytes as usize);
    let mut words = |text: &[u8], numbers: &[u32]| {
        wav.extend_from_slice(text);
        numbers.iter().for_each(|number| wav.extend_from_slice(&number.to_le_bytes()));
    };
    words(b"RIFF", &[36 + data_bytes]);
    words(b"WAVEfmt ", &[16, 1 | 1 << 16, RATE, RATE * 2, 2 | 16 << 16]);
    words(b"data", &[data_bytes]);
    for sample in 0..seconds * RATE {
        let level = (sample % 80) as i16 * 20 - 800;
        wav.extend_from_slice(&level.to_le_bytes());
    }
    wav
}

/// A white picture of 3 by 2.
const SVG: &str =
    "<svg xmlns='http://www.w3.org/2000/svg' width='3' height='2'><rect width='3' height='2' fill='#fff'/></svg>";

const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="css/style.css">
<img id="svg" src="img/a.svg"><img id="gif" src="img/b%20c.gif"><audio id="sound" preload="metadata" src="sound.wav"></audio>
<script>
const told = [];
const say = (what) => told.push(what);
const report = () => fetch('/report?' + encodeURIComponent(told.join(';')));
window.onerror = (message) => { say('error ' + message); report(); };
window.onload = () => {
    say('svg ' + svg.naturalWidth + 'x' + svg.naturalHeight);
    say('gif ' + gif.naturalWidth + 'x' + gif.naturalHeight);
    say('style ' + getComputedStyle(document.body).color);
    const seek = () => {
        say('duration ' + sound.duration);
        const to = [550, 10, 599];
        sound.onseeked = () => {
            say('at ' + sound.currentTime);
            if (to.length) { sound.currentTime = to.shift(); return; }
            say('seekable ' + sound.seekable.end(0));
            import('./js/module.mjs').then((module) => { say(module.word); report(); }, (e) => { say('' + e); report(); });
        };
        sound.currentTime = to.shift();
    };
    sound.onerror = () => { say('sound ' + sound.error.message); report(); };
    if (sound.readyState >= 1) seek(); else sound.onloadedmetadata = seek;
};
</script>"#;

#[test]
fn browser_loads_a_page_with_pictures_and_seeks_in_a_sound_by_ranges() {
    let tree = Tree::new();
    tree.put("index.html", PAGE);
    tree.put("css/style.css", "body { color: rgb(1, 2, 3) }");
    tree.put("img/a.svg", SVG);
    // The smallest GIF: one pixel.
    tree.put("img/b c.gif", b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;");
    tree.put("js/module.mjs", "export const word = 'module loaded';");
    tree.put("sound.wav", wav(600));

    let Some(browser) = ["chromium", "chromium-browser", "google-chrome", "/usr/bin/chromium"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
    else {
        return println!("skipped: chromium not installed");
    };
    let (sender, reports) = mpsc::channel();
    let sender = Mutex::new(sender);
    let parts: Arc<Mutex<Vec<String>>> = Arc::default();
    let (root, seen) = (tree.root(), parts.clone());
    let live = Live::start(1, move |_| {
        let sender = sender.lock().expect("no one panics with it").clone();
        let seen = seen.clone();
        let report = move |request: Request| {
            let told = request.query_str().unwrap_or_default().to_owned();
            let _ = sender.send(percent_encoding::percent_decode_str(&told).decode_utf8_lossy().into_owned());
            Response::new(StatusCode::NO_CONTENT)
        };
        Router::new().files("/", Files::new(&root)).get("/report", report).wrap(move |request, next| {
            let asked = request.header("range").map(str::to_owned);
            let seen = seen.clone();
            next.run(request).map(move |response| {
                if let (Some(asked), StatusCode::PARTIAL_CONTENT) = (asked, response.status()) {
                    seen.lock().expect("no one panics with it").push(asked);
                }
                response
            })
        })
    });
    let profile = tree.around().join("profile");
    let mut child = Command::new(browser)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--mute-audio",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--no-proxy-server"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("http://{}/", live.http))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it said its version before");
    let told = reports.recv_timeout(Duration::from_secs(120));
    let _ = child.kill();
    let _ = child.wait();
    wait_for_the_profile(&profile);
    let expected = "svg 3x2;gif 1x1;style rgb(1, 2, 3);duration 600;at 550;at 10;at 599;seekable 600;module loaded";
    assert_eq!(told.as_deref(), Ok(expected));
    // It did not read its way there: it asked for parts, from the middle too.
    let parts = parts.lock().expect("no one panics with it");
    assert!(parts.iter().any(|range| !range.starts_with("bytes=0-")), "{parts:?}");
}

/// The browser's other processes write into it until they notice that the first is gone.
fn wait_for_the_profile(profile: &Path) {
    common::live::wait_until("the profile can be removed", || !profile.exists() || fs::remove_dir_all(profile).is_ok());
}
