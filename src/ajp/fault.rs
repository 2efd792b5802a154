//! Why a packet cannot be understood. Floor 1.

use std::fmt;

/// Why a packet cannot be understood: answer 400, then close. Where the next packet begins is not certain any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin with `12 34`.
    BadMagic,
    /// Its length is above what was agreed on.
    PacketTooLarge,
    /// It ends within what it announces.
    Cut,
    /// Bytes follow its end.
    Leftover,
    /// A string without its final zero, or none where one must be.
    BadString,
    /// A method's code that nobody defined, or none of the two ways to name a method.
    BadMethod,
    /// A header's code that nobody defined.
    BadHeaderCode,
    /// An attribute's code that nobody defined: how long its value is nobody knows.
    BadAttributeCode,
    /// An attribute that may come once came again.
    RepeatedAttribute,
    /// A body packet whose two lengths disagree, or that brings more than was announced.
    BadBody,
}

impl Fault {
    /// What was expected, for the body of the answer and for logs.
    pub const fn reason(self) -> &'static str {
        match self {
            Fault::BadMagic => "expected an AJP/1.3 packet, which begins with the bytes 12 34",
            Fault::PacketTooLarge => {
                "the packet is larger than --ajp-packet-size, which must be the proxy's (ProxyIOBufferSize, max_packet_size)"
            }
            Fault::Cut => "expected the rest of what the packet announces, got its end",
            Fault::Leftover => "expected the end of the packet after the last attribute",
            Fault::BadString => "expected a string that ends with a zero byte",
            Fault::BadMethod => "expected a method's code from 1 to 27, or its name as an attribute",
            Fault::BadHeaderCode => "expected a header's name, or its code from A001 to A00E",
            Fault::BadAttributeCode => "expected an attribute's code from 1 to 13",
            Fault::RepeatedAttribute => "expected each attribute once",
            Fault::BadBody => "expected a body packet whose two lengths agree, with no more bytes than announced",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Fault {}
