//! Which media type a file's name stands for. Pure.

use crate::http::HeaderValue;

const UNKNOWN: &str = "application/octet-stream";

/// The types of file names by their extensions, with an author's own before the usual ones.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaTypes {
    /// Extensions in lower case.
    own: Vec<(String, HeaderValue)>,
}

impl MediaTypes {
    /// Names with this extension have this type from now on.
    pub(super) fn set(&mut self, extension: &str, media_type: HeaderValue) {
        self.own.insert(0, (extension.trim_start_matches('.').to_ascii_lowercase(), media_type));
    }

    /// The value of Content-Type. Text is called UTF-8, which is what text on the web is.
    pub(super) fn of(&self, path: &[u8]) -> HeaderValue {
        let extension = extension(path);
        if let Some((_, own)) = self.own.iter().find(|(other, _)| extension.eq_ignore_ascii_case(other)) {
            return own.clone();
        }
        let media_type = match mime_guess::from_ext(extension).first_raw() {
            // What RFC 9239 and RFC 8081 made of them.
            Some("application/javascript") => "text/javascript",
            Some("application/font-woff") => "font/woff",
            guess => guess.unwrap_or(UNKNOWN),
        };
        if media_type.starts_with("text/") {
            let text = format!("{media_type}; charset=utf-8");
            return HeaderValue::from_maybe_shared(text.into_bytes()).unwrap_or(HeaderValue::from_static(UNKNOWN));
        }
        HeaderValue::from_static(media_type)
    }
}

/// Empty if there is none.
fn extension(path: &[u8]) -> &str {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    let extension = memchr::memrchr(b'.', name).filter(|at| *at > 0).map(|at| &name[at + 1..]);
    str::from_utf8(extension.unwrap_or_default()).unwrap_or_default()
}

/// Whether files of this type may gain by a content coding: others are compressed by themselves, and nobody is asked
/// for a sibling of theirs.
pub(super) fn is_compressible(media_type: &HeaderValue) -> bool {
    const COMPRESSED: [&[u8]; 7] = [
        b"application/gzip",
        b"application/zip",
        b"application/zstd",
        b"application/x-7z-compressed",
        b"application/x-bzip2",
        b"font/woff",
        b"font/woff2",
    ];
    let essence = media_type.as_bytes().split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    match essence {
        b"image/svg+xml" | b"image/bmp" | b"image/x-icon" => true,
        _ if [&b"image/"[..], b"audio/", b"video/"].iter().any(|kind| essence.starts_with(kind)) => false,
        _ => !COMPRESSED.contains(&essence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_by_extension() {
        let types = MediaTypes::default();
        for (path, expected, compressible) in [
            ("index.html", "text/html; charset=utf-8", true),
            ("a.b/STYLE.CSS", "text/css; charset=utf-8", true),
            ("app.js", "text/javascript; charset=utf-8", true),
            ("app.mjs", "text/javascript; charset=utf-8", true),
            ("data.json", "application/json", true),
            ("module.wasm", "application/wasm", true),
            ("logo.svg", "image/svg+xml", true),
            ("favicon.ico", "image/x-icon", true),
            ("photo.jpeg", "image/jpeg", false),
            ("photo.webp", "image/webp", false),
            ("film.mp4", "video/mp4", false),
            ("text.woff", "font/woff", false),
            ("text.woff2", "font/woff2", false),
            ("all.tar.gz", "application/gzip", false),
            ("notes.txt", "text/plain; charset=utf-8", true),
            ("app.webmanifest", "application/manifest+json", true),
            ("README", "application/octet-stream", true),
            ("a.html/README", "application/octet-stream", true),
            ("a.", "application/octet-stream", true),
            ("a.nosuchthing", "application/octet-stream", true),
        ] {
            let media_type = types.of(path.as_bytes());
            assert_eq!(media_type, expected, "{path}");
            assert_eq!(is_compressible(&media_type), compressible, "{path}");
        }
        assert_eq!(types.of(b"a.\xff"), "application/octet-stream");
    }

    #[test]
    fn own_types_come_first_and_the_last_of_two_counts() {
        let mut types = MediaTypes::default();
        types.set(".LOG", HeaderValue::from_static("text/x-log"));
        types.set("html", HeaderValue::from_static("a/b"));
        types.set("html", HeaderValue::from_static("application/xhtml+xml"));
        assert_eq!(types.of(b"x.log"), "text/x-log");
        assert_eq!(types.of(b"x.HTML"), "application/xhtml+xml");
    }
}
