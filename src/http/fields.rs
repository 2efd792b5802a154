//! Fields of an answer that is given again and again: rendered once, shared by all its answers. Floor 1.

use super::{HeaderName, HeaderValue, header, response::encode_field};
use std::rc::Rc;

/// Fields that answers share: pairs to look at, and the same as lines to send.
#[derive(Debug)]
pub(crate) struct ReadyFields {
    content_type: Option<HeaderValue>,
    /// The others.
    pairs: Vec<(HeaderName, HeaderValue)>,
    /// The others as lines.
    lines: Vec<u8>,
}

impl ReadyFields {
    /// Renders `pairs`. Framing, Date and Server are the encoder's and must not be among them.
    pub(crate) fn new(pairs: Vec<(HeaderName, HeaderValue)>) -> Rc<ReadyFields> {
        let (mut types, pairs): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| *name == header::CONTENT_TYPE);
        debug_assert!(pairs.iter().all(|(name, _)| !matches!(
            *name,
            header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::CONNECTION | header::DATE | header::SERVER
        )));
        let content_type = types.pop().map(|(_, value)| value);
        let mut lines = Vec::new();
        for (name, value) in &pairs {
            encode_field(&mut lines, name.as_str(), value.as_bytes());
        }
        Rc::new(ReadyFields { content_type, pairs, lines })
    }

    pub(super) fn content_type(&self) -> Option<&HeaderValue> {
        self.content_type.as_ref()
    }

    pub(super) fn pairs(&self) -> &[(HeaderName, HeaderValue)] {
        &self.pairs
    }

    pub(super) fn lines(&self) -> &[u8] {
        &self.lines
    }
}
