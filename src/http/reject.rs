//! Why a request was refused. Not for host failures or our own bugs. Floor 1.

use http::StatusCode;
use std::fmt;

/// Why a request was refused: answer with [`status`](Reject::status), then close the connection.
///
/// `reject as usize` is an index below [`Reject::COUNT`], for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reject {
    /// No method token at the start; a TLS hello on a plain port ends here.
    BadMethod,
    /// A token that no registry names.
    UnknownMethod,
    /// Not `method SP target SP version`; HTTP/0.9 ends here.
    BadRequestLine,
    /// The target has a forbidden byte or a form its method does not allow.
    BadTarget,
    /// The target is longer than the limit.
    UriTooLong,
    /// A well-formed version that is not 1.x.
    VersionNotSupported,
    /// A bare CR or a bare LF, or too many empty lines before the request line.
    BadLineEnd,
    /// A field line starts with white space: obsolete folding.
    FoldedField,
    /// White space between a field name and its colon.
    SpaceBeforeColon,
    /// A field name that is no token, or a field line without a colon.
    BadFieldName,
    /// A control byte in a field value.
    BadFieldValue,
    /// More field lines than the limit.
    TooManyFields,
    /// The head is longer than the limit.
    HeadTooLarge,
    /// HTTP/1.1 without a Host field.
    MissingHost,
    /// More than one Host field.
    RepeatedHost,
    /// Host is empty or no `host[:port]`.
    BadHost,
    /// Content-Length is no decimal number below 2^64.
    BadContentLength,
    /// More than one Content-Length.
    RepeatedContentLength,
    /// Both Content-Length and Transfer-Encoding.
    LengthAndCoding,
    /// Transfer-Encoding in an HTTP/1.0 request.
    CodingInHttp10,
    /// Transfer-Encoding whose last coding is not `chunked`, or that names it twice.
    BadCoding,
    /// A transfer coding besides `chunked`.
    UnsupportedCoding,
    /// The announced length is larger than any body that is accepted.
    BodyTooLarge,
    /// A chunk size that is no hexadecimal number, or not followed by CRLF or `;`.
    BadChunkSize,
    /// A control byte in a chunk extension.
    BadChunkExtension,
    /// A chunk-size line, or all chunk extensions of a body, longer than the limit.
    ChunkLineTooLong,
    /// Chunk data is not followed by CRLF.
    BadChunkEnd,
    /// A malformed trailer field, or one that frames messages.
    BadTrailer,
    /// More trailer bytes or fields than the limit.
    TrailersTooLarge,
    /// The head was not complete in time.
    HeadTimedOut,
    /// The peer ended its side before the head was complete.
    Incomplete,
    /// An AJP packet that cannot be understood.
    BadPacket,
}

impl Reject {
    /// Every refusal, in the order of its index.
    pub const ALL: [Reject; 32] = {
        use Reject::*;
        [
            BadMethod,
            UnknownMethod,
            BadRequestLine,
            BadTarget,
            UriTooLong,
            VersionNotSupported,
            BadLineEnd,
            FoldedField,
            SpaceBeforeColon,
            BadFieldName,
            BadFieldValue,
            TooManyFields,
            HeadTooLarge,
            MissingHost,
            RepeatedHost,
            BadHost,
            BadContentLength,
            RepeatedContentLength,
            LengthAndCoding,
            CodingInHttp10,
            BadCoding,
            UnsupportedCoding,
            BodyTooLarge,
            BadChunkSize,
            BadChunkExtension,
            ChunkLineTooLong,
            BadChunkEnd,
            BadTrailer,
            TrailersTooLarge,
            HeadTimedOut,
            Incomplete,
            BadPacket,
        ]
    };

    /// How many refusals there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The index of this refusal, below [`COUNT`](Self::COUNT).
    pub const fn kind(self) -> usize {
        self as usize
    }

    /// The status to answer with.
    pub const fn status(self) -> StatusCode {
        match self {
            Reject::UnknownMethod | Reject::UnsupportedCoding => StatusCode::NOT_IMPLEMENTED,
            Reject::UriTooLong => StatusCode::URI_TOO_LONG,
            Reject::VersionNotSupported => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Reject::TooManyFields | Reject::HeadTooLarge | Reject::TrailersTooLarge => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Reject::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Reject::HeadTimedOut => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// What was expected and what came, for the body of the answer and for logs.
    pub const fn reason(self) -> &'static str {
        match self {
            Reject::BadMethod => {
                "expected a method token at the start of the request line (is this TLS on a plain port?)"
            }
            Reject::UnknownMethod => "expected a registered method",
            Reject::BadRequestLine => "expected a request line of the form \"GET /path HTTP/1.1\"",
            Reject::BadTarget => {
                "expected a request target of visible ASCII, in the form that its method allows, without a fragment"
            }
            Reject::UriTooLong => "the request target is longer than the limit",
            Reject::VersionNotSupported => "expected HTTP/1.1 or HTTP/1.0",
            Reject::BadLineEnd => "expected each line to end in CRLF, got a bare CR, a bare LF or a run of empty lines",
            Reject::FoldedField => "expected a field name, got a line that starts with white space",
            Reject::SpaceBeforeColon => "expected the colon right after the field name, got white space",
            Reject::BadFieldName => "expected a field line of the form \"name: value\"",
            Reject::BadFieldValue => "expected a field value without control characters",
            Reject::TooManyFields => "the request has more header fields than the limit",
            Reject::HeadTooLarge => "the request head is longer than the limit",
            Reject::MissingHost => "expected a Host field, got none",
            Reject::RepeatedHost => "expected one Host field, got several",
            Reject::BadHost => "expected Host to be \"name\" or \"name:port\"",
            Reject::BadContentLength => "expected Content-Length to be one decimal number",
            Reject::RepeatedContentLength => "expected one Content-Length field, got several",
            Reject::LengthAndCoding => "expected Content-Length or Transfer-Encoding, got both",
            Reject::CodingInHttp10 => "expected no Transfer-Encoding in HTTP/1.0",
            Reject::BadCoding => "expected Transfer-Encoding to be exactly \"chunked\"",
            Reject::UnsupportedCoding => "expected no transfer coding besides \"chunked\"",
            Reject::BodyTooLarge => "the announced body is larger than any that is accepted",
            Reject::BadChunkSize => "expected a chunk size in hexadecimal, then CRLF",
            Reject::BadChunkExtension => "expected a chunk extension without control characters, then CRLF",
            Reject::ChunkLineTooLong => "a chunk-size line or the chunk extensions are longer than the limit",
            Reject::BadChunkEnd => "expected CRLF after the chunk's data",
            Reject::BadTrailer => "expected trailer fields of the form \"name: value\" that frame nothing",
            Reject::TrailersTooLarge => "the trailer section is larger than the limit",
            Reject::HeadTimedOut => "the request head was not complete in time",
            Reject::Incomplete => "expected a complete request head, got the end of the connection",
            Reject::BadPacket => "expected an AJP body packet of the announced length",
        }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Reject {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reject_indices_match_the_list() {
        for (index, reject) in Reject::ALL.into_iter().enumerate() {
            assert_eq!(reject.kind(), index);
            assert!(reject.status().is_client_error() || reject.status().is_server_error());
            assert!(!reject.reason().is_empty());
        }
    }
}
