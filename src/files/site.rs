//! Finds what a request asks for: in the shard's memory, or on the disk beneath the root.

use super::{
    Files,
    answer::{Plan, bare, from_disk, from_memory},
    cache::Cache,
    disk::{Disk, Failure, Handle, Open, Root, What, what},
    listing::Listing,
    path::{Unnamed, Wanted, encode, location, resolve},
    ready::{Ready, Stamp},
    stream::Source,
};
use crate::{
    Request, Response,
    handler::Reply,
    http::{AcceptedCodings, Body, Coding, Conditions, Method, StatusCode, header},
    limits::{FILE_TRIES_MAX, RETRY_AFTER_S},
    shard::Shard,
    stats::{Count, Counters},
};
use bytes::{Bytes, BytesMut};
use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    hash::{BuildHasher, RandomState},
    io,
    os::fd::AsFd,
    rc::Rc,
    time::SystemTime,
};

/// The parameter that a mount's pattern has for what is beneath it.
pub(super) const TAIL: &str = "beneath";

/// One root as one shard serves it.
#[derive(Debug)]
pub(super) struct Site {
    files: Files,
    root: Root,
    disk: Disk,
    cache: Cache,
    counters: Rc<Counters>,
    /// Names are put together here.
    scratch: RefCell<String>,
    /// Makes boundaries.
    secret: RandomState,
    boundaries: Cell<u64>,
}

/// A file that was found, in one of its codings.
struct Found {
    ready: Rc<Ready>,
    coding: Coding,
    /// Unless it was found in memory.
    handle: Option<Handle>,
}

/// What stands under a name.
enum Looked {
    File(Found),
    Directory,
}

impl Site {
    /// # Errors
    /// The root cannot be opened.
    pub(super) fn new(files: Files) -> io::Result<Self> {
        let shard = Shard::current();
        let counters = shard.as_ref().map_or_else(Rc::default, |shard| shard.counters().clone());
        Ok(Site {
            root: Root::open(&files.root, files.follows_links)?,
            disk: Disk::new(shard.as_ref().map(Shard::ring)),
            cache: Cache::new(files.cache_bytes, counters.clone()),
            counters,
            files,
            scratch: RefCell::default(),
            secret: RandomState::new(),
            boundaries: Cell::new(0),
        })
    }

    /// Answers at once what is in memory.
    pub(super) fn serve(self: &Rc<Self>, request: Request) -> Reply {
        if let Some(response) = self.at_once(&request) {
            self.counters.files.cache_hits.add(1);
            return Reply::Ready(response);
        }
        self.counters.files.cache_misses.add(1);
        let site = self.clone();
        Reply::Later(Box::pin(async move { site.find(&request).await }))
    }

    /// A mount without the slash at its end.
    pub(super) fn redirect_to_mount(request: &Request) -> Response {
        redirect(&location(request.path(), "", request.query_str()))
    }

    fn at_once(&self, request: &Request) -> Option<Response> {
        let conditions = Conditions::of(request.head());
        let tail = request.param_raw(TAIL).unwrap_or_default();
        let accepted = || self.accepted(&conditions);
        let ready = if tail.is_empty() || tail.ends_with('/') {
            let mut name = self.scratch.borrow_mut();
            name.clear();
            name.push_str(tail);
            name.push_str(self.files.index.first()?);
            self.cache.fresh(&name, accepted, self.disk.now_ms())?
        } else {
            self.cache.fresh(tail, accepted, self.disk.now_ms())?
        };
        let plan = Plan::of(&ready, &conditions, request.method());
        match &ready.content {
            Some(content) => Some(from_memory(&ready, content, plan, || self.boundary())),
            None if plan.needs_content() => None,
            None => Some(bare(&ready, &plan)),
        }
    }

    fn accepted(&self, conditions: &Conditions<'_>) -> AcceptedCodings {
        match conditions.accept_encoding() {
            Some(values) if self.files.precompressed => AcceptedCodings::parse(values),
            _ => AcceptedCodings::IDENTITY,
        }
    }

