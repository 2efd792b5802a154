//! The built `everycore` binary as a child process, listening on a port that the kernel chose.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// How long the server may take to say a line that is awaited.
const START_MAX: Duration = Duration::from_secs(30);

/// A running server; dropping it kills it.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    /// Where it speaks HTTP.
    pub(crate) http: SocketAddr,
}

impl Server {
    /// `everycore serve --listen 127.0.0.1:0 --shards 2` and `more`, on however many cores there are.
    ///
    /// # Panics
    /// When it ends, or says nothing for long, before it listens.
    pub(crate) fn start(more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everycore"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "2", "--pin", "off"]).args(more);
        Self::launch(command)
    }

    /// Runs `command`, which ends up as a server that listens on TCP.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub(crate) fn launch(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the built binary starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        // Reads to the end, whoever listens: a full pipe would stop the server.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut server = Self { child, lines, http: SocketAddr::from(([127, 0, 0, 1], 0)) };
        server.http = server.await_listener("http");
        server
    }

    /// The address of the next `listening on SCHEME://ADDRESS` line.
    ///
    /// # Panics
    /// When the server ends or falls silent first.
    pub(crate) fn await_listener(&mut self, scheme: &str) -> SocketAddr {
        let prefix = format!("listening on {scheme}://");
        let line = self.await_line(|line| line.contains(&prefix));
        let (_, address) = line.split_once(&prefix).expect("the line holds the prefix");
        let address = address.split(['/', ' ']).next().unwrap_or_default();
        address.parse().unwrap_or_else(|e| panic!("{e}: no address in {line:?}"))
    }

    /// The next line on standard output that `is_wanted`.
    ///
    /// # Panics
    /// When the server ends or falls silent first.
    pub(crate) fn await_line(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + START_MAX;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if is_wanted(&line) => return line,
                Ok(_) => (),
                Err(RecvTimeoutError::Timeout) => panic!("the server did not say the awaited line"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the server ended too early: {:?}", self.child.wait())
                }
            }
        }
    }

    /// Process id, for what looks at it from outside.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the signal of that name (`TERM`, `HUP`, `INT`).
    pub(crate) fn signal(&self, name: &str) {
        // The shell's own kill: std sends only SIGKILL, and tests hold no unsafe code.
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.child.id())).status();
        assert!(sent.is_ok_and(|status| status.success()), "SIG{name} was not sent");
    }

    /// Whether the process has ended by now, and how.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
