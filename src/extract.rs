//! Typed views of a request: forms, queries, JSON, cookies. Floor 4.
//!
//! Bodies are collected up to the server's `body_bytes_max` (by default [`BODY_BUFFERED_BYTES_MAX`]); for more, read `req.into_body()` and
//! parse that. Not here: path parameters and single query fields, which are on [`Request`] itself;
//! multipart forms.
//!
//! [`ExtractError`] is an answer, so that `?` does in a handler what is to be done:
//!
//! ```
//! use everycore::{Request, Response, Router, extract::ExtractError};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! struct SignUp { name: String, topics: Vec<String> }
//!
//! async fn sign_up(mut req: Request) -> Result<Response, ExtractError> {
//!     let SignUp { name, topics } = req.form().await?;
//!     Ok(Response::text(format!("welcome {name}, to {}", topics.join(" and "))))
//! }
//!
//! let app = Router::new().post("/sign-up", sign_up).build();
//! # app.expect("no conflicts");
//! ```

use std::fmt;

use bytes::Bytes;
pub use cookie::Cookie;
use http::{StatusCode, header};
use serde::de::DeserializeOwned;

use crate::handler::IntoResponse;
use crate::http::{BodyError, ConnInfo, Request, Response};
use crate::limits::{BODY_BUFFERED_BYTES_MAX, ECHOED_CONTENT_TYPE_CHARS_MAX};

const FORM: &str = "application/x-www-form-urlencoded";
#[cfg(feature = "json")]
const JSON: &str = "application/json";

impl Request {
    /// The query as a type; a repeated name fills a `Vec`. No query is an empty one.
    ///
    /// # Errors
    /// 400 if it is not UTF-8 when decoded, 422 if `T` cannot be made of it.
    ///
    /// ```
    /// # use everycore::{Request, extract::ExtractError};
    /// #[derive(serde::Deserialize)]
    /// struct Page { from: u64, tag: Vec<String> }
    ///
    /// fn list(req: Request) -> Result<String, ExtractError> {
    ///     let page: Page = req.query_as()?;
    ///     Ok(format!("{} tags from {}", page.tag.len(), page.from))
    /// }
    /// ```
    pub fn query_as<T: DeserializeOwned>(&self) -> Result<T, ExtractError> {
        parse_form("query", self.query_str().unwrap_or_default().as_bytes())
    }

    /// Reads the body as a urlencoded form; a repeated name fills a `Vec`.
    ///
    /// The body is gone afterwards. Dropping the future loses what was read of it.
    ///
    /// # Errors
    /// 415 if the content type is another or missing, 413 if the body is too large, 400 if it could not be read or is
    /// not UTF-8 when decoded, 422 if `T` cannot be made of it.
    pub async fn form<T: DeserializeOwned>(&mut self) -> Result<T, ExtractError> {
        self.expect_content_type(FORM, |got| got.eq_ignore_ascii_case(FORM))?;
        parse_form("form", &self.collect_body().await?)
    }

    /// Reads the body as JSON, of type `application/json` or `application/…+json`.
    ///
    /// The body is gone afterwards. Dropping the future loses what was read of it.
    ///
    /// # Errors
    /// 415 if the content type is another or missing, 413 if the body is too large, 400 if it could not be read or is
    /// not JSON, 422 if `T` cannot be made of it.
    #[cfg(feature = "json")]
    pub async fn json<T: DeserializeOwned>(&mut self) -> Result<T, ExtractError> {
        self.expect_content_type(JSON, is_json)?;
        serde_json::from_slice(&self.collect_body().await?).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => ExtractError::WrongShape { what: "JSON", why: error.to_string() },
            _ => ExtractError::Malformed { what: "JSON", why: error.to_string() },
        })
    }

    /// All cookies of the request, in order. What is no cookie is left out (RFC 6265 §5.4 lets a browser send anything);
    /// values are as they came, not percent-decoded.
    pub fn cookies(&self) -> impl Iterator<Item = Cookie<'_>> {
        self.headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("cookie"))
            .filter_map(|(_, value)| std::str::from_utf8(value).ok())
            .flat_map(Cookie::split_parse)
            .filter_map(Result::ok)
    }

    /// The value of the first cookie of this name.
    ///
    /// ```
    /// # use everycore::Request;
    /// fn greet(req: Request) -> String {
    ///     format!("hello {}", req.cookie("name").as_deref().unwrap_or("stranger"))
    /// }
    /// ```
    pub fn cookie(&self, name: &str) -> Option<String> {
        self.cookies().find(|cookie| cookie.name() == name).map(|cookie| cookie.value().to_owned())
    }

    /// `is_expected` gets the media type without parameters (RFC 9110 §8.3.1).
    fn expect_content_type(&self, expected: &'static str, is_expected: fn(&str) -> bool) -> Result<(), ExtractError> {
        let got = self.header("content-type");
        let media_type = got.map(|got| got.split(';').next().unwrap_or_default().trim());
        if media_type.is_some_and(is_expected) {
            return Ok(());
        }
        let got = got.map(|got| got.chars().take(ECHOED_CONTENT_TYPE_CHARS_MAX).collect());
        Err(ExtractError::WrongContentType { expected, got })
    }

    async fn collect_body(&mut self) -> Result<Bytes, ExtractError> {
        let max = self.conn().map_or(BODY_BUFFERED_BYTES_MAX, ConnInfo::body_bytes_max);
        self.take_body().bytes(max).await.map_err(ExtractError::Body)
    }
}