    fn boundary(&self) -> u64 {
        self.boundaries.set(self.boundaries.get().wrapping_add(1));
        self.secret.hash_one(self.boundaries.get())
    }

    async fn find(&self, request: &Request) -> Response {
        let tail = request.param_raw(TAIL).unwrap_or_default();
        let mount = &request.path()[..request.path().len() - tail.len()];
        let elsewhere = |tail: &str| redirect(&location(mount, tail, request.query_str()));
        let found = match resolve(tail) {
            Ok(Wanted::File(path)) => match self.look(&path, request).await {
                Ok(Looked::File(found)) => self.send(found, &path, request).await,
                Ok(Looked::Directory) => return elsewhere(&(encode(&path) + "/")),
                Err(failure) => Err(failure),
            },
            Ok(Wanted::Directory(path)) => self.directory(&path, request).await,
            Err(Unnamed::Otherwise(tail)) => return elsewhere(&tail),
            Err(Unnamed::Absent) => Err(Failure::Absent),
            Err(Unnamed::Malformed) => return self.refuse(StatusCode::BAD_REQUEST).await,
        };
        match found {
            Ok(response) => response,
            Err(failure) => self.fail(failure, request).await,
        }
    }

    /// A directory's index, or the list of what is in it.
    async fn directory(&self, path: &[u8], request: &Request) -> Result<Response, Failure> {
        for index in &self.files.index {
            let path = join(path, index);
            match self.look(&path, request).await {
                Ok(Looked::File(found)) => return self.send(found, &path, request).await,
                Ok(Looked::Directory) | Err(Failure::Absent) => {}
                Err(failure) => return Err(failure),
            }
        }
        let what = if self.files.listing { Open::List } else { Open::Directory };
        let handle = self.root.get(&self.disk, path, what).await?;
        if !self.files.listing {
            return Err(if self.files.fallback.is_some() { Failure::Absent } else { Failure::Forbidden });
        }
        let directory = handle.as_fd().try_clone_to_owned()?;
        // The page shows the path as the client knows it.
        let shown: Vec<u8> = percent_encoding::percent_decode_str(request.path()).collect();
        let page = self.disk.blocking(move || Listing::read(&directory).map(|listing| listing.page(&shown))).await?;
        Ok(Response::html(page))
    }

    /// Looks for a file, in the coding that the client likes best of those there are.
    async fn look(&self, path: &[u8], request: &Request) -> Result<Looked, Failure> {
        let name = encode(path);
        let Looked::File(identity) = self.look_at(&name, path, Coding::Identity, false).await? else {
            return Ok(Looked::Directory);
        };
        if !identity.ready.has_siblings {
            return Ok(Looked::File(identity));
        }
        let accepted = self.accepted(&Conditions::of(request.head()));
        for coding in accepted.before_identity() {
            match self.look_at(&name, path, *coding, false).await {
                Ok(Looked::File(sibling)) => return Ok(Looked::File(sibling)),
                Ok(Looked::Directory) | Err(Failure::Absent | Failure::Forbidden) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(Looked::File(identity))
    }

    /// Looks for a file in one coding; with its descriptor if it `must_open`, otherwise in memory first.
    async fn look_at(&self, name: &str, path: &[u8], coding: Coding, must_open: bool) -> Result<Looked, Failure> {
        let known = self.cache.known(name, coding, self.disk.now_ms());
        if let (Some((file, true)), false) = (&known, must_open) {
            let ready = file.clone().ok_or(Failure::Absent)?;
            return Ok(Looked::File(Found { ready, coding, handle: None }));
        }
        let (known, is_fresh) = known.unwrap_or_default();
        let is_file = is_fresh && known.is_some();
        let on_disk = match coding {
            Coding::Identity => Cow::Borrowed(path),
            Coding::Brotli => Cow::Owned([path, b".br"].concat()),
            Coding::Zstd => Cow::Owned([path, b".zst"].concat()),
            Coding::Gzip => Cow::Owned([path, b".gz"].concat()),
        };
        let is_known = |stamp: Stamp| known.as_ref().filter(|ready| ready.stamp == stamp && ready.is_settled);
        let opened = self.open(&on_disk, is_file, |stamp| must_open || is_known(stamp).is_none()).await;
        let now_ms = self.disk.now_ms();
        let (stamp, handle) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) if coding == Coding::Identity => return Ok(Looked::Directory),
            Ok(None) | Err(Failure::Absent) if coding != Coding::Identity => {
                self.cache.put(name, coding, None, now_ms);
                return Err(Failure::Absent);
            }
            Ok(None) => return Err(Failure::Absent),
            Err(failure) => {
                self.cache.forget(name);
                return Err(failure);
            }
        };
        let ready = match is_known(stamp) {
            Some(ready) => {
                self.cache.refresh(name, coding, now_ms);
                ready.clone()
            }
            None => {
                let ready = Rc::new(Ready::new(stamp, coding, self.files.describe(path), SystemTime::now()));
                self.cache.put(name, coding, Some(ready.clone()), now_ms);
                ready
            }
        };
        Ok(Looked::File(Found { ready, coding, handle }))
    }

