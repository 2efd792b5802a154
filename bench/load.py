"""Load that wrk cannot make: idle connections, and a steady rate. Run as a process of its own.

    load.py hold PORT PATH COUNT    opens COUNT connections, one request each; says how many are open; ends with its input
    load.py paced PORT PATH COUNT RATE SECONDS    RATE requests/s over COUNT connections; one line as wrk.lua's
"""

import resource
import select
import socket
import sys
import time


def connect(port):
    client = socket.create_connection(("127.0.0.1", port), 5)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def request(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def hold(port, path, count):
    clients = []
    for _ in range(count):
        try:
            client = connect(port)
            client.sendall(request(path))
            if not client.recv(4096).startswith(b"HTTP/1.1 200"):
                break
        except OSError:
            break
        clients.append(client)
    print("OPEN", len(clients), flush=True)
    sys.stdin.readline()
    # A server that has given up a connection by now has no idle connection to be measured by.
    closed = select.poll()
    for client in clients:
        closed.register(client, select.POLLIN)
    print("CLOSED", len(closed.poll(0)), flush=True)


def paced(port, path, count, rate, seconds):
    clients = [connect(port) for _ in range(count)]
    free, sent_at, times, errors, late = list(clients), {}, [], 0, 0
    start = time.monotonic()
    due, sent = start, 0
    while True:
        now = time.monotonic()
        if now >= start + seconds:
            break
        while due <= now:
            due += 1 / rate
            if not free:
                late += 1
                continue
            client = free.pop(0)
            sent_at[client] = time.monotonic()
            client.sendall(request(path))
            sent += 1
        ready, _, _ = select.select(list(sent_at), [], [], max(0, due - time.monotonic()))
        for client in ready:
            if not client.recv(65536).startswith(b"HTTP/1.1 200"):
                errors += 1
            times.append(time.monotonic() - sent_at.pop(client))
            free.append(client)
    times.sort()
    micros = [int(times[int(len(times) * part)] * 1e6) if times else 0 for part in (0.5, 0.99)]
    spent = int((time.monotonic() - start) * 1e6)
    print(f"RESULT {len(times)} {spent} {micros[0]} {micros[1]} "
          f"connect=0 read=0 write=0 timeout=0 late={late} status={errors}")


if __name__ == "__main__":
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    what, port, path, *numbers = sys.argv[1:]
    {"hold": hold, "paced": paced}[what](int(port), path, *map(int, numbers))
