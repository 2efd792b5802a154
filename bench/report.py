"""Turns the raw slices of `compare` into a summary, a picture and a record of the circumstances."""

import math
import statistics
from xml.sax.saxutils import escape

COLUMNS = ["profile", "round", "server", "requests", "seconds", "cpu_us", "p50_us", "p99_us",
           "rss_before", "rss_after", "errors"]


def summarize(rows, profiles):
    """By profile and server: medians over the rounds, and the ratio to the baseline within each round."""
    results = {}
    for profile in profiles:
        own = [row for row in rows if row["profile"] == profile.name]
        by_round = {(row["round"], row["server"]): cost(row) for row in own}
        servers = list(dict.fromkeys(row["server"] for row in own))
        for server in servers:
            slices = [row for row in own if row["server"] == server]
            good = [row for row in slices if row["requests"]]
            result = {"errors": total_errors(slices)}
            results[profile.name, server] = result
            if not good:
                continue
            if profile.name == "idle":
                row = good[0]
                result["bytes"] = (row["rss_after"] - row["rss_before"]) / row["requests"]
                result["rss"] = row["rss_before"]
                continue
            pairs = [(cost(row), by_round.get((row["round"], profile.baseline))) for row in good]
            ratios = [own_cost / floor for own_cost, floor in pairs if floor]
            result |= {
                "cpu": statistics.median(map(cost, good)),
                "rate": statistics.median(row["requests"] / row["seconds"] for row in good),
            }
            # wrk corrects its latencies for omissions with a formula that does not hold when requests are pipelined.
            if profile.depth == 1:
                result |= {key: statistics.median(row[f"{key}_us"] for row in good) for key in ("p50", "p99")}
            if ratios:
                result |= {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    return results


def cost(row):
    """Server CPU time a request, µs."""
    return row["cpu_us"] / row["requests"] if row["requests"] and "cpu_us" in row else None


def total_errors(slices):
    total, other = {}, []
    for row in slices:
        for word in row["errors"].split(" ") if "load:" not in row["errors"] else []:
            name, _, count = word.partition("=")
            if count:
                total[name] = total.get(name, 0) + int(count)
        if "load:" in row["errors"]:
            other.append(row["errors"])
        elif not row["requests"]:
            other.append("no reply")
    return ", ".join([f"{name} {count}" for name, count in total.items()] + sorted(set(other)))


def markdown(results, profiles):
    text = "# Summary\n\nRatio: server CPU time a request, divided by the floor's in the same round; the median, and the\n" \
           "lowest and highest of the rounds. The other columns are medians. Read the ratios first: absolute figures\n" \
           "follow the machine's mood.\n"
    for profile in profiles:
        own = {server: result for (name, server), result in results.items() if name == profile.name}
        text += f"\n## {profile.about}\n\n"
        if profile.name == "idle":
            text += "| server | bytes a connection | resident before | errors |\n|---|--:|--:|---|\n"
            for server, result in sorted(own.items(), key=lambda item: item[1].get("bytes", math.inf)):
                size = f"{result['bytes']:,.0f} | {result['rss'] / 2**20:.1f} MiB" if "bytes" in result else "— | —"
                text += f"| {server} | {size} | {result['errors']} |\n"
            continue
        if profile.baseline != "floor":
            text += f"The ratio is to {profile.baseline} here.\n\n"
        text += "| server | ratio | spread | CPU µs a request | requests/s | p50 µs | p99 µs | errors |\n" \
                "|---|--:|--:|--:|--:|--:|--:|---|\n"
        for server, result in sorted(own.items(), key=lambda item: item[1].get("cpu", math.inf)):
            ratio = f"{result['ratio']:.2f} | {result['low']:.2f}–{result['high']:.2f}" if "ratio" in result else "— | —"
            rest = " | ".join(f"{result[key]:{form}}" if key in result else "—" for key, form in
                              [("cpu", ".2f"), ("rate", ",.0f"), ("p50", ",.0f"), ("p99", ",.0f")])
            text += f"| {server} | {ratio} | {rest} | {result['errors']} |\n"
    return text


def svg(results, profiles, servers):
    """A panel a profile, a row a server: the median ratio as a dot, the rounds' range as a line, on a log scale."""
    has = lambda profile, server: "ratio" in results.get((profile.name, server), {})
    panels = [profile for profile in profiles if any(has(profile, server) for server in servers)]
    rows = [server for server in servers if any(has(profile, server) for profile in panels)]
    columns, label, width, gap, line, head = 4, 96, 160, 30, 20, 32
    strip = head + line * len(rows) + 30
    total, height = label + columns * (width + gap), 34 + strip * math.ceil(len(panels) / columns)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" height="{height}" '
           'font-family="system-ui, sans-serif" font-size="11">',
           '<title>CPU time a request, ratio to the floor</title>',
           f'<rect width="{total}" height="{height}" fill="#fff"/>',
           '<text x="8" y="20" font-size="14" font-weight="600">Server CPU time a request, ratio to the floor</text>',
           f'<text x="{total - 8}" y="20" text-anchor="end" fill="#555">dot: median; line: all rounds; log scale; '
           'left is better</text>']
    for index, profile in enumerate(panels):
        left, top = label + index % columns * (width + gap), 34 + head + index // columns * strip
        if index % columns == 0:
            for number, server in enumerate(rows):
                weight = ' font-weight="700"' if server.startswith("everycore") else ""
                out.append(f'<text x="{label - 8}" y="{top + line * number + 14}" text-anchor="end"{weight}>'
                           f'{escape(server)}</text>')
        out += panel(profile, {s: results[profile.name, s] for s in rows if has(profile, s)}, rows, left, top, width, line)
    return "\n".join(out + ["</svg>", ""])