    /// Sees what a path is, unless it `is_file` for sure, and opens it if that is wanted. `None`: it is a directory.
    ///
    /// Twice, since opening is noticed by what is no file: a writer that waits at a FIFO, a tape that rewinds.
    async fn open(
        &self,
        path: &[u8],
        is_file: bool,
        wants: impl Fn(Stamp) -> bool,
    ) -> Result<Option<(Stamp, Option<Handle>)>, Failure> {
        if !is_file {
            let looked = self.root.get(&self.disk, path, Open::Look).await?;
            match stamp(&looked)? {
                Some(stamp) if wants(stamp) => {}
                Some(stamp) => return Ok(Some((stamp, None))),
                None => return Ok(None),
            }
        }
        let handle = self.root.get(&self.disk, path, Open::Read).await?;
        Ok(stamp(&handle)?.map(|stamp| (stamp, Some(handle))))
    }

    /// Answers with a file, reading as much of it as that takes.
    async fn send(&self, found: Found, path: &[u8], request: &Request) -> Result<Response, Failure> {
        let conditions = Conditions::of(request.head());
        self.send_to(found, path, &conditions, request.method()).await
    }

    async fn send_to(
        &self,
        found: Found,
        path: &[u8],
        conditions: &Conditions<'_>,
        method: &Method,
    ) -> Result<Response, Failure> {
        let Found { mut ready, coding, mut handle } = found;
        let name = encode(path);
        let mut tries = 0;
        loop {
            let plan = Plan::of(&ready, conditions, method);
            if !plan.needs_content() {
                return Ok(bare(&ready, &plan));
            }
            if let Some(content) = &ready.content {
                return Ok(from_memory(&ready, content, plan, || self.boundary()));
            }
            if let Some(open) = handle.take() {
                tries += 1;
                if !self.cache.takes(ready.stamp.size) || tries > FILE_TRIES_MAX {
                    let (resident, counters) = (ready.resident.clone(), self.counters.clone());
                    let source = Source { handle: open, resident, counters };
                    return Ok(from_disk(&ready, source, plan, || self.boundary()));
                }
                if let Some(content) = read_whole(&open, ready.stamp).await? {
                    ready = Rc::new(ready.with_content(content, SystemTime::now()));
                    self.cache.put(&name, coding, Some(ready.clone()), self.disk.now_ms());
                    continue;
                }
            }
            // It changed while it was read, or it is known and not open.
            let Looked::File(again) = self.look_at(&name, path, coding, true).await? else {
                return Err(Failure::Absent);
            };
            (ready, handle) = (again.ready, again.handle);
        }
    }

