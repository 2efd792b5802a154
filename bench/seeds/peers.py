"""The servers of the seeds' table: how each is built, started and watched. Standard library only. Used by `run`."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from servers import ROOT, Instance, Server, free_port

SEEDS = pathlib.Path(__file__).resolve().parent
BUILD = SEEDS / "target"
JARS = "/usr/share/java/mina2-core.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar"
APACHE_MODULES = pathlib.Path("/usr/lib/apache2/modules")
READY_SECONDS_MAX = 30

# What a peer needs beside itself: (the program or file to look for, the Debian package that has it).
NEEDS = {
    "hunchentoot": [("sbcl", "sbcl"), ("/usr/share/common-lisp/source/hunchentoot", "cl-hunchentoot")],
    "ghc": [("ghc", "ghc"), ("/var/lib/ghc/package.conf.d/network-*.conf", "libghc-network-dev")],
    "mina": [("javac", "default-jdk-headless"), ("/usr/share/java/mina2-core.jar", "libmina2-java")],
    "apache": [("apache2", "apache2"), ("/usr/lib/apache2/modules/mod_proxy_ajp.so", "apache2-bin"), ("ab", "apache2-utils")],
}


def missing(kind):
    """The packages that `kind` lacks on this host."""
    def is_there(what):
        path = pathlib.Path(what)
        return any(path.parent.glob(path.name)) if path.is_absolute() else shutil.which(what)
    return [package for what, package in NEEDS.get(kind, []) if not is_there(what)]


def build(kind):
    """Makes the programs of `kind` from peers/; None, or why that failed."""
    BUILD.mkdir(exist_ok=True)
    source = SEEDS / "peers"
    ghc = ["ghc", "-v0", "-O2", "-threaded", "-rtsopts"]
    commands = {
        "hunchentoot": [["sbcl", "--non-interactive", "--load", source / "hunchentoot.lisp"]],
        "ghc": [[*ghc, "-outputdir", BUILD / name, "-o", BUILD / name.lower(), source / f"{name}.hs"]
                for name in ("EchoServer", "EchoClient")],
        "mina": [["javac", "-cp", JARS, "-d", BUILD, source / "MinaServer.java"]],
    }
    made = {"hunchentoot": BUILD / "hunchentoot", "ghc": BUILD / "echoclient", "mina": BUILD / "MinaServer.class"}
    if kind not in commands:
        return None
    sources = [path for command in commands[kind] for path in command if isinstance(path, pathlib.Path) and path.parent == source]
    if made[kind].exists() and made[kind].stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return None
    environment = os.environ | {"XDG_CACHE_HOME": str(BUILD / "cache"), "PROGRAM": str(made["hunchentoot"])}
    for command in commands[kind]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
            return f"{command[0]} failed: {last[-1]}"
    return None


class Peer(Instance):
    """A started server that belongs to a row of the table."""

    def __init__(self, name, kind, about, command, cpus, speaks="http", count_path=None, files=None):
        super().__init__(Server(name, about, tuple(map(str, command))), "small", cpus)
        self.name, self.kind, self.about = name, kind, about
        self.speaks, self.count_path = speaks, count_path
        for file, text in (files or {}).items():
            (self.directory / file).write_text(text.replace("@PORT@", str(self.port)).replace("@DIR@", str(self.directory)))

    def is_up(self):
        return self.process is not None and self.process.poll() is None

    def await_up(self, path="/"):
        """None once it answers, otherwise why not."""
        if self.speaks == "http":
            return self.wait_ready(path)
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until and self.is_up():
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                    client.sendall(b"GET /\r\n\r\n")
                    if client.recv(1024) == b"GET /\r\n\r\n":
                        return None
            except OSError:
                time.sleep(0.05)
        return "it does not echo"

    def count(self):
        """Requests that the server itself has counted so far, if it does."""
        if not self.count_path:
            return None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.count_path}", timeout=10) as answer:
            text = answer.read().decode()
        return int(text) if text.isdigit() else json.loads(text)["total"]["requests"]

    def cpu_seconds(self):
        """CPU time so far of all its threads, those included that have ended meanwhile: in ticks of 10 ms."""
        return self.cpu()[1]


def contestants(options):
    """All that are to be measured and can be, in the order of the table, and why the others are not."""
    everycore, cores = options.everycore, options.server_cores
    cpus, two = ",".join(map(str, cores)), ",".join(map(str, options.two_cores))
    one = str(cores[0])
    listen = ["--listen", "127.0.0.1:{port}", "--cpus", "{cpus}"]
    serve = [everycore, "serve", *listen, "--shards"]
    java = ["java", "-Xmx1g", "-cp", f"{BUILD}:{JARS}", "MinaServer", "{port}"]
    lisp = "Hunchentoot, sbcl: "
    ours = lambda name, shards, where, **more: Peer(
        name, "everycore", f"this repository's server, {shards} shard{'s' * (shards > 1)}", [*serve, shards], where,
        count_path="/__stats", **more)
    makers = [
        ("everycore", lambda: ours("everycore", len(cores), cpus)),
        ("hunchentoot", lambda: Peer("hunchentoot-threads", "hunchentoot", lisp + "a thread for each connection, 100 at most",
                                     [BUILD / "hunchentoot", "{port}", "threads"], cpus)),
        ("hunchentoot", lambda: Peer("hunchentoot-pool", "hunchentoot", lisp + "a pool of 8 workers",
                                     [BUILD / "hunchentoot", "{port}", "pool"], cpus)),
        ("everycore", lambda: Peer("everycore-echo", "everycore", "serve --echo: raw TCP beside HTTP",
                                   [everycore, "serve", "--listen", "127.0.0.1:0", "--echo", "127.0.0.1:{port}", "--cpus",
                                    "{cpus}", "--shards", len(cores)], cpus, speaks="tcp")),
        ("ghc", lambda: Peer("ghc-echo", "ghc", "GHC, a light thread for each connection",
                             [BUILD / "echoserver", "{port}", "+RTS", f"-N{len(cores)}"], cpus, speaks="tcp")),
        ("everycore", lambda: ours("everycore-1", 1, one)),
        ("everycore", lambda: ours("everycore-2", 2, two)),
        ("mina", lambda: Peer("mina-1", "mina", "Apache MINA, 1 I/O processor", [*java, "1"], one, count_path="/count")),
        ("mina", lambda: Peer("mina-2", "mina", "Apache MINA, 2 I/O processors", [*java, "2"], two, count_path="/count")),
        ("apache", lambda: apache(options, cpus)),
    ]
    peers, absent = [], dict.fromkeys(["everycore", "hunchentoot", "ghc", "mina", "apache"])
    for kind in absent:
        packages = missing(kind)
        absent[kind] = f"{', '.join(packages)} not installed" if packages else build(kind)
    for kind, make in makers:
        if absent[kind] is None:
            peers.append(make())
    return peers, {kind: why for kind, why in absent.items() if why}


def has_ajp(everycore):
    """Whether this build speaks AJP."""
    done = subprocess.run([everycore, "serve", "--help"], capture_output=True, text=True)
    return "--ajp-secret-file" in done.stdout


def apache(options, cpus):
    """Apache httpd before an everycore of its own, both on the servers' cores."""
    http, ajp = free_port(), free_port()
    secret, line = "seeds", ""
    backend = [options.everycore, "serve", "--listen", f"127.0.0.1:{http}", "--cpus", "{cpus}", "--shards", len(options.server_cores)]
    if has_ajp(options.everycore):
        backend += ["--ajp", f"127.0.0.1:{ajp}", "--ajp-secret-file", "{dir}/secret"]
        line = f"ProxyPass /ajp/ ajp://127.0.0.1:{ajp}/ secret={secret}"
    text = (SEEDS / "peers/apache.conf.in").read_text().replace("@HTTP@", str(http)).replace("@AJP_LINE@", line)
    # One process tree: the shell waits for both and ends both.
    script = f"{' '.join(map(str, backend))} & backend=$!; trap 'kill $backend $front; wait' TERM; " \
             "apache2 -D FOREGROUND -f {dir}/apache.conf & front=$!; wait $front"
    script = script.replace("{dir}", "$DIR").replace("{cpus}", cpus)
    return Peer("apache", "apache", "Apache httpd, event MPM, before everycore", ["sh", "-c", script], cpus,
                files={"apache.conf": text, "secret": secret})
