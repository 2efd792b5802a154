#!/usr/bin/env python3
"""Looks at the stats page with Chromium: its figures against the JSON, its words, its layout; takes screenshots.

usage: tests/stats_page.py target/debug/everycore [folder for screenshots]
needs: pip install playwright; a Chromium (Debian: chromium), by CHROMIUM=path if it is not /usr/bin/chromium.
"""
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sys.exit(print("skipped: playwright not installed (pip install playwright)"))

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "src/endpoints/page.html"
WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}


def check(is_so, what):
    if not is_so:
        raise SystemExit(f"stats_page: {what}")


# ---- a server with figures of our own ------------------------------------------------------------

def sample(binary):
    """A snapshot as the binary writes it, so that no field is forgotten."""
    with Binary(binary) as server:
        return json.loads(server.get("/__stats?format=json"))


def grow(snapshot, shards, step, change=None):
    """The same server `step` polls later, with so many shards."""
    snapshot = json.loads(json.dumps(snapshot))
    mould = snapshot["shards"][0]
    snapshot["shards"] = []
    for index in range(shards):
        shard = json.loads(json.dumps(mould))
        rate = 1000 * (1 + index % 7)
        shard.update(shard=index, core=index, requests=rate * step)
        shard["connections"].update(active=40 + index % 5, idle=30)
        shard["responses"]["2xx"] = rate * step
        shard["loop"].update(busy_ns=step * (500 + index % 7 * 10) * 10**6, waiting_ns=step * 10**9, parked_ns=0, delayed_ns=0,
                             turn_max_60s_ns=700_000)
        shard["loop"]["waiting_ns"] = step * 10**9 - shard["loop"]["busy_ns"]
        shard["service_time_recent"].update(count=rate, p50_ns=21_000, p99_ns=180_000 + 1000 * index, p999_ns=900_000)
        snapshot["shards"].append(shard)
    snapshot["uptime_s"] = 3600 + step
    snapshot["total"]["requests"] = sum(shard["requests"] for shard in snapshot["shards"])
    snapshot["total"]["responses"]["2xx"] = snapshot["total"]["requests"]
    snapshot["total"]["connections"]["active"] = sum(shard["connections"]["active"] for shard in snapshot["shards"])
    snapshot["service_time"]["buckets"] = [[10_000 * 2**n, step * 4096 // 2**n + 1] for n in range(14)]
    snapshot["custom"] = {"counters": {"orders": 41 + step}, "histograms": {"waits": mould["service_time_recent"] | {"count": 7}}}
    if change:
        change(snapshot, step)
    return snapshot


class Canned:
    """Serves the page, and each time it asks the next snapshot."""

    def __init__(self, snapshot_at, token=None):
        canned = self
        self.polls = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if "format=json" not in self.path:
                    return self.answer(200, "text/html; charset=utf-8", PAGE.read_bytes())
                if token and self.headers.get("authorization") != f"Bearer {token}":
                    return self.answer(401, "text/plain", b"")
                canned.polls += 1
                self.answer(200, "application/json", json.dumps(snapshot_at(canned.polls)).encode())

            def answer(self, status, kind, body):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/__stats"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Binary:
    """The built server."""

    def __init__(self, binary, port=0):
        command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--shards", "2", "--balance", "round-robin"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        check(line.startswith("listening on http://"), f"unexpected first line {line!r}")
        self.address = line.strip().removeprefix("listening on http://")
        self.port = int(self.address.rsplit(":", 1)[1])

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return answer.read()

    def end(self):
        self.child.send_signal(signal.SIGINT)
        self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


class Load:
    """Some connections that ask one request after the other, until told to stop."""

    def __init__(self, port, connections=4):
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(port,)) for _ in range(connections)]
        [thread.start() for thread in self.threads]

    def run(self, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while not self.is_over.is_set():
                connection.sendall(b"GET /yo HTTP/1.1\r\nHost: x\r\n\r\n")
                connection.recv(4096)

    def stop(self):
        self.is_over.set()
        [thread.join() for thread in self.threads]


# ---- looking -------------------------------------------------------------------------------------

class Eye:
    def __init__(self, browser, folder):
        self.browser, self.folder = browser, folder

    def open(self, url, viewport=WIDE, scheme="light"):
        context = self.browser.new_context(viewport=viewport, color_scheme=scheme)
        page = context.new_page()
        page.problems, page.hosts = [], set()
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.hosts.add(request.url.split("/")[2] if "://" in request.url else "data"))
        page.goto(url)
        # As often as is good for a test.
        page.evaluate("document.querySelector('#every').options[0].value = '200'")
        page.select_option("#every", "200")
        page.wait_for_selector("main:not([hidden])")
        return page

    def close(self, page, name):
        page.screenshot(path=self.folder / f"{name}.png", full_page=True)
        check(not page.problems, f"{name}: {page.problems}")
        check(len(page.hosts - {"data"}) == 1, f"{name}: the page asks other hosts: {page.hosts}")
        check(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name}: the page is wider than the window")
        page.context.close()


