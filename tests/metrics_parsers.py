#!/usr/bin/env python3
"""Reads /metrics of a running binary with Prometheus' own parsers and compares it with the JSON.

usage: tests/metrics_parsers.py target/debug/everycore
needs: pip install prometheus_client; promtool (Debian: prometheus), which is left out with a word where it is missing.
"""
import json
import shutil
import subprocess
import sys
import urllib.request

try:
    from prometheus_client.openmetrics import parser as openmetrics_parser
    from prometheus_client import parser as text_parser
except ImportError:
    sys.exit(print("skipped: prometheus_client not installed (pip install prometheus_client)"))


def get(address, path, **headers):
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["content-type"], answer.read().decode()


def check(is_so, what):
    if not is_so:
        sys.exit(f"metrics_parsers: {what}")


def figures(families):
    """Samples by name and labels; a second one of the same is an error."""
    found = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            check(key not in found, f"{key} is there twice")
            found[key] = sample.value
    return found


def total(found, name, **labels):
    return sum(value for (other, theirs), value in found.items() if other == name and labels.items() <= dict(theirs).items())


def main(binary):
    server = subprocess.Popen([binary, "serve", "--listen", "127.0.0.1:0", "--shards", "2"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        check(line.startswith("listening on http://"), f"unexpected first line {line!r}")
        address = line.strip().removeprefix("listening on http://")
        for _ in range(30):
            get(address, "/yo")

        kind, text = get(address, "/metrics")
        check(kind == "text/plain; version=0.0.4; charset=utf-8", kind)
        families = list(text_parser.text_string_to_metric_families(text))
        found = figures(families)
        kind, open_text = get(address, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        check(kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", kind)
        open_families = list(openmetrics_parser.text_string_to_metric_families(open_text))
        open_found = figures(open_families)

        untyped = [family.name for family in families if family.type in ("unknown", "untyped")]
        check(not untyped, f"without a type: {untyped}")
        check({f.name: f.type for f in families} == {f.name: f.type for f in open_families}, "the formats have other families")
        check(found.keys() == open_found.keys(), f"the formats differ in {set(found) ^ set(open_found)}")

        seen = json.loads(get(address, "/__stats")[1])
        # Each look was a request itself: two metrics, then this JSON.
        requests = seen["total"]["requests"]
        check(total(found, "http_server_requests_total") == requests - 2, "requests differ from the JSON")
        check(total(open_found, "http_server_requests_total") == requests - 1, "requests differ from the JSON")
        check(total(found, "http_server_responses_total", status="2xx") == 30, "2xx differ from what was asked")
        count = total(found, "http_server_request_duration_seconds_count")
        check(30 <= count <= requests - 2, f"{count} durations of {requests} requests")
        check(total(found, "http_server_request_duration_seconds_bucket", le="+Inf") == count, "+Inf is not the count")
        check(total(found, "everycore_shard_up") == 2, "not all shards are up")
        for name in ("process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_cpu_seconds_total"):
            check(total(found, name) > 0, f"{name} is 0")

        if shutil.which("promtool"):
            tool = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
            print(tool.stdout + tool.stderr, end="")
            check(tool.returncode == 0, "promtool has complaints")
        else:
            print("promtool is not here: left out")
        print(f"ok: {len(families)} families, {len(found)} samples in both formats")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
