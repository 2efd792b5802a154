//! Who owns the shards' threads from start to end: hears signals, drains, ends. Floor 7.

use super::{Bound, post_all, stop_all};
use crate::{
    config::ServerConfig,
    endpoints::About,
    error::Error,
    shard::{Mail, Peers},
    systemd::Notifier,
    worker::Note,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

pub(super) fn hear_signals(notes: &Sender<Note>) -> io::Result<signal_hook::iterator::Handle> {
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGTERM, libc::SIGINT])?;
    let handle = signals.handle();
    let notes = notes.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            if notes.send(Note::Signal).is_err() {
                return;
            }
        }
    })?;
    Ok(handle)
}

/// Owns the shards' threads from start to end.
pub(super) struct Keeper {
    pub(super) peers: Arc<Peers>,
    pub(super) about: Arc<About>,
    pub(super) config: Arc<ServerConfig>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) heard: Receiver<Note>,
    pub(super) notifier: Option<Notifier>,
    /// Feeds systemd's watchdog until the end.
    pub(super) _watchdog: Option<SyncSender<()>>,
    /// Keeps unix socket files until the end.
    pub(super) _sockets: Bound,
}

impl Keeper {
    pub(super) fn keep(mut self, signals: Option<signal_hook::iterator::Handle>) -> Result<(), Error> {
        let result = self.serve();
        match self.peers.connections() {
            0 => {}
            left => log::warn!("ending with connections open: {left}; what they were at is lost"),
        }
        let ended = stop_all(&self.peers, std::mem::take(&mut self.threads), &self.heard);
        if let Some(signals) = signals {
            signals.close();
        }
        result.and(ended)
    }

    /// Until every shard is to stop.
    fn serve(&mut self) -> Result<(), Error> {
        let mut phase = Phase::Serving;
        let mut drained = 0;
        loop {
            let note = match phase {
                Phase::Serving => self.heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Phase::Delaying(until) | Phase::Draining(until) => {
                    self.heard.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
            };
            match (note, phase) {
                (Ok(Note::Shutdown | Note::Signal), Phase::Serving) => {
                    self.about.is_draining.store(true, Ordering::Relaxed);
                    if let Some(notifier) = &self.notifier {
                        notifier.tell("STOPPING=1\nSTATUS=draining");
                    }
                    phase = Phase::Delaying(Instant::now() + self.config.drain_delay);
                }
                (Ok(Note::Stop), _) | (Ok(Note::Signal), _) => return Ok(()),
                (Ok(Note::Drained), _) => {
                    drained += 1;
                    if drained == self.threads.len() {
                        return Ok(());
                    }
                }
                (Ok(Note::Ended(result)), _) => return result,
                (Ok(Note::Shutdown | Note::Ready(_)), _) => {}
                (Err(RecvTimeoutError::Timeout), Phase::Delaying(_)) => {
                    phase = Phase::Draining(Instant::now() + self.config.drain_timeout);
                    post_all(&self.peers, || Mail::Drain);
                }
                // The deadline; or no shard is left.
                (Err(_), _) => return Ok(()),
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Phase {
    Serving,
    /// Unready, but accepting, until then.
    Delaying(Instant),
    /// Finishing, until then.
    Draining(Instant),
}
