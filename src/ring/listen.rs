//! Listening sockets: one a shard and address, bound together or not at all.
//!
//! Floor 3. Makes the sockets and no more: accepting belongs to each shard's ring, which needs no non-blocking
//! sockets. Choosing a shard in user space (round-robin, least-conn) belongs to the worker; here those listen as
//! [`Balance::Kernel`] does.
#![allow(unsafe_code)]

use std::fmt;
use std::fs;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::{Address, Balance, ServerConfig};
use crate::limits::{DEFER_ACCEPT_SECONDS, FAST_OPEN_QUEUE, PORT_RETRY, PORT_RETRY_PAUSE, UNSENT_BYTES_MAX};
use crate::topology::ShardPlan;

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Connections that wait for `accept`, each listener.
    pub backlog: u32,
    /// Join a port that another process of this user listens on.
    pub share_port: bool,
    /// Accept only what has sent something.
    pub defer_accept: bool,
    /// Take data in the first packet.
    pub fast_open: bool,
    /// Which listener gets a connection.
    pub balance: Balance,
    /// How long to try again while the address is in use.
    pub patience: Duration,
    /// The core of each shard, if they are pinned. `Balance::Cpu` sends what arrives on a core to its shard;
    /// what arrives on any other core is spread over all.
    pub cores: Vec<usize>,
}

impl ListenOptions {
    /// As the configuration says, for these shards.
    pub fn new(config: &ServerConfig, plan: &ShardPlan) -> Self {
        Self {
            backlog: config.backlog,
            share_port: config.share_port,
            defer_accept: config.defer_accept,
            fast_open: config.fast_open,
            balance: config.balance,
            patience: PORT_RETRY,
            cores: (0..plan.shards()).map_while(|shard| plan.core_of(shard)).collect(),
        }
    }
}

/// The listeners of one address.
#[derive(Debug)]
pub struct Listeners {
    /// Where they listen: with the port that the kernel chose, if it was asked to.
    pub address: Address,
    /// One a shard. Those of a TCP port have a queue each; those of a unix socket are one socket.
    pub fds: Vec<OwnedFd>,
    /// Removes a unix socket's file when dropped.
    pub socket_file: Option<SocketFile>,
}

/// Listens on `address` for `shards` shards. On failure nothing is left behind.
///
/// TCP listeners inherit to what they accept: `TCP_NODELAY`. IPv6 ones take IPv6 only (`IPV6_V6ONLY`), so that
/// `[::]:80` and `0.0.0.0:80` can stand side by side and neither means more than it says, whatever
/// `net.ipv6.bindv6only` is.
///
/// # Errors
/// The address is in use, is not this host's, is forbidden, or the system failed; each with its cure.
pub fn bind_all(address: &Address, shards: usize, options: &ListenOptions) -> Result<Listeners, BindError> {
    patiently(options.patience, || match address {
        Address::Tcp(wanted) => bind_tcp(*wanted, shards, options),
        Address::Unix { path, mode } => bind_unix(path, *mode, shards, options),
    })
    .map_err(|(step, cause)| BindError { address: address.clone(), step, cause })
}

/// What went wrong, before the address is put to it.
type Failure = (&'static str, io::Error);

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, Failure>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: &'static str) -> Result<T, Failure> {
        self.map_err(|error| (step, error))
    }
}

