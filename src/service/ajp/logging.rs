//! The access log of one connection: which request the next line is about, and when it is written. Floor 5.

use super::Connection;
use crate::{http::Request, transport::Transport};

impl<T: Transport> Connection<T> {
    /// Begins the line of a request: as its client, the one that the proxy names.
    pub(super) fn begin_entry(&mut self, request: &Request) {
        if let (Some(_), Some(conn)) = (&self.context.access_log, request.conn()) {
            self.entry.get_or_insert_default().begin(request.head(), conn, self.head_ns);
        }
    }

    /// Begins the line of what is refused before it is a request: its client is the proxy.
    pub(super) fn begin_refused_entry(&mut self) {
        if self.context.access_log.is_some() {
            let now = self.io.now_ns();
            self.entry.get_or_insert_default().begin_refused(&[], &self.io.conn_info(), now);
        }
    }

    /// Writes the line of the request at work, if it has none yet.
    pub(super) fn close_entry(&mut self) {
        if let (Some(entry), Some(log)) = (&mut self.entry, &self.context.access_log)
            && entry.close()
        {
            log.write(entry, self.io.now_ns());
        }
    }
}
