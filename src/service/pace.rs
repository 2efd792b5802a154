//! How late a request's body is. Floor 5.

/// What has come of a body, and when.
pub(super) struct Pace {
    since: u64,
    pub(super) received: u64,
    /// The time of the last byte.
    pub(super) progress: u64,
    /// Since when its reader asks for nothing: that time is not the client's.
    unwanted_since: Option<u64>,
}

impl Pace {
    pub(super) fn new(now: u64) -> Self {
        Pace { since: now, received: 0, progress: now, unwanted_since: None }
    }

    /// Notes at each wait whether it is for the client.
    pub(super) fn set_awaited(&mut self, is_awaited: bool, now: u64) {
        if !is_awaited {
            self.unwanted_since.get_or_insert(now);
        } else if let Some(at) = self.unwanted_since.take() {
            self.since += now - at;
            self.progress = now;
        }
    }

    /// When the body is late: a pause too long, or in all too slow.
    pub(super) fn deadline(&self, timeout_ms: u64, rate_min: u64) -> u64 {
        let pause = self.progress.saturating_add(timeout_ms);
        let rate = match rate_min {
            0 => u64::MAX,
            _ => self.since.saturating_add(timeout_ms).saturating_add(self.received.saturating_mul(1000) / rate_min),
        };
        pause.min(rate)
    }
}
