//! Who the client is where proxies stand in between: Forwarded and X-Forwarded-For, as far as they can be trusted.
//!
//! For: the address of the last hop that no proxy of ours is. Not for: scheme and host that a proxy was asked for, or
//! the PROXY protocol. Floor 1, pure.
//!
//! Each proxy appends the address that it was connected from. So the right end is what the proxy nearest to us says; it
//! is followed to the left as long as the hop just named is trusted itself. What is further left, anybody may have sent.

use super::{Head, PeerAddr};
use ipnet::IpNet;
use std::{borrow::Cow, fmt, net::IpAddr, net::Ipv4Addr, net::Ipv6Addr, str::FromStr};

/// Peers whose word on the client's address is taken.
///
/// ```
/// use everycore::http::TrustedProxy;
/// assert!("10.0.0.0/8".parse::<TrustedProxy>().is_ok());
/// assert!("::1".parse::<TrustedProxy>().is_ok());
/// assert_eq!("unix".parse(), Ok(TrustedProxy::Unix));
/// assert!("10.0.0.0/33".parse::<TrustedProxy>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedProxy {
    /// Those of this network.
    Net(IpNet),
    /// Whoever connects to a unix socket.
    Unix,
}

/// Why text names no [`TrustedProxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchProxy;

impl fmt::Display for NoSuchProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a network such as 10.0.0.0/8, an address, or unix")
    }
}

impl std::error::Error for NoSuchProxy {}

impl FromStr for TrustedProxy {
    type Err = NoSuchProxy;

    fn from_str(text: &str) -> Result<Self, NoSuchProxy> {
        if text == "unix" {
            return Ok(TrustedProxy::Unix);
        }
        let net = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| IpNet::from(ip.to_canonical())));
        net.map(TrustedProxy::Net).map_err(|_| NoSuchProxy)
    }
}

/// Several of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(pub Vec<TrustedProxy>);

impl TrustedProxies {
    /// Whether what a peer says of its client is taken.
    pub fn trusts(&self, peer: PeerAddr) -> bool {
        match peer {
            PeerAddr::Ip(address) => self.trusts_ip(address.ip()),
            PeerAddr::Unix => self.0.contains(&TrustedProxy::Unix),
        }
    }

    fn trusts_ip(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|proxy| matches!(proxy, TrustedProxy::Net(net) if net.contains(&ip)))
    }

    /// The client of a request that `peer` sent: the peer itself, or, where it is trusted, the rightmost hop that is not
    /// (the leftmost, if all are). `None`: an untrusted client on a unix socket, which has no address.
    ///
    /// A hop that is malformed or hidden ends the search at the one that named it. Where both Forwarded (RFC 7239) and
    /// X-Forwarded-For are there and do not say the same, one of them is not the proxy's: then neither is believed.
    pub fn client(&self, peer: PeerAddr, head: &Head) -> Option<IpAddr> {
        let own = match peer {
            PeerAddr::Ip(address) => Some(address.ip().to_canonical()),
            PeerAddr::Unix => None,
        };
        if !self.trusts(peer) {
            return own;
        }
        let forwarded = self.farthest(head, "forwarded", |line| elements(line).unwrap_or_else(|| vec![None]));
        let x_forwarded_for = self.farthest(head, "x-forwarded-for", addresses);
        match (forwarded, x_forwarded_for) {
            (None, None) => own,
            (Some(said), None) | (None, Some(said)) => said.or(own),
            (Some(said), Some(also)) if said == also => said.or(own),
            (Some(_), Some(_)) => own,
        }
    }

    /// What the fields called `name` come to: `None` if there are none, `Some(None)` if they tell no address.
    fn farthest(&self, head: &Head, name: &str, hops: impl Fn(&[u8]) -> Vec<Option<IpAddr>>) -> Option<Option<IpAddr>> {
        let named = |(field, _): &(&str, &[u8])| field.eq_ignore_ascii_case(name);
        let lines: Vec<&[u8]> = head.headers().filter(named).map(|(_, value)| value).collect();
        let mut client = None;
        for line in lines.iter().rev() {
            for hop in hops(line).into_iter().rev() {
                let Some(ip) = hop else { return Some(client) };
                client = Some(ip);
                if !self.trusts_ip(ip) {
                    return Some(client);
                }
            }
        }
        (!lines.is_empty()).then_some(client)
    }
}

/// The hops of a line of X-Forwarded-For; `None`: one that is no address.
fn addresses(line: &[u8]) -> Vec<Option<IpAddr>> {
    let hops = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|hop| !hop.is_empty());
    hops.map(node).collect()
}

