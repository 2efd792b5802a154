//! Reads the numbers and strings of a packet, one after the other. Floor 1.

use super::Fault;

/// Numbers are big-endian. A string is its length, its bytes, and a zero that the length does not count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

/// The length of a string that is not there; nothing follows it.
const NULL: u16 = 0xffff;

impl<'a> Cursor<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let (&byte, rest) = self.0.split_first().ok_or(Fault::Cut)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u16, Fault> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Fault::Cut)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*number))
    }

    /// The number that comes next, which stays there.
    pub(super) fn peek_number(&self) -> Result<u16, Fault> {
        Cursor(self.0).number()
    }

    pub(super) fn string(&mut self) -> Result<Option<&'a [u8]>, Fault> {
        let len = self.number()?;
        if len == NULL {
            return Ok(None);
        }
        let (string, rest) = self.0.split_at_checked(usize::from(len)).ok_or(Fault::Cut)?;
        match rest.split_first() {
            Some((0, rest)) => self.0 = rest,
            Some(_) => return Err(Fault::BadString),
            None => return Err(Fault::Cut),
        }
        Ok(Some(string))
    }

    pub(super) fn needed_string(&mut self) -> Result<&'a [u8], Fault> {
        self.string()?.ok_or(Fault::BadString)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_with_a_zero_that_no_length_counts() {
        let read = |bytes: &'static [u8]| {
            let mut cursor = Cursor(bytes);
            cursor.string().map(|string| (string, cursor.0))
        };
        assert_eq!(read(b"\0\x02ab\0c"), Ok((Some(&b"ab"[..]), &b"c"[..])));
        assert_eq!(read(b"\0\0\0"), Ok((Some(&b""[..]), &b""[..])));
        assert_eq!(read(b"\xff\xffab"), Ok((None, &b"ab"[..])));
        assert_eq!(read(b"\0\x02abc"), Err(Fault::BadString));
        for cut in [&b""[..], b"\0", b"\0\x02", b"\0\x02a", b"\0\x02ab"] {
            assert_eq!(read(cut), Err(Fault::Cut), "{cut:?}");
        }
        assert_eq!(Cursor(b"\xff\xff").needed_string(), Err(Fault::BadString));
    }
}
