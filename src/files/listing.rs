//! Directories' contents as a page.

use super::path::encode;
use crate::limits::LISTING_ENTRIES_MAX;
use rustix::fs::{Dir, FileType};
use std::{
    fmt::Write,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// What a directory holds, as far as it is shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Directories first, each part by name.
    entries: Vec<Entry>,
    /// There is more.
    is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    is_file: bool,
    name: Vec<u8>,
}

impl Listing {
    /// Reads a directory. Blocks.
    ///
    /// # Errors
    /// What reading it failed with.
    pub(super) fn read(directory: &OwnedFd) -> io::Result<Self> {
        let mut listing = Listing::default();
        for entry in Dir::read_from(directory.as_fd())? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name.starts_with(b".") {
                continue;
            }
            if listing.entries.len() == LISTING_ENTRIES_MAX {
                listing.is_cut = true;
                break;
            }
            let is_file = entry.file_type() != FileType::Directory;
            listing.entries.push(Entry { is_file, name: name.to_owned() });
        }
        listing.entries.sort_unstable();
        Ok(listing)
    }

    /// The page, for a directory shown as `path`.
    pub(super) fn page(&self, path: &[u8]) -> String {
        let title = escape(&String::from_utf8_lossy(path));
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Index of {title}</title>\n\
             <h1>Index of {title}</h1>\n<ul>\n"
        );
        if path != b"/" {
            page.push_str("<li><a href=\"../\">../</a>\n");
        }
        for Entry { is_file, name } in &self.entries {
            let slash = if *is_file { "" } else { "/" };
            // `./` keeps a name with a colon from being taken for a scheme.
            let (href, shown) = (encode(name), escape(&String::from_utf8_lossy(name)));
            let href = href.replace('&', "&amp;").replace('\'', "&#39;");
            writeln!(page, "<li><a href=\"./{href}{slash}\">{shown}{slash}</a>").expect("memory takes all");
        }
        page.push_str("</ul>\n");
        if self.is_cut {
            writeln!(page, "<p>There is more: only {LISTING_ENTRIES_MAX} entries are shown.")
                .expect("memory takes all");
        }
        page
    }
}

/// As text in HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_sorted_escaped_and_encoded() {
        let entry = |is_file, name: &[u8]| Entry { is_file, name: name.to_owned() };
        let mut entries = vec![
            entry(true, b"b & <i>.txt"),
            entry(true, b"a\xff\"'.txt"),
            entry(false, b"z"),
            entry(true, b"javascript:alert(1)"),
            entry(true, b"q?x#y%z"),
        ];
        entries.sort_unstable();
        let page = Listing { entries, is_cut: false }.page(b"/<docs>/");
        let expected = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
            <title>Index of /&lt;docs&gt;/</title>\n<h1>Index of /&lt;docs&gt;/</h1>\n<ul>\n\
            <li><a href=\"../\">../</a>\n\
            <li><a href=\"./z/\">z/</a>\n\
            <li><a href=\"./a%FF%22&#39;.txt\">a\u{fffd}&quot;&#39;.txt</a>\n\
            <li><a href=\"./b%20&amp;%20%3Ci%3E.txt\">b &amp; &lt;i&gt;.txt</a>\n\
            <li><a href=\"./javascript:alert(1)\">javascript:alert(1)</a>\n\
            <li><a href=\"./q%3Fx%23y%25z\">q?x#y%z</a>\n</ul>\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn page_says_where_it_is_cut() {
        let page = Listing { entries: Vec::new(), is_cut: true }.page(b"/");
        assert!(page.ends_with("<ul>\n</ul>\n<p>There is more: only 10000 entries are shown.\n"), "{page}");
    }
}
