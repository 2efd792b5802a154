//! Content codings, and which of them a client takes (RFC 9110 §8.4.1, §12.5.3). Not for: coding. Floor 1.

use super::semantics::{list, trim};

/// A content coding that is in use on the web.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `br`
    Brotli,
    /// `zstd`
    Zstd,
    /// `gzip`
    Gzip,
    /// As it is.
    Identity,
}

impl Coding {
    /// All of them; of two that a client likes equally, we prefer the first.
    pub const ALL: [Coding; 4] = [Coding::Brotli, Coding::Zstd, Coding::Gzip, Coding::Identity];

    /// The name in `Content-Encoding`.
    pub const fn token(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
            Coding::Identity => "identity",
        }
    }

    fn named(token: &[u8]) -> Option<Coding> {
        // RFC 9110 §8.4.1.3: x-gzip is equivalent to gzip.
        let token = if token.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { token };
        Coding::ALL.into_iter().find(|coding| coding.token().as_bytes().eq_ignore_ascii_case(token))
    }
}

/// The codings that a client takes, best first; as it is always the last resort.
///
/// ```
/// use everycore::http::{AcceptedCodings, Coding};
/// let accepted = AcceptedCodings::parse([&b"gzip;q=0.8, br, *;q=0"[..]]);
/// assert_eq!(accepted.as_slice(), [Coding::Brotli, Coding::Gzip, Coding::Identity]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedCodings {
    order: [Coding; 4],
    count: usize,
    refuses_identity: bool,
}

impl AcceptedCodings {
    /// What a client takes that does not say: anything, but nobody sends such a client what it may not know.
    pub const IDENTITY: AcceptedCodings =
        AcceptedCodings { order: [Coding::Identity; 4], count: 1, refuses_identity: false };

    /// Reads the values of all `Accept-Encoding` fields. What is malformed in them is left out.
    ///
    /// A client that refuses even the identity is sent it all the same where nothing else is there, as RFC 9110
    /// §12.5.3 allows: an answer that it may be able to use is better than a 406.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> AcceptedCodings {
        let mut named: [Option<u16>; 4] = [None; 4];
        let mut others = None;
        for element in values.into_iter().flat_map(list) {
            let mut parts = element.split(|&b| b == b';').map(trim);
            let token = parts.next().unwrap_or_default();
            let Some(weight) = parts.next().map_or(Some(1000), weight) else { continue };
            if token == b"*" {
                others = others.or(Some(weight));
            } else if let Some(coding) = Coding::named(token) {
                named[coding as usize].get_or_insert(weight);
            }
        }
        let weight = |coding: Coding| named[coding as usize].or(others).unwrap_or(0);
        let mut accepted = AcceptedCodings { count: 0, ..AcceptedCodings::IDENTITY };
        for coding in Coding::ALL {
            let own = weight(coding);
            if coding == Coding::Identity || own == 0 {
                continue;
            }
            // Behind those that weigh as much; sorted by insertion, for there are three.
            let before = |other: &Coding| weight(*other) >= own;
            let at = accepted.as_slice().iter().take_while(|other| before(other)).count();
            accepted.insert(at, coding);
        }
        // Identity is acceptable unless it is excluded, and liked least unless it is named.
        let own = named[Coding::Identity as usize].unwrap_or(0);
        let at = accepted.as_slice().iter().take_while(|other| weight(**other) >= own).count();
        accepted.insert(at, Coding::Identity);
        accepted.refuses_identity = named[Coding::Identity as usize].or(others) == Some(0);
        accepted
    }

    fn insert(&mut self, at: usize, coding: Coding) {
        self.order[at..=self.count].rotate_right(1);
        self.order[at] = coding;
        self.count += 1;
    }

    /// Whether the client said that it does not take a representation as it is.
    pub fn refuses_identity(&self) -> bool {
        self.refuses_identity
    }

    /// Best first.
    pub fn as_slice(&self) -> &[Coding] {
        &self.order[..self.count]
    }

    /// Those that the client likes better than the identity, best first.
    pub fn before_identity(&self) -> &[Coding] {
        let identity = self.as_slice().iter().position(|coding| *coding == Coding::Identity);
        &self.order[..identity.unwrap_or(self.count)]
    }
}

/// RFC 9110 §12.4.2: `q=0.123`, in thousandths.
fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, fraction) = match value {
        [whole, b'.', fraction @ ..] => (whole, fraction),
        [whole] => (whole, &[][..]),
        _ => return None,
    };
    if fraction.len() > 3 || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(b"000").take(3);
    let thousandths = digits.fold(0, |sum, digit| 10 * sum + u16::from(digit - b'0'));
    match whole {
        b'0' => Some(thousandths),
        b'1' if thousandths == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Coding::*;

    #[test]
    fn accepted_table() {
        #[track_caller]
        fn check(values: &[&str], expected: &[Coding]) {
            let accepted = AcceptedCodings::parse(values.iter().map(|value| value.as_bytes()));
            assert_eq!(accepted.as_slice(), expected, "{values:?}");
            let before = expected.split(|coding| *coding == Identity).next().unwrap();
            assert_eq!(accepted.before_identity(), before, "{values:?}");
        }
        check(&[], &[Identity]);
        check(&[""], &[Identity]);
        check(&["gzip"], &[Gzip, Identity]);
        check(&["x-gzip"], &[Gzip, Identity]);
        check(&["GZip , BR"], &[Brotli, Gzip, Identity]);
        check(&["gzip, deflate, br, zstd"], &[Brotli, Zstd, Gzip, Identity]);
        check(&["gzip", "br"], &[Brotli, Gzip, Identity]);
        check(&["gzip;q=1.0, br;q=0.999"], &[Gzip, Brotli, Identity]);
        check(&["gzip;q=0.5, br;q=0.5, zstd;q=0.7"], &[Zstd, Brotli, Gzip, Identity]);
        check(&["gzip;q=0.001"], &[Gzip, Identity]);
        check(&["gzip;q=0"], &[Identity]);
        check(&["gzip;q=0.000, br"], &[Brotli, Identity]);
        check(&["*"], &[Brotli, Zstd, Gzip, Identity]);
        check(&["*;q=0"], &[Identity]);
        check(&["gzip, *;q=0"], &[Gzip, Identity]);
        check(&["br;q=0, *"], &[Zstd, Gzip, Identity]);
        check(&["identity"], &[Identity]);
        check(&["identity, gzip"], &[Gzip, Identity]);
        check(&["identity, gzip;q=0.5"], &[Identity, Gzip]);
        check(&["identity;q=0.7, br;q=0.9, gzip;q=0.5"], &[Brotli, Identity, Gzip]);
        check(&["identity;q=0"], &[Identity]);
        check(&["gzip;q=0, identity;q=0"], &[Identity]);
        // The first of two counts; what is malformed does not.
        check(&["gzip;q=0, gzip"], &[Identity]);
        for malformed in
            ["gzip;q=2", "gzip;q=1.001", "gzip;q=0.1234", "gzip;q=", "gzip;q=a", "gzip;r=1", "gzip;", "g zip"]
        {
            check(&[malformed], &[Identity]);
        }
        check(&["gzip;q=x, br"], &[Brotli, Identity]);
        check(&[",, ,br , ,"], &[Brotli, Identity]);
        check(&["br ; q=0.5"], &[Brotli, Identity]);
    }
}
