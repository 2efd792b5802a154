//! What can be wrong with routes. Floor 4.

use std::fmt;

use http::Method;

/// Why a router cannot be built: everything that is wrong with its routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterError {
    pub(super) problems: Vec<RouteProblem>,
}

impl RouterError {
    /// All that was wrong, at least one.
    pub fn problems(&self) -> &[RouteProblem] {
        &self.problems
    }
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.problems.iter().all(|problem| matches!(problem, RouteProblem::Files { .. })) {
            true => "the files cannot be served",
            false => "the routes contradict each other or themselves",
        })?;
        self.problems
            .iter()
            .enumerate()
            .try_for_each(|(nth, problem)| write!(f, "{} {problem}", if nth == 0 { ":" } else { ";" }))
    }
}

impl std::error::Error for RouterError {}

/// One thing that is wrong with the routes of a [`Router`](crate::Router).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteProblem {
    /// A path or prefix that is no pattern, or that no request can match.
    Unparsable {
        /// As it was written, behind its prefixes.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two patterns that match the same paths, such as `/{id}` and `/{name}`.
    Conflict {
        /// The one.
        path: String,
        /// The other.
        with: String,
    },
    /// A path has two handlers for one method.
    SecondHandler {
        /// The path.
        path: String,
        /// The method; `None`: both are for any method.
        method: Option<Method>,
    },
    /// A path has a handler for GET, and the server's own endpoint is there too.
    BuiltIn {
        /// The path.
        path: String,
    },
    /// Two fallbacks for the same paths.
    SecondFallback {
        /// Where the second one's router is nested.
        prefix: String,
    },
    /// Files that cannot be served.
    Files {
        /// Where they are mounted.
        path: String,
        /// What was expected, and what is there.
        why: String,
    },
    /// The app's routers have more than one error page between them.
    SecondErrorPage,
}

impl RouteProblem {
    pub(super) fn from_matchit(path: String, error: matchit::InsertError) -> Self {
        use matchit::InsertError;
        let why = match error {
            InsertError::Conflict { with } => return RouteProblem::Conflict { path, with },
            InsertError::InvalidParamSegment => "a segment can have one parameter only",
            InsertError::InvalidCatchAll => "`{*name}` can stand at the end only, after a `/`",
            _ => "a parameter is written `{name}` or `{*name}`, a brace `{{` or `}}`",
        };
        RouteProblem::Unparsable { path, why }
    }
}

impl fmt::Display for RouteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteProblem::Unparsable { path, why } => {
                write!(f, "`{path}` cannot be matched: {why}")
            }
            RouteProblem::Conflict { path, with } => {
                write!(f, "`{path}` and `{with}` match the same paths: give the parameters the same names, or drop one")
            }
            RouteProblem::SecondHandler { path, method: Some(method) } => {
                write!(f, "`{method} {path}` has two handlers")
            }
            RouteProblem::SecondHandler { path, method: None } => {
                write!(f, "`{path}` has two handlers for any method")
            }
            RouteProblem::BuiltIn { path } => write!(
                f,
                "`GET {path}` has a handler, and is an endpoint of the server's own: turn that off or put it elsewhere \
                 (a flag such as --healthz, or `ServerConfig::endpoints`), or choose another path"
            ),
            RouteProblem::SecondFallback { prefix } => write!(f, "`{prefix}` has two fallbacks"),
            RouteProblem::Files { path, why } if path.is_empty() => write!(f, "files at `/`: {why}"),
            RouteProblem::Files { path, why } => write!(f, "files at `{path}`: {why}"),
            RouteProblem::SecondErrorPage => f.write_str("there are two error pages, an app has one"),
        }
    }
}

/// A path that no request's can be equal to is a mistake, found here instead of by a 404 later.
pub(super) fn check_path(path: &str) -> Option<RouteProblem> {
    let why = if !path.starts_with('/') {
        "it does not start with `/`"
    } else if let Some(byte) = path.bytes().find(|byte| !byte.is_ascii_graphic()) {
        if byte.is_ascii() {
            "it has a space or a control character, write it percent-encoded"
        } else {
            "it is not ASCII, write it percent-encoded"
        }
    } else if path.contains(['?', '#']) {
        "it has a `?` or `#`, which are not part of a path"
    } else if path.contains("/:") {
        // As axum's, express' and others' were: taken as it stands, it would be a route that nobody finds.
        "a parameter is written `{name}`, not `:name`; a colon that begins a segment, `%3A`"
    } else {
        return None;
    };
    Some(RouteProblem::Unparsable { path: path.to_owned(), why })
}
