//! A tree of files to serve, the same each time, and requests for it sent to whatever serves it.

use super::response::Response;
use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// When the files of a [`Tree`] were modified, for whoever asks: Sun, 06 Nov 1994 08:49:37 GMT.
pub(crate) const MODIFIED_S: u64 = 784_111_777;
/// An answer takes no longer, on however slow a machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A directory that is served, inside one that is not.
pub(crate) struct Tree {
    around: tempfile::TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self::within(tempfile::tempdir().expect("a directory for temporary files"))
    }

    /// In memory, where there is such a directory: for very many files.
    pub(crate) fn in_memory() -> Self {
        tempfile::tempdir_in("/dev/shm").map_or_else(|_| Self::new(), Self::within)
    }

    fn within(around: tempfile::TempDir) -> Self {
        fs::create_dir(around.path().join("root")).expect("it is ours");
        Tree { around }
    }

    /// What is around the root, and must not be served.
    pub(crate) fn around(&self) -> &Path {
        self.around.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.around.path().join("root")
    }

    /// Its root as a flag's value.
    pub(crate) fn root_flag(&self) -> String {
        self.root().to_str().expect("temporary files have plain names").to_owned()
    }

    /// Puts a file beneath the root, with the directories above it.
    pub(crate) fn put(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("it is beneath the root")).expect("it is ours");
        fs::write(&path, content).expect("it is ours");
        let file = File::options().append(true).open(&path).expect("it is there");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_S)).expect("it is ours");
        path
    }
}

/// So many bytes that no two parts of are alike, the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// A path as a request has it: every byte escaped that may be.
pub(crate) fn encode(path: &Path) -> String {
    let mut encoded = String::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// All that comes back for these octets until the peer closes, or why there is nothing.
pub(crate) fn octets(mut stream: impl Read + Write, request: &[u8]) -> Vec<u8> {
    // A peer that refuses may close before it has read all.
    let _ = stream.write_all(request);
    let (mut received, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return received,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return received,
            Err(error) => panic!("{error} after {} octets, to {}", received.len(), request.escape_ascii()),
        }
    }
}

/// One strict answer on a connection of its own; the request has to ask for the connection's end.
pub(crate) fn answer(stream: impl Read + Write, request: &[u8]) -> Response {
    let method = String::from_utf8_lossy(request.split(|&b| b == b' ').next().unwrap_or_default()).into_owned();
    let received = octets(stream, request);
    let parsed = Response::parse(&received, &method, true);
    let whole = parsed.unwrap_or_else(|why| panic!("{why}, to {}", request.escape_ascii()));
    let (response, used) =
        whole.unwrap_or_else(|| panic!("{} octets and no whole answer to {}", received.len(), request.escape_ascii()));
    assert_eq!(used, received.len(), "more than an answer to {}", request.escape_ascii());
    response
}

pub(crate) fn tcp(server: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&server, WAIT_MAX).expect("the server accepts");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
    stream
}

pub(crate) fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("the server accepts");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
    stream
}

/// A request that ends its connection.
pub(crate) fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in fields {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.into_bytes()
}