/// Tries again for a moment while the address is in use: it may be a killed process' whose rings still close.
fn patiently<T>(patience: Duration, mut bind: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let give_up = Instant::now() + patience;
    loop {
        match bind() {
            Err((_, error)) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up => {
                thread::sleep(PORT_RETRY_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

// ---- TCP -----------------------------------------------------------------------------------------

fn bind_tcp(wanted: SocketAddr, shards: usize, options: &ListenOptions) -> Result<Listeners, Failure> {
    let first = tcp_socket(wanted, options)?;
    if options.share_port {
        first.set_reuse_port(true).step("SO_REUSEPORT")?;
    }
    bind_and_listen(&first, wanted, options)?;
    // Without SO_REUSEPORT the kernel let us listen only because nobody else does. Switching it on *after* `listen`
    // opens the port to our own other listeners. No moment is left for a second server to slip in, as there would be
    // between a trial bind and the real one, or if it were switched on between `bind` and `listen` (both servers
    // then come to listen: tried on Linux 6.18). The kernel makes the group when the second listener joins.
    first.set_reuse_port(true).step("SO_REUSEPORT")?;
    let bound = first.local_addr().step("getsockname")?.as_socket().unwrap_or(wanted);

    let mut sockets = vec![first];
    while sockets.len() < shards {
        let next = tcp_socket(bound, options)?;
        next.set_reuse_port(true).step("SO_REUSEPORT")?;
        bind_and_listen(&next, bound, options)?;
        sockets.push(next);
    }
    if options.balance.is_kernel_program() && shards > 1 {
        let program = balance_program(options.balance, shards, &options.cores);
        attach_balance(&sockets[0], &program).step("SO_ATTACH_REUSEPORT_CBPF")?;
    }
    let fds = sockets.into_iter().map(OwnedFd::from).collect();
    Ok(Listeners { address: Address::Tcp(bound), fds, socket_file: None })
}

/// A socket with everything set but SO_REUSEPORT. (`Socket::new` sets CLOEXEC.)
fn tcp_socket(address: SocketAddr, options: &ListenOptions) -> Result<Socket, Failure> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).step("socket")?;
    // For connections in TIME_WAIT after a restart; it does not admit a second listener.
    socket.set_reuse_address(true).step("SO_REUSEADDR")?;
    if address.is_ipv6() {
        socket.set_only_v6(true).step("IPV6_V6ONLY")?;
    }
    socket.set_tcp_nodelay(true).step("TCP_NODELAY")?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX).step("TCP_NOTSENT_LOWAT")?;
    if options.defer_accept {
        set_tcp_option(&socket, libc::TCP_DEFER_ACCEPT, DEFER_ACCEPT_SECONDS).step("TCP_DEFER_ACCEPT")?;
    }
    if options.fast_open {
        set_tcp_option(&socket, libc::TCP_FASTOPEN, FAST_OPEN_QUEUE).step("TCP_FASTOPEN")?;
    }
    Ok(socket)
}

fn bind_and_listen(socket: &Socket, address: SocketAddr, options: &ListenOptions) -> Result<(), Failure> {
    socket.bind(&address.into()).step("bind")?;
    socket.listen(backlog(options)).step("listen")
}

fn backlog(options: &ListenOptions) -> i32 {
    i32::try_from(options.backlog).unwrap_or(i32::MAX)
}

fn set_tcp_option(socket: &Socket, name: libc::c_int, value: u32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, name, &value)
}

fn set_option<T>(socket: &Socket, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes at `value`, which is borrowed for the call and that large. The
    // descriptor is open as long as `socket` is borrowed.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

// ---- balance by a program in the kernel ----------------------------------------------------------

/// A classic BPF program whose result is the index of a listener in its group.
///
/// `SO_INCOMING_CPU` on each listener would do for `Cpu` too, but before Linux 6.2 it does not work within a group,
/// and it leaves to the hash what arrives on a core without a shard.
///
/// Indices follow the order of `listen`. When a listener closes, the last one takes its index: a server that closes
/// them one by one while it runs should attach a new program.
fn balance_program(balance: Balance, shards: usize, cores: &[usize]) -> Vec<libc::sock_filter> {
    use libc::{BPF_A, BPF_ABS, BPF_ALU, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_MOD, BPF_RET, BPF_W};
    let op = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let ancillary = |offset: i32| (libc::SKF_AD_OFF + offset) as u32;
    let mut program = Vec::new();
    if balance == Balance::Cpu {
        program.push(op(BPF_LD | BPF_W | BPF_ABS, 0, ancillary(libc::SKF_AD_CPU)));
        // A jump reaches 255 instructions only, so each core has its own test and return.
        for (shard, &core) in cores.iter().take(shards).enumerate() {
            program.push(op(BPF_JMP | BPF_JEQ | BPF_K, 1, core as u32));
            program.push(op(BPF_RET | BPF_K, 0, shard as u32));
        }
    } else {
        program.push(op(BPF_LD | BPF_W | BPF_ABS, 0, ancillary(libc::SKF_AD_RANDOM)));
    }
    program.push(op(BPF_ALU | BPF_MOD | BPF_K, 0, shards as u32));
    program.push(op(BPF_RET | BPF_A, 0, 0));
    program
}

/// Any listener of the group takes the program for all of them.
fn attach_balance(socket: &Socket, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel copies the program and writes nothing, the type's `*mut` notwithstanding.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

// ---- unix sockets --------------------------------------------------------------------------------

fn bind_unix(path: &Path, mode: Option<u32>, shards: usize, options: &ListenOptions) -> Result<Listeners, Failure> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).step("socket")?;
    let name = socket2::SockAddr::unix(path).step("path")?;
    match socket.bind(&name) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            // Whoever bound it since then keeps it: this fails. What stays open is that two servers of one path, started
            // together, both find the same stale file and the later one removes the other's fresh one; that one is
            // then without a name, and its guard does not remove ours.
            socket.bind(&name).step("bind")?;
        }
        other => other.step("bind")?,
    }
    // From here on the file is ours to remove, also when a later step fails.
    let socket_file = SocketFile::at(path).step("stat")?;
    if let Some(mode) = mode {
        // Before `listen`, so that nobody connects under the wider mode.
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).step("chmod")?;
    }
    socket.listen(backlog(options)).step("listen")?;
    let mut fds = vec![OwnedFd::from(socket)];
    while fds.len() < shards {
        // A copy of the descriptor (CLOEXEC): unix sockets know no SO_REUSEPORT, and accept is fair enough.
        let copy = fds[0].try_clone().step("dup")?;
        fds.push(copy);
    }
    let address = Address::Unix { path: path.to_owned(), mode };
    Ok(Listeners { address, fds, socket_file: Some(socket_file) })
}