def panel(profile, shown, rows, left, top, width, line):
    low = min([0.9] + [result["low"] for result in shown.values()]) * 0.97
    high = max([2.0] + [result["high"] for result in shown.values()]) * 1.05
    place = lambda ratio: left + width * math.log(ratio / low) / math.log(high / low)
    bottom = top + line * len(rows)
    title = f"{profile.name} connection{'s' * (profile.name != '1')}" if profile.name.isdigit() else profile.name
    title += f" (to {profile.baseline})" * (profile.baseline != "floor")
    out = [f'<text x="{left}" y="{top - 12}" font-weight="600">{escape(title)}</text>']
    for mark in [0.5, 1, 1.5, 2, 3, 5, 10, 20, 50]:
        if low <= mark <= high and (mark != 1.5 or high < 4) and (mark != 3 or high < 8):
            x, colour = place(mark), "#666" if mark == 1 else "#ddd"
            out.append(f'<path d="M{x:.1f} {top - 4}V{bottom}" stroke="{colour}"/>'
                       f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{mark:g}</text>')
    for server, result in shown.items():
        y = top + line * rows.index(server) + 10
        colour = "#c2410c" if server.startswith("everycore") else "#3b6ea5"
        out.append(f'<g fill="{colour}" stroke="{colour}"><title>{escape(server)}: {result["ratio"]:.2f} '
                   f'({result["low"]:.2f}–{result["high"]:.2f})</title>'
                   f'<path d="M{place(result["low"]):.1f} {y}H{place(result["high"]):.1f}" stroke-width="2"/>'
                   f'<circle cx="{place(result["ratio"]):.1f}" cy="{y}" r="4"/></g>')
    return out


def readme(facts, abouts, missing):
    text = "# A comparison\n\nMade by `bench/compare`; `bench/README.md` says how to read it.\n\n![ratios](ratios.svg)\n\n" \
           "- [summary.md](summary.md): the medians\n- [raw.csv](raw.csv): every slice\n\n| what | value |\n|---|---|\n"
    text += "".join(f"| {what} | {value} |\n" for what, value in facts)
    text += "\n## Servers\n\n" + "".join(f"- **{name}**: {about}\n" for name, about in abouts.items())
    if missing:
        text += "\n## Left out\n\n" + "".join(f"- {line}\n" for line in missing)
    return text
