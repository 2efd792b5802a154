//! What an AJP/1.3 listener is told: who may forward requests, and what of their word counts.

use super::{Address, ConfigError, Secret, within};
use crate::limits::{AJP_PACKET_BYTES, AJP_PACKET_BYTES_MAX, AJP_SECRET_BYTES_MAX};
use std::{convert::Infallible, str::FromStr};

/// How an AJP/1.3 listener treats the proxies that come to it. Whoever can forward a request says where it comes from and
/// for whom, so a listener has a secret, or is told that it has none.
///
/// ```
/// use everycore::config::AjpOptions;
/// let options = AjpOptions::with_secret("the proxy's secret=").allow_attributes("SSL_*,REMOTE_ROLE");
/// assert!(options.attributes.matches(b"SSL_CLIENT_S_DN"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AjpOptions {
    /// What every request must bring; `None`: nothing, for listeners that only this host reaches.
    pub secret: Option<Secret>,
    /// Bytes of a packet with its header, 8192 to 65536: as large as the proxy's.
    pub packet_bytes_max: usize,
    /// The user that the proxy says it logged in reaches the handler.
    pub trusts_user: bool,
    /// Attributes that a proxy may set; a request with another one is refused.
    pub attributes: NamePatterns,
}

impl AjpOptions {
    /// For proxies that know this secret.
    pub fn with_secret(secret: impl Into<String>) -> Self {
        AjpOptions { secret: Some(Secret(secret.into())), ..AjpOptions::without_secret() }
    }

    /// For everyone who can connect, so for loopback addresses and unix sockets only.
    pub fn without_secret() -> Self {
        AjpOptions {
            secret: None,
            packet_bytes_max: AJP_PACKET_BYTES,
            trusts_user: false,
            attributes: NamePatterns::default(),
        }
    }

    /// Packets of so many bytes, 8192 to 65536: as large as the proxy's.
    pub fn packet_bytes_max(self, bytes: usize) -> Self {
        AjpOptions { packet_bytes_max: bytes, ..self }
    }

    /// The user that the proxy says it logged in reaches the handler.
    pub fn trust_user(self) -> Self {
        AjpOptions { trusts_user: true, ..self }
    }

    /// Attributes that a proxy may set, such as `SSL_*,REMOTE_ROLE`.
    pub fn allow_attributes(self, patterns: &str) -> Self {
        AjpOptions { attributes: NamePatterns::new(patterns), ..self }
    }

    pub(super) fn validate_at(&self, address: &Address) -> Result<(), ConfigError> {
        let (least, most) = (AJP_PACKET_BYTES as u64, AJP_PACKET_BYTES_MAX as u64);
        within("ajp-packet-size", "bytes", least, most, self.packet_bytes_max as u64)?;
        match &self.secret {
            None if !address.is_local() => {
                let expected =
                    "a loopback address or a unix socket where no secret is asked for (see --ajp-secret-file)";
                Err(ConfigError::new("ajp", expected, address))
            }
            None => Ok(()),
            Some(Secret(secret)) => {
                let (name, most) = ("ajp-secret-file", AJP_SECRET_BYTES_MAX as u64);
                within(name, "a secret, in bytes", 1, most, secret.len() as u64)
            }
        }
    }
}

/// Names, with `*` for any run of characters: `SSL_*,REMOTE_ROLE`. Empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamePatterns(Vec<String>);

impl NamePatterns {
    /// Those of a list with commas.
    pub fn new(patterns: &str) -> Self {
        let patterns = patterns.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
        NamePatterns(patterns.map(String::from).collect())
    }

    /// Whether one of them is for this name.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.0.iter().any(|pattern| matches(pattern.as_bytes(), name))
    }
}

impl FromStr for NamePatterns {
    type Err = Infallible;

    fn from_str(patterns: &str) -> Result<Self, Infallible> {
        Ok(NamePatterns::new(patterns))
    }
}

/// The last star takes as little as it can; where that fails, more: no other star need be looked at again.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_pattern) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                star = Some((in_pattern + 1, at));
                in_pattern += 1;
            }
            Some(byte) if *byte == name[at] => {
                at += 1;
                in_pattern += 1;
            }
            _ => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                (in_pattern, at) = (after, from + 1);
            }
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_table() {
        #[track_caller]
        fn check(patterns: &str, name: &str, expected: bool) {
            assert_eq!(NamePatterns::new(patterns).matches(name.as_bytes()), expected, "{patterns} {name}");
        }
        check("", "", false);
        check("", "A", false);
        check("A", "A", true);
        check("A", "a", false);
        check("A", "AB", false);
        check("B, A ,", "A", true);
        check("*", "", true);
        check("*", "A", true);
        check("SSL_*", "SSL_", true);
        check("SSL_*", "SSL_CIPHER", true);
        check("SSL_*", "XSSL_CIPHER", false);
        check("*_DN", "S_DN_DN", true);
        check("*_DN", "S_DNX", false);
        check("A*B*C", "AxBxBxC", true);
        check("A*B*C", "AxBxBx", false);
        check("a*b", "a", false);
    }

    #[test]
    fn options_fit_their_address() {
        let error = |options: AjpOptions, address: &str| {
            options.validate_at(&address.parse().unwrap()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(error(AjpOptions::with_secret("s"), ":8009"), "");
        assert_eq!(error(AjpOptions::without_secret(), "127.0.0.1:8009"), "");
        assert_eq!(error(AjpOptions::without_secret(), "unix:/ajp"), "");
        assert_eq!(
            error(AjpOptions::without_secret(), ":8009"),
            "ajp: expected a loopback address or a unix socket where no secret is asked for (see --ajp-secret-file), \
             got 0.0.0.0:8009"
        );
        assert_eq!(
            error(AjpOptions::with_secret(""), "[::1]:1"),
            "ajp-secret-file: expected a secret, in bytes, 1 to 1024, got 0"
        );
        let sized = |bytes| error(AjpOptions::with_secret("s").packet_bytes_max(bytes), "[::1]:1");
        assert_eq!([8192, 65_536].map(sized), ["", ""]);
        assert_eq!(sized(8191), "ajp-packet-size: expected bytes, 8192 to 65536, got 8191");
        assert_eq!(sized(65_537), "ajp-packet-size: expected bytes, 8192 to 65536, got 65537");
    }
}
