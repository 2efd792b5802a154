//! The access log of one connection: which request the next line is about, and when it is written. Floor 5.
//!
//! Where there is no log, a connection has no entry: one branch that is never taken, before and after each answer.

use super::Connection;
use crate::{http::Head, transport::Transport};

impl<T: Transport> Connection<T> {
    /// Begins the line of a request.
    #[inline(never)]
    pub(super) fn begin_entry(&mut self, head: &Head) {
        let conn = self.info();
        self.entry.get_or_insert_default().begin(head, &conn, self.head_ns);
    }

    /// Begins the line of what cannot be read as a request.
    #[inline(never)]
    pub(super) fn begin_refused_entry(&mut self) {
        let (conn, now) = (self.info(), self.io.now_ns());
        let input = &self.input[self.at..];
        self.entry.get_or_insert_default().begin_refused(input, &conn, now);
    }

    /// Writes the line of the request at work, if it has none yet.
    #[inline(never)]
    pub(super) fn close_entry(&mut self) {
        if let (Some(entry), Some(log)) = (&mut self.entry, &self.context.access_log)
            && entry.close()
        {
            log.write(entry, self.io.now_ns());
        }
    }
}