def polls(page, more=1):
    """Waits until the page has drawn so many further answers."""
    target = page.evaluate("+document.body.dataset.drawn") + more
    until(page, lambda: page.evaluate("+document.body.dataset.drawn") >= target, "the page draws no more")


def until(page, is_so, what):
    for _ in range(400):
        if is_so():
            return
        page.wait_for_timeout(50)
    check(False, what)


def state(page):
    return page.inner_text("#state")


def notes(page):
    return page.inner_text("#notes")


def look_at_layout(eye, snapshot):
    for shards in (1, 2, 128):
        for viewport, width in ((WIDE, "wide"), (PHONE, "phone")):
            for scheme in ("light", "dark"):
                with Canned(lambda step: grow(snapshot, shards, step)) as canned:
                    page = eye.open(canned.url, viewport, scheme)
                    polls(page, 3)
                    check(page.locator("#rows tr").count() == shards, f"{shards} shards: {page.locator('#rows tr').count()} rows")
                    check(state(page) == "all is well", f"{shards} shards: {notes(page)}")
                    first = page.locator("#rows tr[data-shard='0']")
                    check(first.locator("[data-key=requests]").inner_text() == "1000", "requests a second of the canned shard")
                    check(first.locator("[data-key=busy]").inner_text() == "50 %", "busy share of the canned shard")
                    check("orders" in page.inner_text("#own"), "the application's own counter is not shown")
                    eye.close(page, f"{shards}-shards-{width}-{scheme}")


def look_at_trouble(eye, snapshot):
    """Each trouble alone: its sentence, its colour, its rows."""

    def shard(index, group, **numbers):
        return lambda now, step: now["shards"][index][group].update({k: v(step) if callable(v) else v for k, v in numbers.items()})

    def missing(now, _):
        del now["shards"][1]
        now["missing"] = [1]

    def idle(now, step):
        for other in now["shards"]:
            other["loop"].update(busy_ns=step * 10**8, waiting_ns=step * 9 * 10**8)
        now["shards"][2]["loop"].update(busy_ns=step * 7 * 10**8, waiting_ns=step * 3 * 10**8)

    def saturated(now, step):
        for other in now["shards"]:
            other["loop"].update(busy_ns=step * 10**9, waiting_ns=0)

    def process(**numbers):
        return lambda now, step: now["process"].update({k: v(step) if callable(v) else v for k, v in numbers.items()})

    throttled = process(throttling=lambda step: {"periods": 100 * step, "throttled_periods": 30 * step, "throttled_ns": 1})
    troubles = [
        ("missing", missing, "red", "Shard 1 did not answer", [1]),
        ("stalled", shard(2, "loop", turn_max_60s_ns=240_000_000), "red", "Shard 2 stalled for up to 240 ms", [2]),
        ("slow", shard(0, "loop", turn_max_60s_ns=30_000_000), "amber", "Shard 0 stalled for up to 30.0 ms", [0]),
        ("uneven", idle, "amber", "Shard 2 does more than twice the work", [2]),
        ("saturated", saturated, "amber", "Every shard is busy all the time", [0, 1, 2, 3]),
        ("delayed", shard(3, "loop", delayed_ns=lambda step: step * 3 * 10**8), "amber", "waited for a core that others had, up to 30 %", [3]),
        ("full", lambda now, _: now.update(connections_max=now["total"]["connections"]["active"]), "red", "connections are taken", []),
        ("nearly-full", lambda now, _: now.update(connections_max=now["total"]["connections"]["active"] + 9), "amber", "of the connections that may be open", []),
        ("files", process(fds=950, fds_max=1000), "amber", "950 of 1000 descriptors", []),
        ("pauses", shard(0, "connections", accept_pauses=lambda step: step), "red", "no descriptor is left", []),
        ("queue", shard(1, "accept_queue", waiting=3000, room=4096), "amber", "waiting to be accepted", [1]),
        ("overflow", process(listen_overflows=lambda step: step), "red", "full accept queue", []),
        ("throttled", throttled, "red", "stopped the process in 30 % of its periods", []),
        ("panics", lambda now, step: now["shards"][0].update(handler_panics=step), "red", "Handlers panic", []),
        ("errors", shard(0, "responses", **{"5xx": lambda step: 9000 * step}), "red", "of the answers have a status of 5xx", []),
        ("enobufs", shard(2, "buffers", enobufs=lambda step: step), "amber", "Receive buffers ran out", [2]),
        ("cq", shard(2, "loop", cq_overflows=lambda step: step), "amber", "Completion queues overflow", [2]),
        ("log", lambda now, step: now.update(access_log_dropped=step), "amber", "Lines of the access log are lost", []),
        ("draining", lambda now, _: now.update(is_draining=True), "amber", "The server is draining", []),
    ]
    for name, change, level, sentence, marked in troubles:
        with Canned(lambda step: grow(snapshot, 4, step, change)) as canned:
            page = eye.open(canned.url)
            polls(page, 2)
            items = page.locator("#notes li")
            check(items.count() == 1, f"{name}: one note is expected, got {notes(page)!r}")
            check(sentence in notes(page) and items.first.get_attribute("class") == level, f"{name}: {level}, {notes(page)!r}")
            rows = page.locator(f"#rows tr.{level}").evaluate_all("rows => rows.map(row => +row.dataset.shard)")
            check(sorted(rows) == marked, f"{name}: rows {rows} are {level}, not {marked}")
            eye.close(page, f"trouble-{name}")


