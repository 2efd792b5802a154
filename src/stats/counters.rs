//! What one shard counts. Floor 1, pure.
//!
//! For: adding to a plain `Cell` where something happens, and copying all of them when someone asks. Not for:
//! durations (see [`Histogram`](super::Histogram)), sharing between threads, or names and text of an exporter.
//!
//! Every counter is written once, in the tables below; its documentation is also its help text for exporters.

use super::Count;
use http::Method;
use serde::{Deserialize, Serialize};
use std::cell::Cell;

/// How a counter behaves over time and between shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; merged by adding.
    Counter,
    /// Goes up and down; merged by adding.
    Gauge,
    /// Highest level since the start; merged by taking the highest, since shards peak at different times.
    Peak,
}

/// Makes of each table `Live => Copied { /// doc, field: kind }` the struct of cells, the struct of numbers and what
/// is done with them. A kind is `counter`, `gauge`, `peak` or, for a nested group, `(Live Copied)`.
macro_rules! counters {
    (@cell ($live:ident $copied:ident)) => { $live };
    (@cell $kind:ident) => { Cell<u64> };
    (@number ($live:ident $copied:ident)) => { $copied };
    (@number $kind:ident) => { u64 };
    (@read ($($group:tt)+) $cell:expr) => { $cell.snapshot() };
    (@read $kind:ident $cell:expr) => { $cell.get() };
    (@merge ($($group:tt)+) $into:expr, $from:expr) => { $into.merge(&$from) };
    (@merge peak $into:expr, $from:expr) => { $into = $into.max($from) };
    (@merge $kind:ident $into:expr, $from:expr) => { $into = $into.wrapping_add($from) };
    (@visit ($($group:tt)+) $number:expr, $path:ident, $help:expr, $see:ident) => { $number.walk($path, $see) };
    (@visit counter $number:expr, $path:ident, $help:expr, $see:ident) => { $see($path, Kind::Counter, $help, $number) };
    (@visit gauge $number:expr, $path:ident, $help:expr, $see:ident) => { $see($path, Kind::Gauge, $help, $number) };
    (@visit peak $number:expr, $path:ident, $help:expr, $see:ident) => { $see($path, Kind::Peak, $help, $number) };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $json:literal) => { $json };

    ($(
        #[doc = $about:literal]
        $live:ident => $copied:ident {
            $( $(#[doc = $doc:literal])+ $field:ident $(as $json:literal)?: $kind:tt, )+
        }
    )+) => { $(
        #[doc = $about]
        #[derive(Debug, Default)]
        pub struct $live {
            $( $(#[doc = $doc])+ pub $field: counters!(@cell $kind), )+
        }

        #[doc = concat!("A copy of `", stringify!($live), "` at one moment, or the merged copies of several shards.")]
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $copied {
            $( $(#[doc = $doc])+ $(#[serde(rename = $json)])? pub $field: counters!(@number $kind), )+
        }

        impl $live {
            /// What they show now.
            pub fn snapshot(&self) -> $copied {
                $copied { $( $field: counters!(@read $kind self.$field), )+ }
            }
        }
        impl $copied {
            /// Adds another shard's, field by field; of peaks it keeps the highest.
            pub fn merge(&mut self, other: &Self) {
                $( counters!(@merge $kind self.$field, other.$field); )+
            }
            fn walk(&self, path: &mut Vec<&'static str>, see: &mut impl FnMut(&[&'static str], Kind, &'static str, u64)) {
                $(
                    path.push(counters!(@name $field $($json)?));
                    counters!(@visit $kind self.$field, path, concat!($($doc),+).trim_ascii(), see);
                    path.pop();
                )+
            }
        }
    )+ };
}

/// Makes of a table `field = Variant` a group of counters, an enum to choose one by, and the choice.
macro_rules! counters_by {
    (
        $cause:ident, $(#[doc = $about:literal])+
        $live:ident => $copied:ident { $( #[doc = $doc:literal] $field:ident = $variant:ident, )+ }
    ) => {
        counters! { $(#[doc = $about])+ $live => $copied { $( #[doc = $doc] $field: counter, )+ } }

        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $cause { $( #[doc = $doc] $variant, )+ }

        impl $live {
            /// The counter of one cause.
            pub fn by(&self, cause: $cause) -> &Cell<u64> {
                match cause { $( $cause::$variant => &self.$field, )+ }
            }
        }
    };
}

counters! {
    /// Everything one shard counts. Made and added to on the shard's own thread only.
    Counters => ShardSnapshot {
        /// Request heads that were read, whole and valid.
        requests: counter,
        /// Those requests by method.
        methods: (Methods MethodsSnapshot),
        /// Handlers that panicked; each was answered with 500 where that was still possible.
        handler_panics: counter,
        /// Handlers that were dropped before they answered, because the client went away.
        handlers_dropped: counter,
        /// Connections.
        connections: (Connections ConnectionsSnapshot),
        /// Those of them that are raw TCP.
        tcp: (Protocol ProtocolSnapshot),
        /// Bytes on connections, heads and bodies together.
        bytes: (Bytes BytesSnapshot),
        /// Final and interim responses by status class (RFC 9110 §15).
        responses: (Responses ResponsesSnapshot),
        /// Requests refused before a handler saw them.
        rejects: (Rejects RejectsSnapshot),
        /// The driver's loop and its ring.
        driver as "loop": (Driver DriverSnapshot),
        /// Buffers.
        buffers: (Buffers BuffersSnapshot),
        /// What came by AJP; the other counters have it, too.
        ajp: (Ajp AjpSnapshot),
        /// What waits to be accepted.
        accept_queue: (AcceptQueue AcceptQueueSnapshot),
        /// Static files.
        files: (Files FilesSnapshot),
        /// What was counted in the last seconds.
        recent: (Recent RecentSnapshot),
    }

    /// Requests of one shard by method.
    Methods => MethodsSnapshot {
        /// Requests with GET: all that the others do not count, see [`ShardSnapshot::fill_in`].
        get: counter,
        /// Requests with HEAD.
        head: counter,
        /// Requests with POST.
        post: counter,
        /// Requests with PUT.
        put: counter,
        /// Requests with PATCH.
        patch: counter,
        /// Requests with DELETE.
        delete: counter,
        /// Requests with OPTIONS.
        options: counter,
        /// Requests with any other method.
        other: counter,
    }

    /// Connections of one shard.
    Connections => ConnectionsSnapshot {
        /// Connections accepted by this shard's listener.
        accepted: counter,
        /// Connections open now on this shard.
        active: gauge,
        /// Open connections that wait for a request.
        idle: gauge,
        /// Open connections of which a part of a request head is here.
        reading_head: gauge,
        /// Open connections whose request is with a handler, and raw TCP ones.
        in_handler: gauge,
        /// Open connections whose answer is on its way out.
        writing: gauge,
        /// Open connections by age.
        ages: (Ages AgesSnapshot),
        /// Connections taken over from other shards.
        handoffs_in: counter,
        /// Connections given to other shards.
        handoffs_out: counter,
        /// Times accepting paused because no descriptor was left (EMFILE, ENFILE).
        accept_pauses: counter,
        /// Connections that ended, by cause.
        closed: (Closed ClosedSnapshot),
    }

    /// Connections of one shard that speak one protocol.
    Protocol => ProtocolSnapshot {
        /// Connections that were given to a handler.
        accepted: counter,
        /// Connections that a handler has now.
        active: gauge,
        /// Bytes that handlers have read.
        received: counter,
        /// Bytes that handlers have written.
        sent: counter,
        /// Connections that ended, by cause.
        closed: (Closed ClosedSnapshot),
    }

    /// Open connections of one shard by age.
    Ages => AgesSnapshot {
        /// Open connections younger than a second.
        below_1s: gauge,
        /// Open connections of 1 to 10 seconds.
        below_10s: gauge,
        /// Open connections of 10 to 60 seconds.
        below_1m: gauge,
        /// Open connections of 1 to 10 minutes.
        below_10m: gauge,
        /// Open connections of 10 to 60 minutes.
        below_1h: gauge,
        /// Open connections of an hour or more.
        older: gauge,
    }

    /// Bytes on the connections of one shard.
    Bytes => BytesSnapshot {
        /// Bytes received.
        received: counter,
        /// Bytes the kernel took for sending.
        sent: counter,
    }

    /// Responses of one shard by status class.
    Responses => ResponsesSnapshot {
        /// Interim responses, 1xx.
        informational as "1xx": counter,
        /// Responses with status 2xx.
        successful as "2xx": counter,
        /// Responses with status 3xx.
        redirection as "3xx": counter,
        /// Responses with status 4xx.
        client_error as "4xx": counter,
        /// Responses with status 5xx.
        server_error as "5xx": counter,
    }

    /// Requests of one shard that were refused before a handler saw them, by kind.
    Rejects => RejectsSnapshot {
        /// Malformed request, status 400 (and any status not listed here).
        bad_request: counter,
        /// Request not complete in time, status 408.
        timeout: counter,
        /// Body larger than the limit, status 413.
        body_too_large: counter,
        /// Request target longer than the limit, status 414.
        uri_too_long: counter,
        /// Expectation that cannot be met, status 417.
        expectation: counter,
        /// Head larger than the limit, status 431.
        head_too_large: counter,
        /// Method or transfer coding that is not implemented, status 501.
        not_implemented: counter,
        /// Too many connections or requests at once, status 503.
        overload: counter,
        /// HTTP version that is not supported, status 505.
        version: counter,
    }

    /// The driver of one shard.
    Driver => DriverSnapshot {
        /// Turns of the loop.
        turns: counter,
        /// Times the executor was let run under load.
        visits: counter,
        /// Times the shard went to sleep for lack of events.
        parks: counter,
        /// Ticks of the ring's 1 ms timeout.
        ticks: counter,
        /// System calls that entered the ring.
        ring_enters: counter,
        /// Times the completion queue overflowed.
        cq_overflows: counter,
        /// Sends of which the kernel took only a part.
        send_short: counter,
        /// Time on a core, in user space and in the kernel, in ns.
        busy_ns: counter,
        /// Time neither on a core nor parked: waiting in the ring, or for a core, in ns.
        waiting_ns: counter,
        /// Time asleep for lack of events, in ns.
        parked_ns: counter,
        /// Time ready to run while others had the core, in ns; it is in the waiting or the parked time, too.
        delayed_ns: counter,
        /// Longest turn since the start, in ns: so long nothing else on the shard was looked after.
        turn_max_ns: peak,
        /// Longest turn of the last 60 s, in ns.
        turn_max_60s_ns: peak,
    }

    /// Buffers of one shard.
    Buffers => BuffersSnapshot {
        /// Buffers of connections that hold bytes: received and not yet read, or not yet sent.
        in_use: gauge,
        /// The bytes in them.
        in_use_bytes: gauge,
        /// Times the kernel filled one of the receive buffers that a shard's connections share.
        filled: counter,
        /// Most shared receive buffers filled at once; of several shards, the highest.
        peak: peak,
        /// Receives that found no shared buffer (ENOBUFS) and were armed again.
        enobufs: counter,
    }

    /// What came to one shard by AJP/1.3.
    Ajp => AjpSnapshot {
        /// AJP connections served here, those over the limit too.
        accepted: counter,
        /// AJP connections open now.
        active: gauge,
        /// Bytes received by AJP.
        received: counter,
        /// Bytes handed over to be sent by AJP.
        sent: counter,
        /// Requests that were forwarded, whole and valid.
        requests: counter,
        /// Times a proxy asked whether we are there (CPING).
        pings: counter,
        /// Requests refused with 403: a wrong secret, or an attribute that is not allowed.
        forbidden: counter,
        /// Requests and body packets that could not be understood.
        malformed: counter,
        /// AJP connections that ended, by cause.
        closed: (Closed ClosedSnapshot),
    }

    /// Connections that wait at the listeners of one shard. (Those of unix sockets are not told.)
    AcceptQueue => AcceptQueueSnapshot {
        /// Connections that wait to be accepted.
        waiting: gauge,
        /// Connections that may wait; more are refused or try again.
        room: gauge,
    }

    /// Static files of one shard.
    Files => FilesSnapshot {
        /// Requests for files that were answered from memory, without a look at the disk.
        cache_hits: counter,
        /// Requests for files for which the disk was looked at.
        cache_misses: counter,
        /// Files that were put out of memory to make room for others.
        cache_evictions: counter,
        /// Bytes of files kept in memory, with what is known of them.
        cached_bytes: gauge,
        /// Files that became shorter, or could not be read on, while they were sent; the connection was closed.
        broken_off: counter,
        /// Bytes of files that were sent from the kernel's page cache, without being read.
        sent_uncopied: counter,
    }

    /// What one shard counted in the last whole seconds, or since it started if that is shorter.
    Recent => RecentSnapshot {
        /// In the last second.
        last_1s as "1s": (Window WindowSnapshot),
        /// In the last 10 seconds.
        last_10s as "10s": (Window WindowSnapshot),
        /// In the last 60 seconds.
        last_60s as "60s": (Window WindowSnapshot),
    }

    /// What was counted in some seconds.
    Window => WindowSnapshot {
        /// Requests in these seconds.
        requests: gauge,
        /// Bytes received in these seconds.
        received: gauge,
        /// Bytes sent in these seconds.
        sent: gauge,
        /// Connections accepted in these seconds.
        accepted: gauge,
        /// Time on a core in these seconds, in ns.
        busy_ns: gauge,
    }
}

counters_by! {
    CloseCause,
    /// Why a connection ended.
    Closed => ClosedSnapshot {
        /// The peer closed it in good order.
        peer_closed = PeerClosed,
        /// A response or its handler asked for it (`connection: close`, HTTP/1.0, a body without end; raw TCP: it ended).
        server_closed = ServerClosed,
        /// It had served as many requests as one connection may.
        requests_max = RequestsMax,
        /// No request came in time, or nothing that a raw TCP handler awaited.
        idle_timeout = IdleTimeout,
        /// A request head did not arrive in time.
        header_timeout = HeaderTimeout,
        /// A request body did not arrive in time.
        body_timeout = BodyTimeout,
        /// The peer did not take the response in time.
        write_stall = WriteStall,
        /// The handler did not answer in time.
        handler_timeout = HandlerTimeout,
        /// The peer reset it (ECONNRESET, EPIPE).
        reset = Reset,
        /// Its request was refused, after which nothing it sends can be trusted.
        rejected = Rejected,
        /// The server is shutting down.
        drained = Drained,
        /// Another error of the socket, or a fault of ours.
        error = Error,
    }
}

impl Counters {
    /// Counts a request. Most are GETs, which are not counted twice: they are what the other methods leave.
    #[inline]
    pub fn request(&self, method: &Method) {
        self.requests.add(1);
        let by_method = match *method {
            Method::GET => return,
            Method::HEAD => &self.methods.head,
            Method::POST => &self.methods.post,
            Method::PUT => &self.methods.put,
            Method::PATCH => &self.methods.patch,
            Method::DELETE => &self.methods.delete,
            Method::OPTIONS => &self.methods.options,
            _ => &self.methods.other,
        };
        by_method.add(1);
    }
}

impl Responses {
    /// The counter of a status code's class. A code outside 100–599, which no response should have, counts as 5xx.
    #[inline]
    pub fn by_status(&self, status: u16) -> &Cell<u64> {
        match status {
            200..300 => &self.successful, // first, as the most common
            100..200 => &self.informational,
            300..400 => &self.redirection,
            400..500 => &self.client_error,
            _ => &self.server_error,
        }
    }
}

impl Rejects {
    /// The counter of a refusal, by the status it is answered with.
    pub fn by_status(&self, status: u16) -> &Cell<u64> {
        match status {
            408 => &self.timeout,
            413 => &self.body_too_large,
            414 => &self.uri_too_long,
            417 => &self.expectation,
            431 => &self.head_too_large,
            501 => &self.not_implemented,
            503 => &self.overload,
            505 => &self.version,
            _ => &self.bad_request,
        }
    }
}

impl ShardSnapshot {
    /// Completes a copy of one shard's counters by what follows from others.
    pub fn fill_in(&mut self) {
        let m = &mut self.methods;
        m.get = self.requests.wrapping_sub(m.head + m.post + m.put + m.patch + m.delete + m.options + m.other);
    }

    /// Calls `see` for every number: its path in the JSON, such as `["connections", "closed"]`, its kind, and its help.
    pub fn visit(&self, mut see: impl FnMut(&[&'static str], Kind, &'static str, u64)) {
        self.walk(&mut Vec::new(), &mut see);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    /// A snapshot whose numbers are `first`, `first + step`, … in the order of the JSON, so that no two are the same.
    fn numbered(first: u64, step: u64) -> ShardSnapshot {
        fn fill(value: &mut Value, next: &mut u64, step: u64) {
            match value {
                Value::Object(fields) => fields.values_mut().for_each(|field| fill(field, next, step)),
                number => {
                    *number = json!(*next);
                    *next += step;
                }
            }
        }
        let mut value = serde_json::to_value(ShardSnapshot::default()).unwrap();
        let mut next = first;
        fill(&mut value, &mut next, step);
        serde_json::from_value(value).unwrap()
    }

    fn fields(snapshot: &ShardSnapshot) -> Vec<(String, Kind, u64)> {
        let mut fields = Vec::new();
        snapshot.visit(|path, kind, help, number| {
            assert!(help.ends_with('.') && !help.starts_with(' ') && !help.contains('\n'), "{path:?}: {help:?}");
            fields.push((path.join("."), kind, number));
        });
        fields
    }

    #[test]
    fn json_has_the_documented_shape() {
        let counters = Counters::default();
        for method in ["GET", "GET", "HEAD", "GET", "PURGE", "GET", "GET", "TRACE"] {
            counters.request(&method.parse().unwrap());
        }
        counters.connections.accepted.add(3);
        counters.connections.active.add(3);
        counters.connections.active.sub(2);
        counters.connections.closed.by(CloseCause::IdleTimeout).add(1);
        counters.connections.closed.by(CloseCause::Error).add(1);
        counters.bytes.received.add(100);
        counters.bytes.sent.add(200);
        counters.responses.by_status(204).add(6);
        counters.rejects.by_status(414).add(1);
        counters.driver.turns.add(9);
        counters.buffers.peak.raise(3);
        counters.buffers.peak.raise(2);
        let window = json!({ "requests": 0, "received": 0, "sent": 0, "accepted": 0, "busy_ns": 0 });
        let closed = json!({
            "peer_closed": 0, "server_closed": 0, "requests_max": 0, "idle_timeout": 0, "header_timeout": 0,
            "body_timeout": 0, "write_stall": 0, "handler_timeout": 0, "reset": 0, "rejected": 0, "drained": 0, "error": 0,
        });
        let expected = json!({
            "requests": 8, "handler_panics": 0, "handlers_dropped": 0,
            "methods": {
                "get": 5, "head": 1, "post": 0, "put": 0, "patch": 0, "delete": 0, "options": 0, "other": 2,
            },
            "connections": {
                "accepted": 3, "active": 1, "handoffs_in": 0, "handoffs_out": 0, "accept_pauses": 0,
                "idle": 0, "reading_head": 0, "in_handler": 0, "writing": 0,
                "ages": { "below_1s": 0, "below_10s": 0, "below_1m": 0, "below_10m": 0, "below_1h": 0, "older": 0 },
                "closed": {
                    "peer_closed": 0, "server_closed": 0, "requests_max": 0, "idle_timeout": 1, "header_timeout": 0,
                    "body_timeout": 0, "write_stall": 0, "handler_timeout": 0, "reset": 0, "rejected": 0, "drained": 0,
                    "error": 1,
                },
            },
            "tcp": { "accepted": 0, "active": 0, "received": 0, "sent": 0, "closed": closed },
            "bytes": { "received": 100, "sent": 200 },
            "responses": { "1xx": 0, "2xx": 6, "3xx": 0, "4xx": 0, "5xx": 0 },
            "rejects": {
                "bad_request": 0, "timeout": 0, "body_too_large": 0, "uri_too_long": 1, "expectation": 0,
                "head_too_large": 0, "not_implemented": 0, "overload": 0, "version": 0,
            },
            "loop": {
                "turns": 9, "visits": 0, "parks": 0, "ticks": 0, "ring_enters": 0, "cq_overflows": 0, "send_short": 0,
                "busy_ns": 0, "waiting_ns": 0, "parked_ns": 0, "delayed_ns": 0, "turn_max_ns": 0, "turn_max_60s_ns": 0,
            },
            "buffers": { "in_use": 0, "in_use_bytes": 0, "filled": 0, "peak": 3, "enobufs": 0 },
            "ajp": {
                "accepted": 0, "active": 0, "received": 0, "sent": 0, "requests": 0, "pings": 0, "forbidden": 0,
                "malformed": 0, "closed": closed,
            },
            "accept_queue": { "waiting": 0, "room": 0 },
            "files": {
                "cache_hits": 0, "cache_misses": 0, "cache_evictions": 0, "cached_bytes": 0, "broken_off": 0,
                "sent_uncopied": 0,
            },
            "recent": { "1s": window, "10s": window, "60s": window },
        });
        let mut snapshot = counters.snapshot();
        snapshot.fill_in();
        assert_eq!(serde_json::to_value(snapshot).unwrap(), expected);
    }

    #[test]
    fn snapshot_survives_json_and_forgives_missing_fields() {
        let snapshot = numbered(1, 1);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<ShardSnapshot>(&text).unwrap(), snapshot);
        let older: ShardSnapshot = serde_json::from_str(r#"{"requests":4,"loop":{"parks":2}}"#).unwrap();
        assert_eq!((older.requests, older.driver.parks, older.bytes.sent), (4, 2, 0));
    }

    #[test]
    fn merge_adds_every_field_and_keeps_the_highest_peak() {
        let (a, b) = (numbered(1, 1), numbered(1_000, 10));
        let mut merged = a.clone();
        merged.merge(&b);
        let (of_a, of_b, of_merged) = (fields(&a), fields(&b), fields(&merged));
        let mut peaks = 0;
        for ((a, b), (name, kind, number)) in of_a.iter().zip(&of_b).zip(&of_merged) {
            peaks += usize::from(*kind == Kind::Peak);
            let expected = if *kind == Kind::Peak { a.2.max(b.2) } else { a.2 + b.2 };
            assert_eq!(*number, expected, "{name}");
        }
        assert_eq!(peaks, 3);
        let mut other_way = b.clone();
        other_way.merge(&a);
        assert_eq!(other_way, merged);
        merged = ShardSnapshot::default();
        merged.merge(&a);
        assert_eq!(merged, a);
    }

    #[test]
    fn visit_names_every_number_of_the_json_once() {
        fn leaves(value: &Value, path: &str, found: &mut BTreeSet<(String, u64)>) {
            match value {
                Value::Object(fields) => fields.iter().for_each(|(name, field)| {
                    leaves(field, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, found);
                }),
                number => assert!(found.insert((path.to_owned(), number.as_u64().unwrap()))),
            }
        }
        let snapshot = numbered(1, 1);
        let mut expected = BTreeSet::new();
        leaves(&serde_json::to_value(&snapshot).unwrap(), "", &mut expected);
        let visited: Vec<_> = fields(&snapshot).into_iter().map(|(name, _, number)| (name, number)).collect();
        assert_eq!(visited.len(), expected.len());
        assert_eq!(visited.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn status_counts_as_its_class() {
        let classes = [
            (100, "1xx"),
            (199, "1xx"),
            (200, "2xx"),
            (299, "2xx"),
            (300, "3xx"),
            (399, "3xx"),
            (400, "4xx"),
            (499, "4xx"),
            (500, "5xx"),
            (599, "5xx"),
            (99, "5xx"),
            (600, "5xx"),
        ];
        for (status, class) in classes {
            let responses = Responses::default();
            responses.by_status(status).add(1);
            assert_eq!(serde_json::to_value(responses.snapshot()).unwrap()[class], 1, "{status}");
        }
    }

    #[test]
    fn request_counts_as_its_method() {
        for method in ["get", "head", "post", "put", "patch", "delete", "options", "other"] {
            let counters = Counters::default();
            counters.request(&method.to_ascii_uppercase().parse().unwrap());
            let mut snapshot = counters.snapshot();
            snapshot.fill_in();
            let counted = serde_json::to_value(snapshot).unwrap();
            assert_eq!((&counted["requests"], &counted["methods"][method]), (&json!(1), &json!(1)), "{method}");
        }
    }

    #[test]
    fn refusal_counts_by_its_status() {
        let kinds = [
            (400, "bad_request"),
            (408, "timeout"),
            (413, "body_too_large"),
            (414, "uri_too_long"),
            (417, "expectation"),
            (431, "head_too_large"),
            (501, "not_implemented"),
            (503, "overload"),
            (505, "version"),
            (426, "bad_request"),
        ];
        for (status, kind) in kinds {
            let rejects = Rejects::default();
            rejects.by_status(status).add(1);
            assert_eq!(serde_json::to_value(rejects.snapshot()).unwrap()[kind], 1, "{status}");
        }
    }
}
