//! Static files: what is beneath a directory, as an HTTP resource tree. Floor 4.
//!
//! For: [`Files`], which [`Router::files`](crate::Router::files) mounts. Not for: files that handlers write, or that
//! are generated; compressing on the fly.
//!
//! ```text
//! request ─▶ in memory, looked at less than a second ago? ──yes──▶ answered at once (cache, answer)
//!              │ no
//!              ▼
//!            path ─▶ openat2 beneath the root, by the ring ─▶ fstat ─▶ small: read whole and kept
//!                                                                 └──▶ large: read while it is sent (stream)
//! ```
//! Names are resolved by the kernel, beneath the root and nowhere else (`RESOLVE_BENEATH`, `RESOLVE_NO_MAGICLINKS`), so
//! that no spelling, link or race leads out of it.

mod answer;
mod cache;
mod disk;
mod listing;
mod media;
mod path;
mod ready;
mod resident;
mod site;
mod stream;

use crate::{
    handler::Reply,
    http::{HeaderValue, Request, StatusCode},
    limits::FILE_CACHE_BYTES,
    router::RouteProblem,
};
use media::MediaTypes;
use ready::Description;
use site::Site;
use std::{fmt, path::PathBuf, rc::Rc};

/// What a shard serves of a directory, and how.
///
/// Answers GET and HEAD, with strong entity tags, conditional requests (304, 412), ranges (206, 416; several as
/// `multipart/byteranges`), media types by extension, and siblings that were compressed beforehand. A directory without
/// its slash is redirected, with it answered by its index. Names that begin with a dot are hidden, but for
/// `/.well-known/`. What is no regular file is not there.
///
/// Small files are kept in memory, on each shard, and looked at once a second; larger ones are read while they are sent,
/// in bounded memory. No request waits for a disk on its shard's thread. (In the [test client](crate::testing), which
/// has no ring, reads block.)
///
/// | what is asked for | answer |
/// |---|---|
/// | not there, hidden, out of the root, no regular file | 404, or the [fallback](Files::fallback) |
/// | there, but not readable; a directory without index and [listing](Files::listing) | 403 |
/// | a path with broken escapes, a NUL, or too many `..` | 400 |
/// | a path with empty or dot segments | 301 to the one without |
/// | no descriptor is left | 503 |
///
/// ```no_run
/// use everycore::{Files, Router, Server};
///
/// Server::bind("127.0.0.1:8080").run(|_| {
///     let assets = Files::new("/srv/site/assets").cache_control("**", "public, max-age=31536000, immutable");
///     let pages = Files::new("/srv/site").error_page(404, "404.html");
///     Router::new().files("/assets", assets).files("/", pages).get("/api/time", |_| "now")
/// })
/// # ?; Ok::<(), everycore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    index: Vec<String>,
    /// Whether `index` is the author's.
    has_own_index: bool,
    fallback: Option<String>,
    listing: bool,
    precompressed: bool,
    follows_links: bool,
    cache_control: Vec<(String, HeaderValue)>,
    media_types: MediaTypes,
    error_pages: Vec<(StatusCode, String)>,
    cache_bytes: u64,
    /// What is wrong with what was set, for the router to tell.
    problems: Vec<String>,
}

