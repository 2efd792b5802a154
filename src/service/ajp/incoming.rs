//! A request body while it arrives: what is still to come, and whether it was asked for. Reads nothing itself. Floor 5.

use crate::{
    ajp::Fault,
    http::{Body, BodyError, Feed, FieldPairs, Reject},
    service::pace::Pace,
};
use bytes::Bytes;

/// A request body on its way to its reader. A proxy sends a packet of it when it is asked, and the first one of a body
/// whose length it announced unasked.
pub(super) struct Incoming {
    pub(super) feed: Feed,
    /// Announced bytes that have not come; `None`: nobody knows how many.
    remaining: Option<u64>,
    /// A packet of it is on its way. The next packet is data then, whatever it looks like.
    pub(super) is_owed: bool,
    pub(super) pace: Pace,
}

/// What a packet meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    Some,
    End,
    /// The proxy ends a body before its announced length: its client went away.
    CutOff,
}

impl Incoming {
    /// A body of `length` bytes, or of unknown length; and its reader's end.
    pub(super) fn new(length: Option<u64>, now: u64) -> (Self, Body) {
        let (feed, body) = Feed::new(length);
        (Incoming { feed, remaining: length, is_owed: length.is_some(), pace: Pace::new(now) }, body)
    }

    /// Takes the data of the packet that was owed.
    pub(super) fn take(&mut self, data: &[u8], now: u64) -> Result<Arrived, Fault> {
        self.is_owed = false;
        self.pace.progress = now;
        self.pace.received += data.len() as u64;
        match &mut self.remaining {
            None if data.is_empty() => return Ok(self.end()),
            None => {}
            Some(_) if data.is_empty() => {
                self.feed.fail(BodyError::PeerGone);
                return Ok(Arrived::CutOff);
            }
            Some(remaining) => *remaining = remaining.checked_sub(data.len() as u64).ok_or(Fault::BadBody)?,
        }
        self.feed.push(Bytes::copy_from_slice(data));
        // To ask beyond the announced end makes httpd fail the request.
        Ok(if self.remaining == Some(0) { self.end() } else { Arrived::Some })
    }

    fn end(&self) -> Arrived {
        self.feed.end(FieldPairs::new());
        Arrived::End
    }

    /// Its packets cannot be understood.
    pub(super) fn fail(&self) {
        self.feed.fail(BodyError::Malformed(Reject::BadPacket));
    }
}
