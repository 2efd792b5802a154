//! In which format the stats go out. Floor 7.

use crate::stats::Exposition;

/// A format of `/__stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Page,
    Prometheus(Exposition),
    Csv,
}

/// The formats in order of preference where a client likes several equally well, with their media types; the third
/// is the `version` that a range may ask for (RFC 9110 §12.5.1: parameters are part of the range).
const OFFERS: [(Format, &str, &str); 5] = [
    (Format::Json, "application/json", ""),
    (Format::Page, "text/html", ""),
    (Format::Prometheus(Exposition::Text), "text/plain", "0.0.4"),
    (Format::Prometheus(Exposition::OpenMetrics), "application/openmetrics-text", "1.0.0"),
    (Format::Csv, "text/csv", ""),
];

impl Format {
    /// Of `/__stats`: what `?format=` names, else what `Accept` likes best, else JSON. `None`: no such format.
    pub(super) fn of_stats(named: Option<&str>, accept: Option<&str>) -> Option<Self> {
        match named {
            None => Some(best(accept, &OFFERS).unwrap_or(Format::Json)),
            Some("json") => Some(Format::Json),
            Some("html") => Some(Format::Page),
            Some("prometheus") => Some(Format::Prometheus(Exposition::Text)),
            Some("openmetrics") => Some(Format::Prometheus(Exposition::OpenMetrics)),
            Some("csv") => Some(Format::Csv),
            Some(_) => None,
        }
    }

    /// Of `/metrics`: OpenMetrics where `Accept` likes it better.
    pub(super) fn of_metrics(accept: Option<&str>) -> Self {
        best(accept, &OFFERS[2..4]).unwrap_or(Format::Prometheus(Exposition::Text))
    }
}

/// The offer with the highest quality, of equal ones the first. `None`: nothing offered is acceptable; then the
/// default goes out all the same, as RFC 9110 §12.4.1 allows.
fn best(accept: Option<&str>, offers: &[(Format, &str, &str)]) -> Option<Format> {
    let accept = accept.unwrap_or("*/*");
    let mut best = None;
    for &(format, media_type, version) in offers {
        let quality = quality(accept, media_type, version);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((format, quality));
        }
    }
    best.map(|(format, _)| format)
}

/// How much a client likes a media type, in thousandths: as the most specific range says that fits it.
fn quality(accept: &str, media_type: &str, version: &str) -> u16 {
    let (kind, _) = media_type.split_once('/').unwrap_or_default();
    let mut found = (0, 0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let mut specific = match name {
            _ if name.eq_ignore_ascii_case(media_type) => 3,
            _ if name.strip_suffix("/*").is_some_and(|name| name.eq_ignore_ascii_case(kind)) => 2,
            "*/*" => 1,
            _ => continue,
        };
        let mut quality = 1000;
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => quality = parse_quality(value.trim()),
                "version" if value.trim() == version => specific += 1,
                "version" => specific = 0,
                _ => {} // charset, escaping: nothing to choose between
            }
        }
        if specific > found.0 {
            found = (specific, quality);
        }
    }
    found.1
}

/// `0.75` as 750; what is no such number is 0 (RFC 9110 §12.4.2).
fn parse_quality(text: &str) -> u16 {
    match text.parse::<f32>() {
        Ok(quality @ 0.0..=1.0) => (quality * 1000.0) as u16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_format_is_named_or_negotiated() {
        use Format::{Csv, Json, Page};
        let (text, open) = (Format::Prometheus(Exposition::Text), Format::Prometheus(Exposition::OpenMetrics));
        let check = |named: Option<&str>, accept: Option<&str>, expected: Option<Format>| {
            assert_eq!(Format::of_stats(named, accept), expected, "{named:?} {accept:?}");
        };
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        check(None, None, Some(Json));
        check(None, Some("*/*"), Some(Json));
        check(None, Some(""), Some(Json));
        check(None, Some("image/png"), Some(Json));
        check(None, Some(browser), Some(Page));
        check(None, Some("TEXT/HTML"), Some(Page));
        check(None, Some("application/json, text/html;q=0.9"), Some(Json));
        check(None, Some("application/json;q=0.5, text/html"), Some(Page));
        check(None, Some("text/*"), Some(Page));
        check(None, Some("text/*, text/html;q=0"), Some(text));
        check(None, Some("*/*, application/json;q=0"), Some(Page));
        check(None, Some("text/csv"), Some(Csv));
        check(None, Some("text/plain"), Some(text));
        check(None, Some("application/openmetrics-text; version=1.0.0"), Some(open));
        check(None, Some("text/csv;q=2, text/html;q=x, text/plain;q=0.001"), Some(text));
        for (name, format) in
            [("json", Json), ("html", Page), ("prometheus", text), ("openmetrics", open), ("csv", Csv)]
        {
            check(Some(name), Some(browser), Some(format));
        }
        check(Some("xml"), Some(browser), None);
        check(Some(""), None, None);
    }

    #[test]
    fn metrics_format_is_what_a_prometheus_asks_for() {
        let (text, open) = (Format::Prometheus(Exposition::Text), Format::Prometheus(Exposition::OpenMetrics));
        let check = |accept: Option<&str>, expected| assert_eq!(Format::of_metrics(accept), expected, "{accept:?}");
        check(None, text);
        check(Some("*/*"), text);
        check(Some("text/html"), text);
        check(Some("application/openmetrics-text"), open);
        check(Some("application/openmetrics-text;version=0.0.1"), text);
        check(
            Some("application/openmetrics-text;version=0.0.1,application/openmetrics-text;version=1.0.0;q=0.5"),
            open,
        );
        // Prometheus 2.53, and 3.
        check(
            Some(
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            ),
            open,
        );
        check(
            Some(
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            ),
            open,
        );
        check(Some("text/plain;version=0.0.4;q=0.8, application/openmetrics-text;q=0.7"), text);
        check(Some("text/plain;version=1.0.0"), text);
    }
}
