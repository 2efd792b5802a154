"""Under what circumstances figures were taken: the machine, the versions, and the folder they are kept in."""

import datetime
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys

from servers import BENCH, ROOT, read


def result_directory(out, cores, suffix):
    """A new folder, named by date and host unless `out` is one; a host name that says nothing is replaced by what the
    machine is."""
    host = socket.gethostname().split(".")[0].lower()
    if re.fullmatch(r"localhost|vm|debian|(?=.*\d)[0-9a-f-]{6,}|ip-.*|.*\W.*", host):
        host = f"{len(cores)}core-{platform.machine()}"
    wanted = pathlib.Path(out or BENCH / "results" / f"{datetime.date.today()}-{host}{suffix}")
    directory, number = wanted, 1
    while directory.exists():
        number += 1
        directory = wanted.with_name(f"{wanted.name}-{number}")
    directory.mkdir(parents=True)
    return directory


def machine(program, cores, load_before):
    """What every reader needs to judge figures, as (what, value)."""
    info = read("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.*)", info)
    memory = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    commit = output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return [
        ("date", datetime.datetime.now().astimezone().isoformat(timespec="minutes")),
        ("command", " ".join([program, *sys.argv[1:]])),
        ("commit", (commit or "unknown") + (" with changes" if changed else "")),
        ("processor", f"{model[1] if model else platform.processor()}"
                      f"{', virtual machine' if 'hypervisor' in info else ''}"),
        ("cores", cores),
        ("memory", f"{int(memory[1]) // 1024 // 1024} GiB" if memory else "unknown"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("frequency governor", governor or "not visible"),
        ("load average before and after", f"{load_before[0]:.2f}, {os.getloadavg()[0]:.2f} (a value above 0.5 before"
                                          " means that others used the machine)"),
    ]


def output(*command):
    """What a program printed; nothing if it is not there, or is a git without a repository."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return (done.stdout.strip() or done.stderr.strip()) if command[0] != "git" or done.returncode == 0 else ""


def first(text):
    """The name and version that a program's first line begins with."""
    found = re.match(r"(nginx|wrk|HAProxy)\D*(\S+)", text)
    return f"{found[1]} {found[2]}" if found else ""
