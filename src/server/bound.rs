//! The listeners of a server: those it binds and those it was given, a descriptor for each shard. Floor 7.

use crate::{
    config::{Address, ServerConfig},
    error::Error,
    ring::listen::{ListenOptions, Listeners, bind_all},
    topology::ShardPlan,
    worker::{Purpose, TcpFactory},
};
use std::{io, net::TcpListener, os::fd::OwnedFd, sync::Arc};

/// What all shards listen at.
pub(super) struct Bound {
    listeners: Vec<(Listeners, Purpose)>,
}

/// A listener that the caller made, for [`bind`].
pub(super) fn adopt(listener: TcpListener) -> io::Result<(OwnedFd, Address)> {
    // A ring answers EAGAIN at once for a non-blocking listener, instead of waiting.
    listener.set_nonblocking(false)?;
    let address = Address::Tcp(listener.local_addr()?);
    Ok((listener.into(), address))
}

/// Binds every address for every shard, or none.
pub(super) fn bind(
    config: &ServerConfig,
    adopted: Vec<(OwnedFd, Address)>,
    tcp: Vec<(Address, TcpFactory)>,
    plan: &ShardPlan,
) -> Result<Bound, Error> {
    let options = ListenOptions::new(config, plan);
    let shards = plan.shards();
    let mut listeners = Vec::new();
    for address in &config.listen {
        listeners.push((bind_all(address, shards, &options).map_err(Error::Bind)?, Purpose::Http));
    }
    for (listener, address) in adopted {
        let fds = (0..shards).map(|_| listener.try_clone());
        let fds = fds.collect::<io::Result<Vec<_>>>().map_err(Error::Host)?;
        listeners.push((Listeners { address, fds, socket_file: None }, Purpose::Http));
    }
    for (address, factory) in tcp {
        listeners.push((bind_all(&address, shards, &options).map_err(Error::Bind)?, Purpose::Tcp(factory)));
    }
    for (address, ajp) in &config.ajp {
        let purpose = Purpose::Ajp(Arc::new(ajp.clone()));
        listeners.push((bind_all(address, shards, &options).map_err(Error::Bind)?, purpose));
    }
    // Last: the others' numbers are those of their addresses.
    if let Some(address) = &config.stats_listen {
        listeners.push((bind_all(address, shards, &options).map_err(Error::Bind)?, Purpose::Stats));
    }
    Ok(Bound { listeners })
}

impl Bound {
    /// This shard's descriptors; each shard takes its own once.
    pub(super) fn take_shard(&mut self, id: usize) -> Vec<(OwnedFd, Purpose)> {
        debug_assert!(self.listeners.iter().all(|(listeners, _)| !listeners.fds.is_empty()), "shard {id}");
        self.listeners.iter_mut().map(|(listeners, purpose)| (listeners.fds.remove(0), purpose.clone())).collect()
    }

    pub(super) fn addresses(&self) -> Vec<Address> {
        self.addresses_of(|purpose| !matches!(purpose, Purpose::Stats)).collect()
    }

    pub(super) fn http_addresses(&self) -> Vec<Address> {
        self.addresses_of(|purpose| matches!(purpose, Purpose::Http)).collect()
    }

    pub(super) fn stats_address(&self) -> Option<Address> {
        self.addresses_of(|purpose| matches!(purpose, Purpose::Stats)).next()
    }

    fn addresses_of(&self, is_wanted: impl Fn(&Purpose) -> bool) -> impl Iterator<Item = Address> {
        let wanted = self.listeners.iter().filter(move |(_, purpose)| is_wanted(purpose));
        wanted.map(|(listeners, _)| listeners.address.clone())
    }
}