    /// What is sent where nothing was found, and what says so.
    async fn fail(&self, failure: Failure, request: &Request) -> Response {
        match failure {
            Failure::Absent => {
                if let Some(fallback) = &self.files.fallback
                    && let Ok(Looked::File(found)) = self.look(fallback.as_bytes(), request).await
                    && let Ok(response) = self.send(found, fallback.as_bytes(), request).await
                {
                    return response;
                }
                self.refuse(StatusCode::NOT_FOUND).await
            }
            Failure::Forbidden => self.refuse(StatusCode::FORBIDDEN).await,
            Failure::Exhausted(error) => {
                tracing::debug!("a file could not be opened: {error}");
                let response = self.refuse(StatusCode::SERVICE_UNAVAILABLE).await;
                response.with_header(header::RETRY_AFTER, RETRY_AFTER_S)
            }
            Failure::Broken(error) => {
                tracing::error!("a file could not be read: {error}");
                self.refuse(StatusCode::INTERNAL_SERVER_ERROR).await
            }
        }
    }

    /// The page for an error, or its name.
    async fn refuse(&self, status: StatusCode) -> Response {
        match self.files.error_pages.iter().find(|(of, _)| *of == status) {
            Some((_, page)) => match self.error_page(page).await {
                Ok((ready, content)) => {
                    Response::bytes(ready.media_type.clone(), Body::from(content)).with_status(status)
                }
                Err(failure) => {
                    tracing::warn!("the page for {status}, {page:?}, cannot be shown: {failure:?}");
                    Response::from(status)
                }
            },
            None => Response::from(status),
        }
    }

    async fn error_page(&self, page: &str) -> Result<(Rc<Ready>, Bytes), Failure> {
        let name = encode(page.as_bytes());
        for must_open in [false, true] {
            let Looked::File(found) = self.look_at(&name, page.as_bytes(), Coding::Identity, must_open).await? else {
                return Err(Failure::Absent);
            };
            if let Some(content) = &found.ready.content {
                return Ok((found.ready.clone(), content.clone()));
            }
            let Some(handle) = &found.handle else { continue };
            if let Some(content) = read_whole(handle, found.ready.stamp).await? {
                let ready = Rc::new(found.ready.with_content(content.clone(), SystemTime::now()));
                if self.cache.takes(ready.stamp.size) {
                    self.cache.put(&name, Coding::Identity, Some(ready.clone()), self.disk.now_ms());
                }
                return Ok((ready, content));
            }
        }
        Err(Failure::Absent)
    }
}

/// By what an open file is known; `None`: it is a directory.
fn stamp(handle: &Handle) -> Result<Option<Stamp>, Failure> {
    let stat = handle.stat()?;
    match what(&stat) {
        What::File => Ok(Some(Stamp::of(&stat))),
        What::Directory => Ok(None),
        What::Other => Err(Failure::Absent),
    }
}

/// All of a file; `None` if it changed meanwhile.
async fn read_whole(handle: &Handle, stamp: Stamp) -> Result<Option<Bytes>, Failure> {
    let size = usize::try_from(stamp.size).map_err(|_| Failure::Absent)?;
    let mut content = BytesMut::with_capacity(size);
    while content.len() < size {
        let at = content.len();
        let (result, filled) = handle.read(at as u64, content).await;
        content = filled;
        if result? == 0 {
            return Ok(None);
        }
    }
    content.truncate(size);
    let is_same = Stamp::of(&handle.stat()?) == stamp;
    Ok(is_same.then(|| content.freeze()))
}

fn join(directory: &[u8], name: &str) -> Vec<u8> {
    match directory {
        b"" => name.as_bytes().to_vec(),
        directory => [directory, b"/", name.as_bytes()].concat(),
    }
}

fn redirect(location: &str) -> Response {
    Response::redirect(StatusCode::MOVED_PERMANENTLY, location)
}
