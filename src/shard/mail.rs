//! What threads tell a shard: bounded mailboxes and doorbells, and the one count that shards share. Floor 4.

use crate::{limits::MAILBOX_MAX, ring::Doorbell, stats::ShardReport};
use std::{
    any::Any,
    io,
    os::fd::OwnedFd,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
};

/// What one thread tells a shard.
pub(crate) enum Mail {
    /// A connection that another shard accepted on a listener.
    Connection { fd: OwnedFd, listener: usize },
    /// Asks for counters.
    Ask { question: u64, reply: Reply },
    /// Counters that were asked for.
    Answer { question: u64, report: Box<ShardReport> },
    /// A message of an author's.
    Message(Box<dyn Any + Send>),
    /// All shards are ready: begin to accept.
    Serve,
    /// Stop accepting, finish what is in flight.
    Drain,
    /// End now.
    Stop,
}

/// Where an answer goes.
pub(crate) enum Reply {
    To(usize),
    Thread(SyncSender<ShardReport>),
}

/// A shard's own end of its mailbox, and its doorbell.
pub(crate) type MailEnd = (Receiver<Mail>, Doorbell);

/// Every shard, as the others reach it.
#[derive(Debug)]
pub(crate) struct Peers(pub(super) Vec<Peer>);

#[derive(Debug)]
pub(crate) struct Peer {
    mailbox: SyncSender<Mail>,
    doorbell: Doorbell,
    /// Connections this shard has, those on their way to it included. Written once a connection.
    connections: AtomicUsize,
}

impl Peers {
    /// The peers, and each one's mailbox and doorbell.
    pub(crate) fn new(count: usize) -> io::Result<(Self, Vec<MailEnd>)> {
        let mut peers = Vec::with_capacity(count);
        let mut ends = Vec::with_capacity(count);
        for _ in 0..count {
            let (mailbox, receiver) = sync_channel(MAILBOX_MAX);
            let doorbell = Doorbell::new()?;
            peers.push(Peer { mailbox, doorbell: doorbell.clone(), connections: AtomicUsize::new(0) });
            ends.push((receiver, doorbell));
        }
        Ok((Peers(peers), ends))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter()
    }

    pub(crate) fn get(&self, id: usize) -> &Peer {
        &self.0[id]
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Connections of all shards.
    pub(crate) fn connections(&self) -> usize {
        self.0.iter().map(Peer::connections).sum()
    }
}

impl Peer {
    #[allow(clippy::result_large_err)] // the mail comes back, as it must
    pub(crate) fn post(&self, mail: Mail) -> Result<(), TrySendError<Mail>> {
        self.mailbox.try_send(mail)?;
        self.doorbell.ring();
        Ok(())
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn uncount_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