/// Removes a socket's file if nobody listens on it; never any other file.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    let is_socket = fs::symlink_metadata(path).step("stat")?.file_type().is_socket();
    if !is_socket {
        return Err(("replace", io::Error::from(io::ErrorKind::AlreadyExists)));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).step("remove"),
        // A full queue, or a socket of another type, has somebody behind it just the same.
        _ => Err(("bind", io::Error::from(io::ErrorKind::AddrInUse))),
    }
}

/// Removes the file of a unix socket when dropped, if it is still the one that was bound.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device and inode.
type Identity = (u64, u64);

fn identity(path: &Path) -> io::Result<Identity> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // A file that is gone meanwhile is what we want.
            let _ = fs::remove_file(&self.path);
        }
    }
}

// ---- the error -----------------------------------------------------------------------------------

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct BindError {
    /// Which.
    pub address: Address,
    /// The call that failed, such as `bind`.
    pub step: &'static str,
    /// How.
    pub cause: io::Error,
}

impl BindError {
    /// What to do about it, if that can be told.
    fn cure(&self) -> Option<String> {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable, AlreadyExists, NotFound, PermissionDenied};
        let is_unix = matches!(self.address, Address::Unix { .. });
        let cure = match (self.cause.kind(), &self.address) {
            (AddrInUse, Address::Tcp(address)) => {
                return Some(format!(
                    "another process listens on this port (see `ss -ltnp 'sport = :{}'`); end it, choose another port, or \
                     join it with --share-port, which needs an everycore of the same user there",
                    address.port()
                ));
            }
            (AddrInUse, Address::Unix { .. }) => {
                "another process listens on this socket; end it or choose another path"
            }
            (AlreadyExists, _) => "a file that is no socket is there; remove it yourself or choose another path",
            (AddrNotAvailable, _) => "this host does not have the address; see `ip addr`, or listen on 0.0.0.0 or [::]",
            (NotFound, _) if is_unix => "the folder does not exist; make it",
            (PermissionDenied, Address::Tcp(address)) if address.port() < 1024 && address.port() > 0 => {
                "ports below 1024 need CAP_NET_BIND_SERVICE (or a lower net.ipv4.ip_unprivileged_port_start); choose a higher one"
            }
            (PermissionDenied, Address::Unix { .. }) => {
                "this user may not write to the folder; change its mode or choose another path"
            }
            _ => match self.cause.raw_os_error() {
                Some(libc::EAFNOSUPPORT) => "this host has no IPv6; listen on an IPv4 address",
                // Charged to the socket. Kernels before 6.8 allow 20480 bytes, some 800 shards.
                Some(libc::ENOMEM) if self.step == "SO_ATTACH_REUSEPORT_CBPF" => {
                    "the balance's program is too large here; set the sysctl net.core.optmem_max=131072"
                }
                Some(libc::EMFILE) => {
                    "raise the limit on open files (ulimit -n, docker --ulimit nofile=, systemd LimitNOFILE=)"
                }
                _ => return None,
            },
        };
        Some(cure.to_owned())
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}: {}", self.address, self.step, self.cause)?;
        match self.cure() {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;
    use std::sync::Barrier;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn options() -> ListenOptions {
        ListenOptions {
            backlog: 1024,
            share_port: false,
            defer_accept: false,
            fast_open: false,
            balance: Balance::Kernel,
            patience: Duration::ZERO,
            cores: Vec::new(),
        }
    }

    fn loopback() -> Address {
        Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())
    }

    fn socket_address(address: &Address) -> SocketAddr {
        match address {
            Address::Tcp(address) => *address,
            Address::Unix { .. } => panic!("not TCP"),
        }
    }

    fn sockets(listeners: Listeners) -> Vec<Socket> {
        listeners.fds.into_iter().map(Socket::from).collect()
    }

    fn refused(address: &Address, shards: usize) -> io::ErrorKind {
        bind_all(address, shards, &options()).unwrap_err().cause.kind()
    }

    // ---- TCP

    #[test]
    fn tcp_port_zero_is_chosen_once_and_shared() {
        let listeners = bind_all(&loopback(), 3, &options()).unwrap();
        let bound = socket_address(&listeners.address);
        assert_ne!(bound.port(), 0);
        assert!(listeners.socket_file.is_none());
        let sockets = sockets(listeners);
        assert_eq!(sockets.len(), 3);
        for socket in &sockets {
            assert_eq!(socket.local_addr().unwrap().as_socket(), Some(bound));
            assert!(socket.tcp_nodelay().unwrap());
            assert!(socket.reuse_port().unwrap());
            // SAFETY: the descriptor is open; F_GETFD has no further argument.
            let flags = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        }
        let client = TcpStream::connect(bound).unwrap();
        let counts = count_accepted(&sockets, 1);
        assert_eq!(counts.iter().sum::<usize>(), 1);
        drop(client);
    }

    #[test]
    fn tcp_port_in_use_is_refused_with_the_cure() {
        let held = bind_all(&loopback(), 2, &options()).unwrap();
        let error = bind_all(&held.address, 2, &options()).unwrap_err();
        let port = socket_address(&held.address).port();
        let text = error.to_string();
        assert_eq!(error.cause.kind(), io::ErrorKind::AddrInUse);
        assert!(text.starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")), "{text}");
        assert!(text.contains(&format!("ss -ltnp 'sport = :{port}'")), "{text}");
        // The wildcard address would take over a part of the port only; it is refused as well.
        assert_eq!(refused(&Address::Tcp((Ipv4Addr::UNSPECIFIED, port).into()), 2), io::ErrorKind::AddrInUse);
        let foreign = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(refused(&Address::Tcp(foreign.local_addr().unwrap()), 2), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn tcp_port_is_shared_when_both_agree() {
        let first = bind_all(&loopback(), 2, &options()).unwrap();
        let sharing = ListenOptions { share_port: true, ..options() };
        let second = bind_all(&first.address, 2, &sharing).unwrap();
        assert_eq!(second.address, first.address);
        drop(first);
        assert_eq!(refused(&second.address, 1), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn tcp_port_is_free_again_after_a_close_on_our_side() {
        let listeners = bind_all(&loopback(), 2, &options()).unwrap();
        let address = listeners.address.clone();
        let client = TcpStream::connect(socket_address(&address)).unwrap();
        let sockets = sockets(listeners);
        count_accepted(&sockets, 1); // closes what it accepts: our side is the one in TIME_WAIT
        drop((sockets, client));
        bind_all(&address, 2, &options()).unwrap();
    }

    #[test]
    fn tcp_port_goes_to_one_of_many_that_start_together() {
        // An address of our own within 127.0.0.0/8, so that nobody else comes between the choice of the port and its use.
        let [.., b, c] = std::process::id().to_be_bytes();
        let any = Address::Tcp((Ipv4Addr::new(127, 77, b, c | 1), 0).into());
        let address = bind_all(&any, 1, &options()).unwrap().address;
        const STARTERS: usize = 8;
        for _ in 0..20 {
            let (start, end) = (Barrier::new(STARTERS), Barrier::new(STARTERS));
            let start_one = || {
                start.wait();
                let outcome = bind_all(&address, 2, &options());
                end.wait(); // nobody lets go before all have tried
                outcome.map(|_| ()).map_err(|error| error.cause.kind())
            };
            let outcomes: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start_one)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            let lost = outcomes.iter().filter(|&&outcome| outcome == Err(io::ErrorKind::AddrInUse)).count();
            assert_eq!((won, lost), (1, STARTERS - 1));
        }
    }

    #[test]
    fn tcp_both_wildcards_stand_side_by_side() {
        let six = match bind_all(&Address::Tcp((Ipv6Addr::UNSPECIFIED, 0).into()), 2, &options()) {
            Ok(listeners) => listeners,
            Err(error) => return println!("skipped: no IPv6 here ({error})"),
        };
        let port = socket_address(&six.address).port();
        match bind_all(&Address::Tcp((Ipv4Addr::UNSPECIFIED, port).into()), 2, &options()) {
            Ok(four) => assert_eq!(socket_address(&four.address).port(), port),
            // Somebody else may hold that port of IPv4; ours of IPv6 does not.
            Err(_) => println!("skipped: port {port} of IPv4 is taken"),
        }
        assert!(sockets(six)[0].only_v6().unwrap());
    }

    #[test]
    fn tcp_options_are_set_when_asked_for() {
        let get = |options: &ListenOptions, name| {
            let sockets = sockets(bind_all(&loopback(), 2, options).unwrap());
            sockets.iter().map(|socket| tcp_option(socket, name)).collect::<Vec<_>>()
        };
        let asked = ListenOptions { defer_accept: true, fast_open: true, ..options() };
        assert_eq!(get(&options(), libc::TCP_DEFER_ACCEPT), [0, 0]);
        assert_eq!(get(&options(), libc::TCP_FASTOPEN), [0, 0]);
        // The kernel rounds the seconds to its own retransmission steps.
        assert!(get(&asked, libc::TCP_DEFER_ACCEPT).iter().all(|&seconds| seconds > 0));
        assert_eq!(get(&asked, libc::TCP_FASTOPEN), [FAST_OPEN_QUEUE; 2]);
    }

    fn tcp_option(socket: &Socket, name: libc::c_int) -> u32 {
        let (mut value, mut length) = (0u32, 4 as libc::socklen_t);
        let pointer = (&raw mut value).cast();
        // SAFETY: the kernel writes at most `length` bytes at `value` and the new length at `length`.
        let code = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, pointer, &mut length) };
        assert_eq!(code, 0);
        value
    }

    #[test]
    fn errors_name_the_cure() {
        #[track_caller]
        fn check(address: &str, errno: i32, expected: &str) {
            let cause = io::Error::from_raw_os_error(errno);
            let error = BindError { address: address.parse().unwrap(), step: "bind", cause };
            assert!(error.to_string().contains(expected), "{error}");
        }
        check("127.0.0.1:80", libc::EACCES, "CAP_NET_BIND_SERVICE");
        check("192.0.2.1:8080", libc::EADDRNOTAVAIL, "ip addr");
        check("[::1]:8080", libc::EAFNOSUPPORT, "no IPv6");
        check("[::1]:8080", libc::EMFILE, "ulimit -n");
        check("unix:/x/y", libc::ENOENT, "folder does not exist");
        check("unix:/x/y", libc::EACCES, "may not write to the folder");
        check("unix:/x/y", libc::EEXIST, "no socket");
        check("127.0.0.1:8080", libc::EIO, "cannot listen on 127.0.0.1:8080: bind: ");
    }

    // ---- balance

    /// Accepts `total` connections from whichever listeners have them, and closes them.
    fn count_accepted(sockets: &[Socket], total: usize) -> Vec<usize> {
        let mut counts = vec![0; sockets.len()];
        let give_up = Instant::now() + Duration::from_secs(60);
        for socket in sockets {
            socket.set_nonblocking(true).unwrap();
        }
        while counts.iter().sum::<usize>() < total {
            assert!(Instant::now() < give_up, "only {counts:?} of {total}");
            for (socket, count) in sockets.iter().zip(&mut counts) {
                while socket.accept().is_ok() {
                    *count += 1;
                }
            }
            thread::yield_now();
        }
        counts
    }

    fn spread(shards: usize, balance: Balance, cores: &[usize], connections: usize) -> Vec<usize> {
        let options = ListenOptions { balance, cores: cores.to_vec(), ..options() };
        let listeners = bind_all(&loopback(), shards, &options).unwrap();
        let address = socket_address(&listeners.address);
        let clients: Vec<_> = (0..connections).map(|_| TcpStream::connect(address).unwrap()).collect();
        let counts = count_accepted(&sockets(listeners), connections);
        drop(clients);
        counts
    }

    #[test]
    fn balance_random_spreads_evenly() {
        for shards in [2, 3, 4] {
            let counts = spread(shards, Balance::Random, &[], 100 * shards);
            // 100 each are expected, with a standard deviation below 9: 60 away is chance once in 10^10.
            assert!(counts.iter().all(|count| (40..=160).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn balance_cpu_follows_the_core_of_the_packet() {
        let cores: Vec<_> = core_affinity::get_core_ids().unwrap_or_default();
        for &core in cores.iter().take(2) {
            // A thread's own affinity; over loopback the packet is received where it was sent.
            let counts = thread::spawn(move || {
                if !core_affinity::set_for_current(core) {
                    return None;
                }
                let last = spread(3, Balance::Cpu, &[1022, 1023, core.id], 50);
                let by_remainder = spread(2, Balance::Cpu, &[], 50);
                Some((last, by_remainder))
            });
            let Some((last, by_remainder)) = counts.join().unwrap() else {
                return println!("skipped: threads cannot be pinned here");
            };
            // Receive packet steering, if somebody set it up, moves a part to other cores.
            assert!(last[2] > 25, "core {}: {last:?}", core.id);
            assert!(by_remainder[core.id % 2] > 25, "core {}: {by_remainder:?}", core.id);
        }
    }

    #[test]
    fn balance_program_fits_for_the_most_shards() {
        let shards = crate::limits::SHARDS_MAX;
        let options = ListenOptions { balance: Balance::Cpu, ..options() };
        let program = balance_program(Balance::Cpu, shards, &(0..shards).collect::<Vec<_>>());
        let socket = &sockets(bind_all(&loopback(), 2, &options).unwrap())[0];
        match attach_balance(socket, &program) {
            // See the cure.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                println!("skipped: net.core.optmem_max is small")
            }
            outcome => outcome.unwrap(),
        }
    }

    // ---- unix sockets

    fn unix(path: &Path, mode: Option<u32>) -> Address {
        Address::Unix { path: path.to_owned(), mode }
    }

    #[test]
    fn unix_socket_is_one_for_all_shards_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listeners = bind_all(&unix(&path, Some(0o620)), 3, &options()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
        assert_eq!(listeners.address, unix(&path, Some(0o620)));
        let Listeners { fds, socket_file, .. } = listeners;
        let sockets: Vec<_> = fds.into_iter().map(UnixListener::from).collect();
        assert_eq!(sockets.len(), 3);
        for socket in &sockets {
            let _client = UnixStream::connect(&path).unwrap();
            socket.accept().unwrap();
        }
        drop(socket_file);
        assert!(!path.exists());
    }

    #[test]
    fn unix_stale_socket_is_replaced_and_a_live_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap()); // leaves its file
        assert!(path.exists());
        let held = bind_all(&unix(&path, None), 1, &options()).unwrap();
        assert_eq!(refused(&unix(&path, None), 1), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).expect("the one that lives is untouched");
        drop(held);
        assert!(!path.exists());
    }

    #[test]
    fn unix_other_files_are_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert_eq!(refused(&unix(&path, None), 1), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        // Nor is a link followed to a socket that may be somebody else's.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).unwrap();
        assert_eq!(refused(&unix(&link, None), 1), io::ErrorKind::AlreadyExists);
        assert!(fs::symlink_metadata(&link).is_ok());
        assert_eq!(refused(&unix(&folder.path().join("no/s"), None), 1), io::ErrorKind::NotFound);
    }

    #[test]
    fn unix_guard_leaves_the_file_of_a_successor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = bind_all(&unix(&path, None), 1, &options()).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap(); // keeps its inode taken
        let second = bind_all(&unix(&path, None), 1, &options()).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn unix_path_as_long_as_the_kernel_takes() {
        let folder = tempfile::tempdir().unwrap();
        let room = crate::limits::UNIX_PATH_BYTES_MAX - folder.path().as_os_str().len() - 1;
        let path = |length| folder.path().join("a".repeat(length));
        bind_all(&unix(&path(room), None), 1, &options()).unwrap();
        assert_eq!(refused(&unix(&path(room + 1), None), 1), io::ErrorKind::InvalidInput);
    }
}