impl Files {
    /// The files beneath a directory. It is opened when the router is built, on each shard, and again once a second: a
    /// new directory may take its place.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Files {
            root: root.into(),
            index: vec!["index.html".to_owned()],
            has_own_index: false,
            fallback: None,
            listing: false,
            precompressed: true,
            follows_links: true,
            cache_control: Vec::new(),
            media_types: MediaTypes::default(),
            error_pages: Vec::new(),
            cache_bytes: FILE_CACHE_BYTES,
            problems: Vec::new(),
        }
    }

    /// The file that stands for its directory, in place of `index.html`. Called again: another, if that one is not there.
    pub fn index(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        if name.is_empty() || name.contains('/') {
            self.problems.push(format!("expected the name of an index file, got {name:?}"));
        }
        if !std::mem::replace(&mut self.has_own_index, true) {
            self.index.clear();
        }
        self.index.push(name);
        self
    }

    /// The file, beneath the root, that is sent with 200 where nothing is: for an application that reads the path itself.
    pub fn fallback(mut self, path: impl AsRef<str>) -> Self {
        self.fallback = Some(beneath(path.as_ref()));
        self
    }

    /// Whether a directory without an index is answered with a list of what is in it; otherwise with 403. Off by default.
    pub fn listing(mut self, is_on: bool) -> Self {
        self.listing = is_on;
        self
    }

    /// Whether `x.br`, `x.zst` and `x.gz` are sent in place of `x` to those who accept them. They are looked for where the
    /// media type may gain by it. On by default.
    pub fn precompressed(mut self, is_on: bool) -> Self {
        self.precompressed = is_on;
        self
    }

    /// Whether symbolic links are followed that stay beneath the root (and are relative); otherwise none is. On by default.
    pub fn symlinks(mut self, is_on: bool) -> Self {
        self.follows_links = is_on;
        self
    }

    /// The `Cache-Control` of files whose path matches a pattern: the first that matches counts.
    ///
    /// `*` stands for any name or a part of it, `**/` for any directories, `{a,b}` for either. A pattern without a slash
    /// is about the name alone, wherever it is.
    pub fn cache_control(mut self, pattern: &str, value: &str) -> Self {
        let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        if let Err(error) = fast_glob::validate(pattern) {
            self.problems.push(format!("expected a pattern such as *.css or assets/**, got {pattern:?}: {error}"));
        }
        let pattern = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
        match HeaderValue::from_str(value) {
            Ok(value) => self.cache_control.push((pattern, value)),
            Err(_) => self.problems.push(format!("expected a value of Cache-Control, got {value:?}")),
        }
        self
    }

    /// The media type of names with this extension, in place of the usual one.
    pub fn media_type(mut self, extension: &str, media_type: &str) -> Self {
        match HeaderValue::from_str(media_type) {
            Ok(media_type) => self.media_types.set(extension, media_type),
            Err(_) => self.problems.push(format!("expected a media type, got {media_type:?}")),
        }
        self
    }

    /// The file, beneath the root, that is sent with an error of this status: 400, 403, 404, 500 or 503. Other errors are
    /// the router's ([`error_page`](crate::Router::error_page)).
    pub fn error_page(mut self, status: u16, path: impl AsRef<str>) -> Self {
        match StatusCode::from_u16(status) {
            Ok(status) if status.is_client_error() || status.is_server_error() => {
                self.error_pages.push((status, beneath(path.as_ref())));
            }
            _ => self.problems.push(format!("expected the status of an error, 400 to 599, got {status}")),
        }
        self
    }

    /// Bytes that each shard spends on contents kept in memory; 32 MiB by default. Files above 256 KiB, or an eighth of
    /// this, are never kept.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The media type of a name.
    #[cfg(feature = "cli")]
    pub(crate) fn media_type_of(&self, path: &str) -> HeaderValue {
        self.media_types.of(path.as_bytes())
    }

    /// What answers for this directory on the present shard.
    pub(crate) fn open(self, path: &str) -> Result<Mounted, Vec<RouteProblem>> {
        let problem = |why| RouteProblem::Files { path: path.to_owned(), why };
        if !self.problems.is_empty() {
            return Err(self.problems.into_iter().map(problem).collect());
        }
        let root = self.root.clone();
        match Site::new(self) {
            Ok(site) => Ok(Mounted(Rc::new(site))),
            Err(error) => Err(vec![problem(format!("expected a directory at {}: {error}", root.display()))]),
        }
    }

    fn describe(&self, path: &[u8]) -> Description {
        let matches = |(pattern, _): &&(String, HeaderValue)| fast_glob::glob_match(pattern.as_bytes(), path);
        Description {
            media_type: self.media_types.of(path),
            cache_control: self.cache_control.iter().find(matches).map(|(_, value)| value.clone()),
            varies: self.precompressed,
        }
    }
}

/// A directory that is mounted.
#[derive(Clone)]
pub(crate) struct Mounted(Rc<Site>);

impl Mounted {
    /// The name of the parameter that takes what is beneath the mount.
    pub(crate) const TAIL: &str = site::TAIL;

    pub(crate) fn serve(&self, request: Request) -> Reply {
        // A mount that was nested may be reached without its slash; relative links would lead beside it.
        if request.param_raw(site::TAIL).is_none() && !request.path().ends_with('/') {
            return Reply::Ready(Site::redirect_to_mount(&request));
        }
        self.0.serve(request)
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Without the slashes at its beginning.
fn beneath(path: &str) -> String {
    path.trim_start_matches('/').to_owned()
}
