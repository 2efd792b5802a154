#!/usr/bin/env python3
"""Drives `everycore top` in a real terminal (tmux) against a running server.

usage: tests/top_terminal.py target/debug/everycore
needs: tmux
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

SOCKET = f"everycore-top-{os.getpid()}"
PATIENCE = 20


def tmux(*arguments):
    return subprocess.run(["tmux", "-L", SOCKET, *arguments], capture_output=True, text=True, check=True).stdout


def screen():
    return tmux("capture-pane", "-p", "-t", "top").splitlines()


def until(what, is_so):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = screen()
        if is_so(lines):
            print(f"ok: {what}")
            return lines
        time.sleep(0.05)
    sys.exit(f"top_terminal: {what}: not so on\n" + "\n".join(lines))


def serve(binary, port=0):
    command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--shards", "2"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return child, child.stdout.readline().strip().rsplit("/", 1)[1]


def shards(lines):
    """First words of the rows: the shards in their order."""
    rows = [re.match(r"\s*[▲■]?\s*(\d+)\s", line) for line in lines[4:]]
    return [int(row[1]) for row in rows if row]


def head(lines):
    return lines[3] if len(lines) > 3 else ""


def main(binary):
    if not shutil.which("tmux"):
        return print("skipped: tmux not installed")
    server, address = serve(binary)
    port = address.rsplit(":", 1)[1]
    try:
        for _ in range(20):
            urllib.request.urlopen(f"http://{address}/yo", timeout=10).read()
        tmux("new-session", "-d", "-x", "120", "-y", "20", "-s", "top", f"{binary} top {address} --interval 200ms; echo ended with $?; sleep 100")
        until("totals and a row for each shard", lambda s: re.search(r"connections .* busy \d", s[1]) and shards(s) == [0, 1])
        until("the version and the address", lambda s: s[0].startswith("everycore ") and f"at {address}" in s[0])
        until("sorted by shard", lambda s: "shard↑" in head(s))
        tmux("send-keys", "-t", "top", "Right")
        until("→ sorts by the next column", lambda s: "req/s↓" in head(s) and "shard↑" not in head(s))
        tmux("send-keys", "-t", "top", "Left", "r")
        until("r reverses", lambda s: "shard↓" in head(s) and shards(s) == [1, 0])
        tmux("send-keys", "-t", "top", "p")
        until("p pauses", lambda s: s[0].rstrip().endswith("paused"))
        tmux("send-keys", "-t", "top", "p")
        until("and goes on", lambda s: "paused" not in s[0])
        tmux("resize-window", "-t", "top", "-x", "60", "-y", "8")
        until("a small window keeps the keys", lambda s: len(s) == 8 and s[-1].startswith(" q quit"))
        tmux("resize-window", "-t", "top", "-x", "120", "-y", "20")
        server.send_signal(signal.SIGINT)
        server.wait()
        until("says when nobody answers, and keeps the rows", lambda s: "■ no answer" in s[0] and len(shards(s)) == 2)
        server, _ = serve(binary, port)
        until("goes on when the server is back", lambda s: "no answer" not in s[0] and len(shards(s)) == 2)
        tmux("send-keys", "-t", "top", "q")
        until("q ends it and gives the terminal back", lambda s: "ended with 0" in "\n".join(s) and "everycore 0" not in s[0])
    finally:
        server.kill()
        server.wait()
        subprocess.run(["tmux", "-L", SOCKET, "kill-server"], check=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