impl Response {
    /// Adds a Set-Cookie field. A cookie with a control character in it makes the answer a 500, as in
    /// [`with_header`](Response::with_header).
    ///
    /// ```
    /// # use everycore::{Response, extract::Cookie};
    /// let cookie = Cookie::build(("session", "1234")).http_only(true).secure(true);
    /// let response = Response::text("welcome").with_cookie(cookie);
    /// let (name, value) = &response.headers()[0];
    /// assert_eq!((name.as_str(), value.as_bytes()), ("set-cookie", &b"session=1234; HttpOnly; Secure"[..]));
    /// ```
    pub fn with_cookie<'c>(self, cookie: impl Into<Cookie<'c>>) -> Response {
        self.with_header(header::SET_COOKIE, cookie.into().to_string())
    }
}

#[cfg(feature = "json")]
fn is_json(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    media_type == JSON || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

fn parse_form<T: DeserializeOwned>(what: &'static str, form: &[u8]) -> Result<T, ExtractError> {
    // The parser would put U+FFFD in silently. A `%` without two digits is a `%`, as in the URL Standard.
    if percent_encoding::percent_decode(form).decode_utf8().is_err() {
        return Err(ExtractError::Malformed { what, why: "it is not UTF-8 when decoded".to_owned() });
    }
    serde_html_form::from_bytes(form).map_err(|error| ExtractError::WrongShape { what, why: error.to_string() })
}

/// Why a typed view of a request cannot be had. As a response: the status named below, and its sentence as text.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractError {
    /// 415: the body is not said to be what was asked for.
    WrongContentType {
        /// A media type.
        expected: &'static str,
        /// The Content-Type of the request, if any; its beginning.
        got: Option<String>,
    },
    /// The body could not be read: 413 if it is too large, else as in [`BodyError`].
    Body(BodyError),
    /// 400: it is not what it is said to be.
    Malformed {
        /// `JSON`, `form` or `query`.
        what: &'static str,
        /// What the parser says.
        why: String,
    },
    /// 422: well-formed, but not the type asked for.
    WrongShape {
        /// `JSON`, `form` or `query`.
        what: &'static str,
        /// What the parser says.
        why: String,
    },
}

impl ExtractError {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            ExtractError::WrongContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ExtractError::Body(error) => error.status(),
            ExtractError::Malformed { .. } => StatusCode::BAD_REQUEST,
            ExtractError::WrongShape { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }
}

impl fmt::Display for ExtractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtractError::WrongContentType { expected, got: Some(got) } => {
                write!(f, "expected content type {expected}, got {got}")
            }
            ExtractError::WrongContentType { expected, got: None } => {
                write!(f, "expected content type {expected}, got none")
            }
            ExtractError::Body(error) => error.fmt(f),
            ExtractError::Malformed { what, why } => write!(f, "the {what} is malformed: {why}"),
            ExtractError::WrongShape { what, why } => {
                write!(f, "the {what} has the wrong shape: {why}")
            }
        }
    }
}

impl std::error::Error for ExtractError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ExtractError::Body(error) => Some(error),
            _ => None,
        }
    }
}

impl IntoResponse for ExtractError {
    fn into_response(self) -> Response {
        match self {
            ExtractError::Body(error) => error.into_response(),
            error => Response::text(format!("{error}\n")).with_status(error.status()),
        }
    }
}
