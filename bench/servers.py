"""The servers that are compared: how each is started, what it answers where, and how it is watched and ended.

Standard library only. Used by `compare` and `syscalls`.
"""

import atexit
import ctypes
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
RELEASE = BENCH / "peers/target/release"
START_SECONDS_MAX = 10
STOP_SECONDS_MAX = 5

# The bodies that a profile asks for. Servers without a router are told which by an argument.
MODES = {"small": "ok", "echo": "4k", "big": "16k", "churn": "close"}


@dataclasses.dataclass(frozen=True, eq=False)
class Server:
    """One contestant. `{port}`, `{mode}`, `{dir}` and `{cpus}` are filled in in its command."""

    name: str
    about: str
    command: tuple
    # Paths by body; a body that is not named here is one the server does not offer.
    paths: dict = dataclasses.field(default_factory=lambda: {"small": "/", "echo": "/echo", "big": "/16k", "churn": "/"})
    # Has no router: one process for each kind of reply, chosen by {mode}.
    constant: bool = False
    shards: int = 1
    build: str = ""

    def program(self):
        return shutil.which(self.command[0])


def peer(name, about, **more):
    command = (str(RELEASE / f"peer-{name}"), "{port}")
    if more.get("constant"):
        command += ("{mode}",)
    return Server(name, about, command, build=f"cargo build --release -p peer-{name} in bench/peers", **more)


def raw(name, about, program=None):
    command = (str(RELEASE / (program or name)), "{port}", "{mode}")
    return Server(name, about, command, constant=True, build="cargo build --release -p raw in bench/peers")


def everycore(name, shards, program=ROOT / "target/release/everycore"):
    listen = "127.0.0.1:{port}"
    command = (str(program), "serve", "--listen", listen,
               "--shards", str(shards), "--cpus", "{cpus}")
    return Server(name, f"this repository's server, {shards} shard{'s' * (shards > 1)}", command,
                  {"small": "/small", "echo": "/echo", "big": "/fast", "churn": "/small"},
                  shards=shards, build="cargo build --release in the top directory")


CONSTANT = {"small": "/", "echo": "/", "big": "/", "churn": "/"}
WITHOUT = {  # bodies that a server cannot give
    "nginx": {"small": "/", "big": "/16k", "churn": "/"},
    "may": {"small": "/", "echo": "/echo", "big": "/16k"},
}
SERVERS = [
    raw("floor", "raw io_uring loop: no parser, no router, constant replies"),
    # A second process of the floor, for the error that no other column shows.
    raw("control", "the floor once more: as far as its ratio is from 1.00, so far is any other off", program="floor"),
    raw("epoll", "the floor's twin on level-triggered epoll"),
    everycore("everycore", 1),
    everycore("everycore-2", 2),
    peer("may", "may_minihttp: stackful coroutines on epoll", paths=WITHOUT["may"]),
    peer("hyper", "hyper on tokio's single-threaded runtime"),
    peer("axum", "axum::serve on tokio's single-threaded runtime"),
    peer("actix", "actix-web, one worker"),
    peer("ntex", "ntex, one worker, its io_uring runtime"),
    peer("monoio", "monoio's TcpStream with the floor's constant replies", constant=True, paths=CONSTANT),
    peer("glommio", "glommio's TcpStream with the floor's constant replies", constant=True, paths=CONSTANT),
    Server("nginx", "nginx, one worker", ("nginx", "-c", "{dir}/nginx.conf"), WITHOUT["nginx"],
           build="apt-get install nginx"),
    Server("haproxy", "HAProxy, one thread, replies of its own",
           ("haproxy", "-db", "-q", "-f", str(BENCH / "peers/haproxy.cfg")), build="apt-get install haproxy"),
]


class Instance:
    """A started server process."""

    def __init__(self, server, body, cpus):
        self.server = server
        self.cpus = cpus
        self.port = free_port()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="bench-"))
        self.process = None
        # Workers of nginx drop root, and must reach the file all the same.
        self.directory.chmod(0o755)
        (self.directory / "16k").write_text("x" * 16384)
        template = (BENCH / "peers/nginx.conf.in").read_text()
        (self.directory / "nginx.conf").write_text(
            template.replace("@PORT@", str(self.port)).replace("@DIR@", str(self.directory)))
        values = {"port": self.port, "mode": MODES[body], "dir": self.directory, "cpus": cpus}
        self.command = ["taskset", "-c", cpus] + [part.format(**values) for part in server.command]

    def start(self):
        environment = os.environ | {"PORT": str(self.port), "DIR": str(self.directory)}
        self.log = open(self.directory / "log", "w+")
        self.process = subprocess.Popen(self.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)

    def wait_ready(self, path):
        """None once the server has answered `path`, otherwise why not."""
        deadline = time.monotonic() + START_SECONDS_MAX
        reason = "it does not listen"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.log.seek(0)
                last = (self.log.read().strip().splitlines() or ["no output"])[-1]
                return f"it ended with status {self.process.returncode}: {last}"
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    status = client.recv(4096).split(b"\r\n")[0]
                # Any answer shows that it is up; `/echo` may well dislike GET.
                if status.startswith(b"HTTP/1.1 "):
                    return None
                reason = f"it answers {status!r}"
            except OSError:
                time.sleep(0.05)
        return f"{reason} within {START_SECONDS_MAX} s"

    def pids(self):
        """The process and all its descendants."""
        found = [self.process.pid]
        for pid in found:
            for task in threads(pid):
                found += [int(child) for child in read(f"/proc/{pid}/task/{task}/children").split()]
        return found

    def cpu(self):
        """CPU time so far: by thread in ns from the scheduler, and in all from `stat`, which counts in ticks of
        10 ms but remembers threads that have ended."""
        by_thread, ticks = {}, 0
        for pid in self.pids():
            for task in threads(pid):
                scheduled = read(f"/proc/{pid}/task/{task}/schedstat").split()
                if scheduled:
                    by_thread[task] = int(scheduled[0])
            fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        return by_thread, ticks / os.sysconf("SC_CLK_TCK")

    def rss(self):
        """Resident memory of all its processes, bytes."""
        pages = [read(f"/proc/{pid}/statm").split() for pid in self.pids()]
        return sum(int(fields[1]) for fields in pages if fields) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            pids = self.pids()
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                for pid in reversed(pids):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def cpu_seconds(before, after):
    """The difference of two `Instance.cpu()`."""
    if before[0] and before[0].keys() <= after[0].keys():
        return (sum(after[0].values()) - sum(before[0].values())) / 1e9
    return after[1] - before[1]


def end_always(instances):
    """Ends the instances (a list that may still grow) however this program ends."""
    atexit.register(lambda: [instance.stop() for instance in instances])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def die_with_parent():
    """Runs in the child: should this program be killed outright, the kernel ends the server."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def threads(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
