//! Who owns the shards' threads from start to end: hears signals, drains, ends. Floor 7.

use super::{Bound, post_all, stop_all};
use crate::{
    access_log::Writer,
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

/// SIGHUP is heard where it has a meaning; elsewhere it ends the process, as when its terminal is closed.
pub(super) fn hear_signals(notes: &Sender<Note>, reopens: bool) -> io::Result<signal_hook::iterator::Handle> {
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGTERM, libc::SIGINT])?;
    if reopens {
        signals.add_signal(libc::SIGHUP)?;
    }
    let handle = signals.handle();
    let notes = notes.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let note = if signal == libc::SIGHUP { Note::Reopen } else { Note::Signal };
            if notes.send(note).is_err() {
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
    pub(super) access_log: Option<Writer>,
    /// Feeds systemd's watchdog until the end.
    pub(super) _watchdog: Option<SyncSender<()>>,
    /// Keeps unix socket files until the end.
    pub(super) _sockets: Bound,
}

impl Keeper {
    pub(super) fn keep(mut self, signals: Option<signal_hook::iterator::Handle>) -> Result<(), Error> {
        let result = self.serve();
        match self.peers.connections() {
            left @ 1.. if result.is_ok() => {
                tracing::warn!("ending with connections open: {left}; what they were at is lost")
            }
            _ => {}
        }
        let ended = stop_all(&self.peers, std::mem::take(&mut self.threads), &self.heard);
        if let Some(log) = self.access_log {
            log.close();
        }
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
                    if !self.config.drain_delay.is_zero() {
                        let (delay, open) = (self.config.drain_delay, self.peers.connections());
                        tracing::info!("told to end: accepting for another {delay:?}; connections open: {open}");
                    }
                    phase = Phase::Delaying(Instant::now() + self.config.drain_delay);
                }
                (Ok(Note::Stop), _) => return Ok(()),
                (Ok(Note::Signal), _) => return self.cut(true),
                (Ok(Note::Drained), _) => {
                    drained += 1;
                    if drained == self.threads.len() {
                        return Ok(());
                    }
                }
                (Ok(Note::Reopen), _) => {
                    if let Some(log) = &self.access_log {
                        log.reopen();
                    }
                }
                (Ok(Note::Ended(result)), _) => return result,
                (Ok(Note::Shutdown | Note::Ready(_)), _) => {}
                (Err(RecvTimeoutError::Timeout), Phase::Delaying(_)) => {
                    let (time, open) = (self.config.drain_timeout, self.peers.connections());
                    tracing::info!("draining: accepting no more; connections open: {open}, which have {time:?}");
                    phase = Phase::Draining(Instant::now() + self.config.drain_timeout);
                    post_all(&self.peers, || Mail::Drain);
                }
                // The deadline; or no shard is left.
                (Err(_), _) => return self.cut(false),
            }
        }
    }

    /// How a drain went that is not waited for any longer.
    fn cut(&self, by_signal: bool) -> Result<(), Error> {
        match self.peers.connections() {
            0 => Ok(()),
            connections => Err(Error::DrainCut { connections, by_signal }),
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
