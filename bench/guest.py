"""A virtual machine that counts instructions, those of the kernel too. For `bench/instructions --system`.

QEMU interprets one processor, and its clock is the count of the instructions that it executed: one is one nanosecond
(`-icount shift=0`). The CPU time that the guest's scheduler charges to a thread is then the number of instructions that
ran for it, in user space and in the kernel. (Tried with a loop of 20,000,000 instructions: charged with 20.5 ms, its start included.)
"""
import pathlib
import re
import subprocess
import tempfile

SECONDS_MAX = 1800
INIT_HEAD = """#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox ip link set lo up
sum() { echo "MARK $1 $(busybox cat /proc/$2/task/*/schedstat | busybox awk '{ ns += $1 } END { printf "%.0f", ns }')"; }
"""


def counted(kernel, busybox, runs):
    """Instructions of a server between two moments, for each of the runs: a list of (server command, load commands), with the
    programs' paths first. Says for each what its threads had executed after each load."""
    files = {"bin/busybox": busybox.read_bytes()}
    script = [INIT_HEAD]
    for number, (server, loads) in enumerate(runs):
        for command in (server, *loads):
            add_program(files, pathlib.Path(command[0]))
        script.append(f"{guest_command(server)} > /dev/null 2> /log & S=$!\nbusybox sleep 0.5\n")
        for load in loads:
            script.append(f"{guest_command(load)} > /load 2>> /log || {{ echo FAILED; busybox cat /load /log; }}\nsum {number} $S\n")
        script.append("kill $S\nwait $S\n")
    files["init"] = "".join([*script, "busybox poweroff -f\n"]).encode()
    with tempfile.NamedTemporaryFile() as archive:
        archive.write(initramfs(files))
        archive.flush()
        qemu = ["qemu-system-x86_64", "-accel", "tcg", "-icount", "shift=0,sleep=off", "-cpu", "max", "-smp", "1", "-m", "1024",
                "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot", "-kernel", kernel, "-initrd", archive.name,
                "-append", "console=ttyS0 quiet panic=-1 tsc=reliable"]
        console = subprocess.run(qemu, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX).stdout
    marks = re.findall(r"^MARK (\d+) (\d+)", console, re.M)
    found = [[int(ns) for which, ns in marks if int(which) == number] for number in range(len(runs))]
    is_whole = all(len(counts) == len(loads) for counts, (_, loads) in zip(found, runs))
    if not is_whole or "FAILED" in console:
        raise RuntimeError(f"the guest did not do its work; its console says:\n{console[-4000:]}")
    return found


def guest_command(command):
    return " ".join([guest_path(command[0]), *command[1:]])


def guest_path(program):
    """Programs of one name are told apart by where they come from."""
    return "/programs/" + str(pathlib.Path(program).resolve()).strip("/").replace("/", "_")


def add_program(files, program):
    """The program, and the libraries that it needs."""
    files[guest_path(program).strip("/")] = program.read_bytes()
    needed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout  # nothing if it is static
    for library in re.findall(r"(/\S+) \(0x", needed):
        files[library.strip("/")] = pathlib.Path(library).read_bytes()


def initramfs(files):
    """An archive of cpio's `newc` format, with the folders and the two devices that are needed."""
    folders = {str(parent) for path in files for parent in pathlib.PurePath(path).parents} - {"."} | {"dev", "proc", "sys"}
    entries = [(folder, 0o40755, b"", (0, 0)) for folder in sorted(folders)]
    entries += [("dev/console", 0o20600, b"", (5, 1)), ("dev/null", 0o20666, b"", (1, 3))]
    entries += [(path, 0o100755, data, (0, 0)) for path, data in files.items()]
    archive = b""
    for inode, (path, mode, data, (major, minor)) in enumerate([*entries, ("TRAILER!!!", 0, b"", (0, 0))], 1):
        name = path.encode() + b"\0"
        fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        archive += head.ljust(-(-len(head) // 4) * 4, b"\0") + data.ljust(-(-len(data) // 4) * 4, b"\0")
    return archive
