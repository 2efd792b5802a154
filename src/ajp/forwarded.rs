//! What a proxy says of a request beyond HTTP, as a handler sees it. Floor 1.

use super::Forward;
use crate::http::Request;

/// What the proxy said of a request that HTTP has no place for.
///
/// The client's address and the scheme are at [`Request::peer_addr`] and [`Request::scheme`].
///
/// ```
/// use everycore::{Request, Response, ajp::Forwarded};
///
/// fn whoami(request: Request) -> Response {
///     // None, unless the proxy has logged the client in and the server trusts it to.
///     let user = Forwarded::of(&request).and_then(|said| said.remote_user.as_deref());
///     Response::text(user.unwrap_or("nobody").to_owned())
/// }
/// # let request = Request::builder(everycore::http::Method::GET, "/").body(()).unwrap();
/// # assert_eq!(whoami(request).body().as_slice(), Some(&b"nobody"[..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Whom the proxy logged in; none unless the server trusts it to.
    pub remote_user: Option<String>,
    /// How it did that, such as `Basic`; none unless the server trusts it to.
    pub auth_type: Option<String>,
    /// The route by which a balancer chose this server.
    pub route: Option<String>,
    /// The client's certificate, PEM.
    pub ssl_cert: Option<String>,
    /// The TLS cipher.
    pub ssl_cipher: Option<String>,
    /// The TLS session's id.
    pub ssl_session: Option<String>,
    /// Bits of the TLS key.
    pub ssl_key_bits: Option<u16>,
    /// The proxy's own attributes, in the order they came. Apache makes one of each variable `AJP_…` of a request.
    pub attributes: Vec<(String, String)>,
}

impl Forwarded {
    /// What the proxy said of this request; none if it said nothing, or the request came another way.
    pub fn of(request: &Request) -> Option<&Forwarded> {
        request.extensions()?.get()
    }

    /// The first attribute called `name`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// What `forward` says; `None` if nothing. Bytes that are no UTF-8 become U+FFFD.
    pub(crate) fn read(forward: &Forward<'_>, trusts_user: bool) -> Option<Forwarded> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let trusted = |bytes: Option<&[u8]>| bytes.filter(|_| trusts_user).map(text);
        let forwarded = Forwarded {
            remote_user: trusted(forward.remote_user),
            auth_type: trusted(forward.auth_type),
            route: forward.route.map(text),
            ssl_cert: forward.ssl_cert.map(text),
            ssl_cipher: forward.ssl_cipher.map(text),
            ssl_session: forward.ssl_session.map(text),
            ssl_key_bits: forward.ssl_key_bits,
            attributes: forward
                .attributes()
                .filter(|(name, _)| !Forward::OWN_ATTRIBUTES.contains(name))
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        };
        (forwarded != Forwarded::default()).then_some(forwarded)
    }
}
