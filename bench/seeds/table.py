"""Turns the raw rows of `run` into a summary, verdicts and a record of the circumstances. Used by `run`."""

import dataclasses
import re
import statistics

COLUMNS = ["row", "server", "round", "requests", "seconds", "server_rate", "p50_us", "p99_us", "max_us", "errors", "cpu_us",
           "rss_kib", "least", "most", "never"]


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of the seeds' table: one load, several servers."""

    name: str
    about: str
    # What it cannot be measured without, beside the servers.
    needs: str = ""


LINES = {line.name: line for line in [
    Line("wrk-t4-c100", "wrk -t4 -c100, `/yo` (a Lisp server's tasks)", "wrk"),
    Line("wrk-t4-c10", "wrk -t4 -c10, `/yo`", "wrk"),
    Line("wrk-t16-c400", "wrk -t16 -c400, `/yo`", "wrk"),
    Line("fair-c400", "400 connections, `/yo`: how evenly they are served"),
    Line("ab-view-order", "ab -c 10 -n 10000 `/view-order?order-id=1` (a pool for a Lisp server)", "ab"),
    Line("ab-k-small", "ab -k -c 50 `/small`", "ab"),
    Line("churn", "1,000 at a time, a connection a request, echo (a concurrency demo in Haskell)"),
    Line("churn-ghc", "the same load by the GHC client", "ghc"),
    Line("keep-5000", "5,000 kept connections (Apache MINA)"),
    Line("keep-7000", "7,000 kept connections"),
    Line("apache-http-small", "ab -k -c 50 through Apache httpd by HTTP, `/small` (an image behind AJP)", "ab"),
    Line("apache-http-table", "ab -k -c 50 through Apache httpd by HTTP, `/dw-bench?dynamic`", "ab"),
    Line("apache-ajp-small", "ab -k -c 50 through Apache httpd by AJP, `/small`", "apache-ajp"),
    Line("apache-ajp-table", "ab -k -c 50 through Apache httpd by AJP, `/dw-bench?dynamic`", "apache-ajp"),
]}

# At 400 connections the most served one has at most so many times what the least served has.
EVEN_FACTOR = 2
# A lost SYN costs a second.
CHURN_MAX_US = 1_000_000


def is_ours(row):
    # Apache's rows have two servers; what Apache refuses is not ours.
    return row["server"].startswith("everycore")


def checks(rows):
    """What is asked of everycore, as (holds, sentence)."""
    ours = [row for row in rows if is_ours(row)]
    broken = [f"{row['row']}: {row['errors']}" for row in ours if row.get("errors")]
    found = [(not broken, "no error in any row of everycore's" + f", but {'; '.join(broken)}" * bool(broken))]
    fair = [row for row in ours if row["row"] == "fair-c400" and row["requests"]]
    if fair:
        worst = max(fair, key=lambda row: row["most"] / max(row["least"], 0.5))
        even = worst["never"] == 0 and worst["most"] <= EVEN_FACTOR * worst["least"]
        found.append((even, f"at 400 connections the least served has {worst['least']:,} answers and the most served "
                            f"{worst['most']:,}: within {EVEN_FACTOR} times"))
    churn = [row["max_us"] for row in ours if row["row"].startswith("churn") and row["requests"]]
    if churn:
        found.append((max(churn) <= CHURN_MAX_US, f"no request of the churn takes a second: {max(churn) / 1e6:.2f} s at most"))
    return found


def markdown(rows, absent, verdicts):
    text = "# The seeds, side by side\n\nMedians over the rounds; errors are added up. Server CPU is user and system time of all its " \
           "threads.\n\n"
    text += "".join(f"- {'yes' if holds else '**no**'}: {sentence}\n" for holds, sentence in verdicts)
    for who, why in absent.items():
        text += f"- {who} skipped: {why}\n"
    for line in LINES.values():
        own = [row for row in rows if row["row"] == line.name]
        if own:
            text += f"\n## {line.about}\n\n{section(own)}"
    return text


def section(rows):
    has = lambda column: any(row.get(column) is not None for row in rows)
    heads = ["server", "requests/s"] + ["by its own count"] * has("server_rate")
    heads += ["p50 ms", "p99 ms", "max ms", "CPU µs a request", "resident MiB"] + ["least – most served"] * has("least") + ["errors"]
    text = f"| {' | '.join(heads)} |\n|---|{'--:|' * (len(heads) - 2)}---|\n"
    for server in dict.fromkeys(row["server"] for row in rows):
        own = [row for row in rows if row["server"] == server]
        good = [row for row in own if row["requests"]]
        median = lambda of: statistics.median(values) if (values := [v for row in good if (v := of(row)) is not None]) else None
        cells = [server, number(median(lambda row: row["requests"] / row["seconds"]))]
        cells += [number(median(lambda row: row.get("server_rate")))] * has("server_rate")
        cells += [millis(median(lambda row, column=column: row.get(column))) for column in ("p50_us", "p99_us", "max_us")]
        cells += [number(median(lambda row: row["cpu_us"] / row["requests"]), 1), number(median(lambda row: row["rss_kib"] / 1024), 1)]
        if has("least"):
            pairs = [row for row in good if row.get("least") is not None]
            worst = min(pairs, key=lambda row: row["least"] / max(row["most"], 1), default=None)
            cells.append(f"{worst['least']:,} – {worst['most']:,}" + f" ({worst['never']} never)" * bool(worst["never"]) if worst else "")
        text += f"| {' | '.join(cells)} | {total_errors(own)} |\n"
    return text


def number(value, digits=0):
    return "" if value is None else f"{value:,.{digits}f}"


def millis(micros):
    return "" if micros is None else f"{micros / 1e3:,.2f}"


def total_errors(rows):
    total, other = {}, []
    for row in rows:
        text = row.get("errors") or ""
        for name, count in re.findall(r"([\w-]+)=(\d+)", text):
            total[name] = total.get(name, 0) + int(count)
        if text.startswith("load: "):
            other.append(text.replace("|", "/"))
    return ", ".join([f"{name} {count:,}" for name, count in total.items()] + list(dict.fromkeys(other)))


def readme(facts, instances, absent):
    text = "# The seeds, side by side\n\nMade by `bench/seeds/run`; `bench/seeds/README.md` says what the rows are.\n\n" \
           "- [summary.md](summary.md): medians, and whether everycore does what is asked\n- [raw.csv](raw.csv): every load\n\n" \
           "| what | value |\n|---|---|\n"
    text += "".join(f"| {what} | {value} |\n" for what, value in facts)
    text += "\n## Servers\n\n" + "".join(f"- **{instance.name}**: {instance.about}\n" for instance in instances)
    if absent:
        text += "\n## Skipped\n\n" + "".join(f"- {who}: {why}\n" for who, why in absent.items())
    return text
