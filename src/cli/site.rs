//! The flags of `serve` that are about static files, and the router they make. Floor 8.

use super::args::{number, yes_or_no};
use crate::{
    Files, Response, Router,
    http::{Body, HeaderValue, StatusCode},
    limits::FILE_CACHE_BYTES,
};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const FILES: &str = "Static files";

/// Arguments of `serve` for static files.
#[derive(Clone, Debug, Default, Args)]
pub struct SiteArgs {
    #[allow(rustdoc::broken_intra_doc_links)] // it is help, where brackets are brackets
    /// Serve the files beneath this directory, at / or at a path, in place of the demo; may come again, or as a list
    /// with commas
    #[arg(long, value_name = "[/PATH=]DIR", env = "EVERYCORE_ROOT", value_delimiter = ',', help_heading = FILES)]
    #[arg(value_parser = mount)]
    pub root: Vec<Mount>,
    /// What stands for a directory; may come again, or as a list with commas: the first that is there
    #[arg(long, value_name = "NAME", env = "EVERYCORE_INDEX", value_delimiter = ',', help_heading = FILES)]
    #[arg(default_value = "index.html")]
    pub index: Vec<String>,
    /// The file beneath the root that is sent where none is: for an application that reads the path itself
    #[arg(long, value_name = "FILE", env = "EVERYCORE_FALLBACK", help_heading = FILES)]
    pub fallback: Option<String>,
    /// List directories that have no index
    #[arg(long, env = "EVERYCORE_LISTING", value_parser = yes_or_no, help_heading = FILES)]
    pub listing: bool,
    /// Send FILE.br, FILE.zst or FILE.gz in place of FILE to those who accept it, which is the default
    #[arg(long, env = "EVERYCORE_PRECOMPRESSED", value_parser = yes_or_no, help_heading = FILES)]
    #[arg(overrides_with = "no_precompressed")]
    pub precompressed: bool,
    /// Look for no such siblings
    #[arg(long, env = "EVERYCORE_NO_PRECOMPRESSED", value_parser = yes_or_no, help_heading = FILES)]
    pub no_precompressed: bool,
    /// Cache-Control of the files that match, such as '*.css=max-age=3600' or 'assets/**=immutable'; the first that
    /// matches counts; may come again, or as a list with semicolons
    #[arg(long, value_name = "GLOB=VALUE", env = "EVERYCORE_CACHE_CONTROL", value_delimiter = ';', help_heading = FILES)]
    #[arg(value_parser = pair)]
    pub cache_control: Vec<(String, String)>,
    /// Media type of an extension, such as 'log=text/plain; charset=utf-8'; may come again, or as a list with commas
    #[arg(long, value_name = "EXT=TYPE", env = "EVERYCORE_MIME", value_delimiter = ',', help_heading = FILES)]
    #[arg(value_parser = pair)]
    pub mime: Vec<(String, String)>,
    /// The file beneath the root that is sent with an error, such as 404=404.html; may come again, or as a list with
    /// commas
    #[arg(long, value_name = "STATUS=FILE", env = "EVERYCORE_ERROR_PAGE", value_delimiter = ',', help_heading = FILES)]
    #[arg(value_parser = error_page)]
    pub error_page: Vec<(u16, String)>,
    /// Symbolic links that are followed: those that stay beneath the root, or none
    #[arg(long, value_name = "WHICH", env = "EVERYCORE_SYMLINKS", default_value = "beneath", help_heading = FILES)]
    pub symlinks: Symlinks,
    /// Bytes of small files that each shard keeps in memory, each root
    #[arg(long, value_name = "BYTES", env = "EVERYCORE_FILE_CACHE", default_value_t = FILE_CACHE_BYTES, help_heading = FILES)]
    #[arg(value_parser = number::<u64>)]
    pub file_cache: u64,
}

/// A directory and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// With a slash at its beginning.
    pub path: String,
    /// The directory.
    pub root: PathBuf,
}

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Symlinks {
    /// Those that stay beneath the root.
    #[default]
    Beneath,
    /// None.
    Never,
}

/// A page of an error that the server itself answers with.
#[derive(Clone, Debug)]
struct Page {
    status: StatusCode,
    media_type: HeaderValue,
    text: Bytes,
}

/// What serves the roots. Each shard makes its router of it.
#[derive(Clone, Debug)]
pub(super) struct SitePlan {
    args: SiteArgs,
    pages: Vec<Page>,
}