def look_at_behaviour(eye, snapshot):
    # By keyboard alone.
    with Canned(lambda step: grow(snapshot, 8, step)) as canned:
        page = eye.open(canned.url)
        polls(page)
        page.locator("th[data-key=busy] button").focus()
        page.keyboard.press("Enter")
        check(page.locator("th[data-key=busy]").get_attribute("aria-sort") == "descending", "Enter does not sort")
        check(page.locator("#rows tr").first.get_attribute("data-shard") == "6", "the busiest shard is not first")
        # Hidden: no more polls. Shown again: at once.
        page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true }); window.isHidden = true; document.dispatchEvent(new Event('visibilitychange'))")
        before = canned.polls
        page.wait_for_timeout(1000)
        check(canned.polls <= before + 1, "a hidden page polls")
        page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
        polls(page)
        # Paused.
        page.click("#pause")
        before = canned.polls
        page.wait_for_timeout(1000)
        check(canned.polls <= before + 1, "a paused page polls")
        page.click("#pause")
        polls(page)
        eye.close(page, "sorted")
    # With a token.
    with Canned(lambda step: grow(snapshot, 2, step), token="s3cret") as canned:
        context = eye.browser.new_context(viewport=WIDE)
        page = context.new_page()
        page.goto(canned.url)
        page.wait_for_selector("#ask:not([hidden])")
        page.fill("#token", "s3cret")
        page.keyboard.press("Enter")
        page.wait_for_selector("main:not([hidden])")
        check(not page.is_visible("#ask"), "the page goes on asking for a token")
        context.close()


def look_at_the_server(eye, binary):
    """Under load; then gone; then back."""
    server = Binary(binary)
    load = Load(server.port)
    try:
        page = eye.open(f"http://{server.address}/__stats?format=html")
        polls(page, 3)
        load.stop()
        # Both pictures of the same moment: the JSON that the page has drawn last.
        polls(page, 2)
        page.click("#pause")
        now = page.evaluate("last.now")
        shown = page.locator("#totals [data-key=requests] small").inner_text()
        check(shown == page.evaluate(f"short({now['total']['requests']})") + " in all", f"requests: {shown}, JSON {now['total']['requests']}")
        own = json.loads(server.get("/__stats?format=json"))
        # One more at most was on its way when the page was paused; none of the load's.
        check(1 <= own["total"]["requests"] - now["total"]["requests"] <= 2, "requests differ from the server's")
        for shard in now["shards"]:
            row = page.locator(f"#rows tr[data-shard='{shard['shard']}']")
            for key, value in (("connections", shard["connections"]["active"]), ("queue", shard["accept_queue"]["waiting"])):
                check(row.locator(f"[data-key={key}]").inner_text() == str(value), f"{key} of shard {shard['shard']}")
            for key in ("p50", "p99", "p999"):
                text = page.evaluate(f"time({shard['service_time_recent'][key + '_ns']})")
                check(row.locator(f"[data-key={key}]").inner_text() == text, f"{key} of shard {shard['shard']}")
        check(sum(count for _, count in now["service_time"]["buckets"]) == now["service_time"]["count"], "buckets and count differ")
        page.screenshot(path=eye.folder / "under-load.png", full_page=True)
        page.click("#pause")
        server.end()
        until(page, lambda: state(page) == "gone", "the page does not say that the server is gone")
        check("has not answered since" in notes(page), notes(page))
        page.screenshot(path=eye.folder / "gone.png", full_page=True)
        server = Binary(binary, server.port)
        until(page, lambda: state(page) != "gone", "the page does not notice that the server is back")
        polls(page)
        check(page.evaluate("last.now.process.pid") == server.child.pid, "the page shows the server that is gone")
        eye.close(page, "back")
    finally:
        load.stop()
        server.__exit__()


def main(binary, folder="target/stats-page"):
    path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    if not os.path.exists(path):
        return print(f"skipped: chromium not installed (no {path})")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    snapshot = sample(binary)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        eye = Eye(browser, folder)
        look_at_layout(eye, snapshot)
        look_at_trouble(eye, snapshot)
        look_at_behaviour(eye, snapshot)
        look_at_the_server(eye, binary)
        browser.close()
    print(f"ok: {len(list(folder.glob('*.png')))} screenshots in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
