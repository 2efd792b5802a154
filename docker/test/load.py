#!/usr/bin/env python3
"""Asks one address over kept connections until standard input ends, then tells what became of every request.

    load.py HOST PORT CONNECTIONS [--may-end]

Prints JSON: answered, failed (sent, and not answered whole), refused (connections), reasons. A server that says
`Connection: close` is believed. With --may-end a server that is gone (connections are refused) is the end, not a failure.
"""
import collections
import json
import socket
import sys
import threading

host, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
may_end = "--may-end" in sys.argv
REQUEST = b"GET /yo?name=load HTTP/1.1\r\nHost: load\r\n\r\n"
ended, lock, counts, reasons = threading.Event(), threading.Lock(), collections.Counter(), collections.Counter()


def note(what, reason=None):
    with lock:
        counts[what] += 1
        if reason:
            reasons[reason] += 1


def answer(stream):
    """Reads one answer; True if the connection may be used again."""
    status = stream.readline()
    if not status.endswith(b"\r\n"):
        raise OSError("closed before an answer")
    length, keep = None, True
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
        if name.lower() == "connection" and value.strip().lower() == "close":
            keep = False
    body = stream.read(length or 0)
    if length is None or len(body) != length:
        raise OSError("answer cut short")
    if b" 200 " not in status or body != b"Hey load!":
        raise OSError(status.decode().strip())
    return keep


def client():
    while not ended.is_set():
        try:
            connection = socket.create_connection((host, port), timeout=20)
        except OSError as error:
            note("refused")
            if may_end:
                return
            note("failed", f"connect: {error}")
            ended.wait(0.01)
            continue
        with connection, connection.makefile("rb") as stream:
            keep = True
            while keep and not ended.is_set():
                try:
                    connection.sendall(REQUEST)
                    keep = answer(stream)
                    note("answered")
                except OSError as error:
                    note("failed", str(error))
                    break


threads = [threading.Thread(target=client) for _ in range(connections)]
for thread in threads:
    thread.start()
sys.stdin.read()
ended.set()
for thread in threads:
    thread.join()
print(json.dumps({"answered": 0, "failed": 0, "refused": 0, **counts, "reasons": reasons}))