impl SitePlan {
    /// `None`: there is no root, so that the demo is served.
    ///
    /// # Errors
    /// A page for an error is beneath no root.
    pub(super) fn new(args: SiteArgs) -> io::Result<Option<Self>> {
        if args.root.is_empty() {
            return Ok(None);
        }
        let pages = args.error_page.iter().map(|(status, file)| args.page(*status, file)).collect::<io::Result<_>>()?;
        Ok(Some(SitePlan { args, pages }))
    }

    pub(super) fn mounts(&self) -> &[Mount] {
        &self.args.root
    }

    pub(super) fn router(&self) -> Router {
        let args = &self.args;
        let mounted =
            args.root.iter().fold(Router::new(), |router, mount| router.files(&mount.path, args.files(&mount.root)));
        let pages = self.pages.clone();
        mounted.error_page(move |error| {
            let page = pages.iter().find(|page| page.status == error.status)?;
            Some(Response::bytes(page.media_type.clone(), Body::from(page.text.clone())))
        })
    }
}

impl SiteArgs {
    fn files(&self, root: &Path) -> Files {
        let mut files = Files::new(root)
            .listing(self.listing)
            .precompressed(!self.no_precompressed)
            .symlinks(self.symlinks == Symlinks::Beneath)
            .cache_bytes(self.file_cache);
        if let Some(fallback) = &self.fallback {
            files = files.fallback(fallback);
        }
        files = self.index.iter().fold(files, |files, name| files.index(name));
        files = self.cache_control.iter().fold(files, |files, (glob, value)| files.cache_control(glob, value));
        files = self.mime.iter().fold(files, |files, (extension, media_type)| files.media_type(extension, media_type));
        self.error_page.iter().fold(files, |files, (status, page)| files.error_page(*status, page))
    }

    /// A page for the errors that no root answers: it is read once.
    fn page(&self, status: u16, file: &str) -> io::Result<Page> {
        let beneath = file.trim_start_matches('/');
        let read = |mount: &Mount| fs::read(mount.root.join(beneath)).ok();
        let text = self.root.iter().find_map(read).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("--error-page {status}={file}: expected a file beneath a --root"),
            )
        })?;
        let media_type = Files::new("").media_type_of(beneath);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Ok(Page { status, media_type, text: text.into() })
    }
}

fn mount(text: &str) -> Result<Mount, String> {
    let (path, root) = match text.split_once('=') {
        Some((path, root)) if path.starts_with('/') && !path[1..].contains("//") => (path, root),
        _ => ("/", text),
    };
    if root.is_empty() {
        return Err("expected a directory, or /PATH=DIR".to_owned());
    }
    Ok(Mount { path: path.to_owned(), root: root.into() })
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected a name, = and a value".to_owned()),
    }
}

fn error_page(text: &str) -> Result<(u16, String), String> {
    let (status, file) = pair(text).map_err(|_| "expected STATUS=FILE, such as 404=404.html".to_owned())?;
    match status.parse() {
        Ok(status @ 400..=599) => Ok((status, file)),
        _ => Err("expected the status of an error, 400 to 599, before the =".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_have_a_path_or_stand_at_the_root() {
        #[track_caller]
        fn check(text: &str, expected: Option<(&str, &str)>) {
            let expected = expected.map(|(path, root)| Mount { path: path.to_owned(), root: root.into() });
            assert_eq!(mount(text).ok(), expected, "{text}");
        }
        check("site", Some(("/", "site")));
        check("/srv", Some(("/", "/srv")));
        check("/=/srv", Some(("/", "/srv")));
        check("/docs=/srv/docs", Some(("/docs", "/srv/docs")));
        check("/docs/=a=b", Some(("/docs/", "a=b")));
        check("./a=b", Some(("/", "./a=b")));
        check("", None);
        check("/docs=", None);
    }

    #[test]
    fn pairs_are_split_at_the_first_sign() {
        assert_eq!(pair("*.css=max-age=60"), Ok(("*.css".to_owned(), "max-age=60".to_owned())));
        assert_eq!(error_page("404=/a/404.html"), Ok((404, "/a/404.html".to_owned())));
        for wrong in ["", "a", "=a", "a="] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
        for wrong in ["200=a", "399=a", "600=a", "x=a", "404", "404="] {
            assert!(error_page(wrong).is_err(), "{wrong}");
        }
    }
}
