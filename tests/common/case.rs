//! What one conformance case says: the octets to send, and the answers that are right.
//!
//! Octets stand in the JSON as Latin-1 characters, one character an octet.

use serde::Deserialize;
use std::{collections::HashSet, time::Duration};

/// One case, sent on a connection of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) area: String,
    /// The rule the expectation rests on.
    pub(crate) why: String,
    /// MUST, SHOULD, MAY or QUALITY.
    pub(crate) level: String,
    raw: Option<String>,
    segments: Option<Vec<String>>,
    /// Between the starts of two segments.
    #[serde(default = "pause_ms_default")]
    pause_ms: u64,
    /// Send FIN after the last octet.
    #[serde(default)]
    pub(crate) half_close: bool,
    pub(crate) abort: Option<Abort>,
    /// Request methods in order; GET where it ends. Needed for HEAD.
    #[serde(default)]
    pub(crate) methods: Vec<String>,
    /// Read nothing before this time.
    #[serde(default)]
    read_delay_ms: u64,
    pub(crate) expect: Expect,
}

fn pause_ms_default() -> u64 {
    20
}

/// How to drop the connection after sending; what is checked then is that the server still answers others.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Abort {
    Rst,
    Fin,
}

/// What must come. With `any_of`, one of those must hold, and only `never_bytes` and `linger_ok` count here.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// Statuses allowed for the first final response; empty: there must be none.
    pub(crate) status: Vec<u16>,
    /// The same for every response, in order.
    #[serde(default)]
    pub(crate) statuses: Vec<Vec<u16>>,
    /// Final responses on the connection, exactly.
    pub(crate) responses: Option<usize>,
    /// The server must close (`true`), or stay in step and answer one more request (`false`).
    pub(crate) close: Option<bool>,
    /// Body of each response whose status is 2xx; null: any.
    #[serde(default)]
    pub(crate) bodies: Vec<Option<BodyWanted>>,
    #[serde(default)]
    pub(crate) headers: Vec<HeaderWanted>,
    #[serde(default)]
    pub(crate) interim: Interim,
    pub(crate) before_segment: Option<BeforeSegment>,
    no_answer_ok: Option<NoAnswerOk>,
    /// Staying silent, and open, is accepted.
    #[serde(default)]
    pub(crate) timeout_ok: bool,
    /// After "Connection: close" the server may still read an announced body.
    #[serde(default)]
    pub(crate) linger_ok: bool,
    /// A bare answer that is no HTTP/1, followed by a close, is accepted.
    #[serde(default)]
    pub(crate) http09_ok: bool,
    /// Must not occur in anything received.
    #[serde(default)]
    pub(crate) never_bytes: Vec<String>,
    /// Date of the first and of the last response must differ.
    #[serde(default)]
    pub(crate) date_changes: bool,
    #[serde(default)]
    pub(crate) any_of: Vec<Expect>,
    /// Prose: what the case is there to catch.
    #[serde(rename = "never")]
    _never: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum BodyWanted {
    Octets(String),
    /// The last so many octets that were sent.
    Sent {
        tail: usize,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderWanted {
    #[serde(default)]
    pub(crate) resp: Which,
    pub(crate) name: String,
    pub(crate) present: Option<bool>,
    /// Some part of the joined values must match.
    pub(crate) regex: Option<String>,
    pub(crate) if_present_regex: Option<String>,
    /// A chunked response is not asked.
    #[serde(default)]
    pub(crate) or_chunked: bool,
    /// The value is a current IMF-fixdate.
    #[serde(default)]
    pub(crate) date_now: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Which {
    Index(usize),
    Word(All),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum All {
    All,
}

impl Default for Which {
    fn default() -> Self {
        Self::Index(0)
    }
}

/// Whether 100 (Continue) must, must not or may come.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Interim {
    Required,
    Forbidden,
    #[default]
    Optional,
}

/// Messages that must have come before the segment of that index is sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BeforeSegment {
    pub(crate) index: usize,
    #[serde(rename = "final")]
    pub(crate) finals: Option<usize>,
    /// Interim responses count too.
    pub(crate) any: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NoAnswerOk {
    Flag(bool),
    /// "warn": an answer is only recommended. We always give one, so here it is required.
    Word(Warn),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Warn {
    Warn,
}

impl Case {
    /// Reads a file of one case a line.
    ///
    /// # Panics
    /// On a case that is not well formed or repeats an id: the data is part of the test.
    pub(crate) fn read_all(jsonl: &str) -> Vec<Self> {
        let mut ids = HashSet::new();
        let cases: Vec<Self> = jsonl
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| match serde_json::from_str(line) {
                Ok(case) => case,
                Err(e) => panic!("{e} in case {}", &line[..line.len().min(120)]),
            })
            .collect();
        for case in &cases {
            assert!(ids.insert(&case.id), "two cases are called {}", case.id);
            assert!(case.raw.is_some() != case.segments.is_some(), "{}: raw or segments", case.id);
        }
        cases
    }

    /// The octets to send, in the pieces they are sent in.
    pub(crate) fn segments(&self) -> Vec<Vec<u8>> {
        match (&self.segments, &self.raw) {
            (Some(segments), _) => segments.iter().map(|s| latin1(s)).collect(),
            (None, Some(raw)) => vec![latin1(raw)],
            (None, None) => unreachable!("read_all refuses such a case"),
        }
    }

    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms)
    }

    pub(crate) fn read_delay(&self) -> Duration {
        Duration::from_millis(self.read_delay_ms)
    }

    /// The expectations of which one must hold.
    pub(crate) fn alternatives(&self) -> &[Expect] {
        if self.expect.any_of.is_empty() { std::slice::from_ref(&self.expect) } else { &self.expect.any_of }
    }

    /// Long silences are a part of it, so it is begun first, beside the others.
    pub(crate) fn is_slow(&self) -> bool {
        self.pause_ms > 400 || self.alternatives().iter().any(|a| a.timeout_ok)
    }
}

impl Expect {
    /// Closing without any octet is accepted.
    pub(crate) fn is_silence_ok(&self) -> bool {
        matches!(self.no_answer_ok, Some(NoAnswerOk::Flag(true)))
    }
}

/// The octets that a string of Latin-1 characters stands for.
pub(crate) fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).expect("case octets are Latin-1 characters")).collect()
}