/// The `for` of each element of a line of Forwarded (RFC 7239 §4). `None`: the line is malformed.
fn elements(line: &[u8]) -> Option<Vec<Option<IpAddr>>> {
    let mut found = Vec::new();
    let (mut is_empty, mut hop) = (true, None);
    let mut rest = line.trim_ascii();
    loop {
        let end = rest.iter().position(|byte| !is_token(*byte)).unwrap_or(rest.len());
        if end > 0 {
            let (name, after) = rest.split_at(end);
            let (value, after) = value(after.strip_prefix(b"=")?)?;
            if name.eq_ignore_ascii_case(b"for") && hop.replace(node(&value)).is_some() {
                return None; // each parameter once
            }
            is_empty = false;
            rest = after.trim_ascii_start();
        }
        let (separator, after) = rest.split_first().map_or((None, rest), |(first, after)| (Some(*first), after));
        if matches!(separator, None | Some(b',')) {
            // Empty elements of a list mean nothing (RFC 9110 §5.6.1).
            if !std::mem::replace(&mut is_empty, true) {
                found.push(hop.take().flatten());
            }
        }
        match separator {
            None => return Some(found),
            Some(b',' | b';') => rest = after.trim_ascii_start(),
            Some(_) => return None,
        }
    }
}

/// A token or a quoted string at the begin of `text`, and what follows it.
fn value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| !is_token(*byte)).unwrap_or(text.len());
        return (end > 0).then(|| (Cow::Borrowed(&text[..end]), &text[end..]));
    };
    let mut unquoted = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    loop {
        match bytes.next()? {
            (at, b'"') => return Some((Cow::Owned(unquoted), &quoted[at + 1..])),
            (_, b'\\') => unquoted.push(*bytes.next()?.1),
            (_, byte) => unquoted.push(*byte),
        }
    }
}

/// RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// An address, perhaps with a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`. `None`
/// also for what hides the address: `unknown`, `_name` (RFC 7239 §6).
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let is_port = |port: &str| port.starts_with('_') || port.parse::<u16>().is_ok();
    let ip = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (ip, after) = bracketed.split_once(']')?;
            let is_good = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
            is_good.then(|| ip.parse::<Ipv6Addr>().ok()).flatten()?.into()
        }
        None => match (text.parse::<IpAddr>(), text.split_once(':')) {
            (Ok(ip), _) => ip,
            (Err(_), Some((ip, port))) if is_port(port) => ip.parse::<Ipv4Addr>().ok()?.into(),
            (Err(_), _) => return None,
        },
    };
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::http::{Method, Request};
    use std::net::SocketAddr;

    /// The client that a request with these fields has, if 10/8, 192.168.0.1 and fd00::/8 are proxies.
    #[track_caller]
    fn check_from(peer: &str, fields: &[(&str, &str)], expected: &str) {
        let trusted = ["10.0.0.0/8", "192.168.0.1", "fd00::/8"].map(|net| net.parse().unwrap());
        let peer = match peer {
            "unix" => PeerAddr::Unix,
            ip => PeerAddr::Ip(SocketAddr::new(ip.parse().unwrap(), 5000)),
        };
        let request = fields
            .iter()
            .fold(Request::builder(Method::GET, "/"), |request, (name, value)| request.header(name, value));
        let request = request.body(()).unwrap();
        let client = TrustedProxies(trusted.to_vec()).client(peer, request.head());
        let client = client.map_or("none".to_owned(), |ip| ip.to_string());
        assert_eq!(client, expected, "{peer} {fields:?}");
    }

    const PROXY: &str = "10.0.0.1";

    #[test]
    fn untrusted_peer_is_the_client_whatever_it_says() {
        for (name, value) in [("X-Forwarded-For", "1.1.1.1"), ("Forwarded", "for=1.1.1.1")] {
            check_from("9.9.9.9", &[(name, value)], "9.9.9.9");
            check_from("192.168.0.2", &[(name, value)], "192.168.0.2");
            check_from("unix", &[(name, value)], "none");
            check_from(PROXY, &[(name, value)], "1.1.1.1");
            check_from("::ffff:10.0.0.1", &[(name, value)], "1.1.1.1");
            check_from("fd00::9", &[(name, value)], "1.1.1.1");
        }
        check_from(PROXY, &[], PROXY);
        check_from("::ffff:9.9.9.9", &[], "9.9.9.9");
    }

    #[test]
    fn x_forwarded_for_is_followed_from_the_right() {
        for (value, expected) in [
            ("1.1.1.1", "1.1.1.1"),
            ("6.6.6.6, 1.1.1.1", "1.1.1.1"),
            ("6.6.6.6, 1.1.1.1, 10.9.9.9", "1.1.1.1"),
            ("6.6.6.6,1.1.1.1,192.168.0.1,10.9.9.9", "1.1.1.1"),
            ("10.2.2.2, 10.3.3.3", "10.2.2.2"),
            ("1.1.1.1:4711", "1.1.1.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("::ffff:1.1.1.1, fd00::1", "1.1.1.1"),
            (" ,, 1.1.1.1 ,", "1.1.1.1"),
            // What is malformed ends the search at the one that named it.
            ("1.1.1.1, bogus, 10.9.9.9", "10.9.9.9"),
            ("1.1.1.1, unknown", PROXY),
            ("1.1.1.1, 300.1.1.1", PROXY),
            ("1.1.1.1:99999", PROXY),
            ("1.1.1.1:", PROXY),
            ("[2001:db8::1", PROXY),
            ("[2001:db8::1]80", PROXY),
            ("[1.1.1.1]", PROXY),
            ("fe80::1%eth0", PROXY),
            ("1.1.1.1 2.2.2.2", PROXY),
            ("\u{fc}", PROXY),
            ("", PROXY),
            (",", PROXY),
        ] {
            check_from(PROXY, &[("X-Forwarded-For", value)], expected);
        }
        let lines = [("x-forwarded-for", "6.6.6.6"), ("X-Forwarded-For", "1.1.1.1"), ("X-FORWARDED-FOR", "10.9.9.9")];
        check_from(PROXY, &lines, "1.1.1.1");
    }

    #[test]
    fn forwarded_is_read_as_the_rfc_has_it() {
        for (value, expected) in [
            ("for=1.1.1.1", "1.1.1.1"),
            ("For=\"1.1.1.1:4711\"", "1.1.1.1"),
            ("for=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=\"1.1.1.1:_port\"", "1.1.1.1"),
            ("for=1.1.1.1;proto=http;by=203.0.113.43", "1.1.1.1"),
            ("proto=https ; for=1.1.1.1", "1.1.1.1"),
            ("for=6.6.6.6, for=1.1.1.1;host=\"a,b;c\", for=10.1.1.1", "1.1.1.1"),
            ("for=\"1.1.1.\\1\"", "1.1.1.1"),
            (", for=1.1.1.1 ,,", "1.1.1.1"),
            (";for=1.1.1.1;", "1.1.1.1"),
            ("for=1.1.1.1, for=unknown", PROXY),
            ("for=1.1.1.1, for=_hidden, for=10.9.9.9", "10.9.9.9"),
            ("for=1.1.1.1, proto=http", PROXY),
            // Malformed: nothing of the line is believed.
            ("for=1.1.1.1;for=2.2.2.2", PROXY),
            ("for", PROXY),
            ("for=", PROXY),
            ("for =1.1.1.1", PROXY),
            ("for=[2001:db8::1]", PROXY),
            ("for=\"1.1.1.1", PROXY),
            ("for=\"x, for=1.1.1.1", PROXY),
            ("for=1.1.1.1\\", PROXY),
            ("for=\"1.1.1.1\\", PROXY),
            ("for=1.1.1.1 for=2.2.2.2", PROXY),
            ("=1.1.1.1", PROXY),
            ("for=2001:db8::1", PROXY),
            ("", PROXY),
        ] {
            check_from(PROXY, &[("Forwarded", value)], expected);
        }
        // A line that a client broke does not hide what the proxy's own line says.
        check_from(PROXY, &[("Forwarded", "for=\"x"), ("Forwarded", "for=1.1.1.1")], "1.1.1.1");
        check_from(PROXY, &[("Forwarded", "for=\"x"), ("Forwarded", "for=10.1.1.1")], "10.1.1.1");
    }

    #[test]
    fn fields_that_contradict_each_other_are_not_believed() {
        for (forwarded, x_forwarded_for, expected) in [
            ("for=1.1.1.1", "6.6.6.6, 1.1.1.1", "1.1.1.1"),
            ("for=1.1.1.1", "2.2.2.2", PROXY),
            ("for=unknown", "2.2.2.2", PROXY),
            ("for=1.1.1.1", "garbage", PROXY),
            ("for=\"", "garbage", PROXY),
        ] {
            check_from(PROXY, &[("Forwarded", forwarded), ("X-Forwarded-For", x_forwarded_for)], expected);
        }
    }

    #[test]
    fn trusted_proxies_are_networks_addresses_or_unix() {
        for (text, is_good) in [
            ("10.0.0.0/8", true),
            ("10.1.2.3/8", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("fd00::/8", true),
            ("unix", true),
            ("10.0.0.0/33", false),
            ("10.0.0/8", false),
            ("localhost", false),
            ("unix:/x", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<TrustedProxy>().is_ok(), is_good, "{text}");
        }
        let unix = TrustedProxies(vec![TrustedProxy::Unix]);
        let request = Request::builder(Method::GET, "/").header("x-forwarded-for", "1.1.1.1").body(()).unwrap();
        assert_eq!(unix.client(PeerAddr::Unix, request.head()), Some("1.1.1.1".parse().unwrap()));
        assert_eq!("::ffff:10.0.0.1".parse(), Ok(TrustedProxy::Net("10.0.0.1/32".parse().unwrap())));
    }
}
