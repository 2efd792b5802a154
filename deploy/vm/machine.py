"""Debian's kernels in a machine that QEMU emulates, from packages that apt fetches. For `kernels` and `units` beside it.

Packages come from the mirror that this machine's apt already uses, with the release changed; apt checks their signatures. They
are kept in target/vm. Nothing is installed here.
"""
import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "vm"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
TARGET = "x86_64-unknown-linux-gnu"
# Emulated, on a machine that has other work: far more than is needed.
BOOT_SECONDS = 400
NEEDED = {"qemu-system-x86_64": "qemu-system-x86", "dpkg-deb": "dpkg", "apt-get": "apt", "debootstrap": "debootstrap"}


def need(*programs):
    missing = [NEEDED[program] for program in programs if not shutil.which(program)]
    if missing:
        sys.exit(f"expected {' '.join(missing)}: apt-get install {' '.join(missing)}")


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


# ---- packages ------------------------------------------------------------------------------------


def mirror():
    """Where this machine's apt has Debian from."""
    targets = run("apt-get", "indextargets", "--format", "$(ORIGIN) $(CREATED_BY) $(CODENAME) $(REPO_URI)")
    found = re.findall(r"^Debian Packages [a-z]+ (\S+)$", targets, re.M)
    if not found:
        raise SystemExit("expected Debian among the sources of apt (apt-get update), got none")
    return found[0].rstrip("/")


class Release:
    """A release of Debian, by its name, as apt sees it."""

    def __init__(self, name):
        self.name, self.folder = name, CACHE / "apt" / name
        lists, cache = self.folder / "lists", self.folder / "cache"
        for folder in (lists / "partial", cache / "archives/partial"):
            folder.mkdir(parents=True, exist_ok=True)
        sources = self.folder / "sources.list"
        sources.write_text(f"deb [signed-by={KEYS}] {mirror()} {name} main\n")
        settings = {
            "Dir::State::lists": lists,
            "Dir::State::status": "/dev/null",
            "Dir::Cache": cache,
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "APT::Sandbox::User": "root",
        }
        self.settings = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        run("apt-get", *self.settings, "update")

    def tell(self, package, field):
        told = run("apt-cache", *self.settings, "show", "--no-all-versions", package)
        return re.search(rf"^{field}: (.*)$", told, re.M).group(1)

    def fetch(self, package):
        """The package's file."""
        version = self.tell(package, "Version")
        folder = self.folder / f"{package}_{version}"
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            run("apt-get", *self.settings, "download", package, cwd=partial)
            partial.rename(folder)
        return next(folder.glob("*.deb"))

    def unpack(self, package, *patterns):
        """The first file in the package whose path matches."""
        archive = self.fetch(package)
        path = archive.parent / "file"
        if not path.exists():
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as unpacked:
                with tarfile.open(fileobj=unpacked.stdout, mode="r|") as files:
                    matches = (file for file in files if any(fnmatch(file.name, pattern) for pattern in patterns))
                    content = next((files.extractfile(file).read() for file in matches), None)
                unpacked.kill()
            if content is None:
                raise SystemExit(f"expected {' or '.join(patterns)} in {archive.name}")
            path.write_bytes(content)
        return path

    def kernel(self):
        """(the version of Debian's package, the kernel's file)"""
        image = re.search(r"linux-image-\d\S+", self.tell("linux-image-amd64", "Depends")).group(0)
        # Since 7.3 the kernel itself is a package of its own.
        split = re.search(r"linux-binary-\d\S+", self.tell(image, "Depends"))
        image = split.group(0) if split else image
        return self.tell(image, "Version"), self.unpack(image, "./boot/vmlinuz-*", "./usr/lib/modules/*/vmlinuz")


# Once a run: each fetches apt's lists.
release = functools.cache(Release)


def busybox():
    return release("bookworm").unpack("busybox-static", "./bin/busybox").read_bytes()


# ---- our binary ----------------------------------------------------------------------------------


def binary():
    """BINARY, or built as the image's is, though optimised less."""
    if "BINARY" in os.environ:
        return Path(os.environ["BINARY"]).resolve()
    profile = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
    profile["RUSTFLAGS"] = "-C target-feature=+crt-static"
    run("cargo", "build", "--release", "--locked", "--bin", "everycore", "--target", TARGET, cwd=ROOT, env={**os.environ, **profile})
    return CACHE.parent / TARGET / "release/everycore"


# ---- the machine ---------------------------------------------------------------------------------


def initramfs(path, files):
    """An archive (cpio, newc) of {path in it: bytes}, all of them executable, with their folders."""
    folders = {str(folder) for name in files for folder in Path(name).parents if str(folder) != "."}
    entries = [(folder, 0o040755, b"") for folder in sorted(folders)]
    entries += [(name, 0o100755, content) for name, content in files.items()]
    with path.open("wb") as out:
        for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
            name = name.encode() + b"\0"
            fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0]
            head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
            out.write(head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4))


def boot(kernel, archive, megabytes, arguments=""):
    """Boots until the machine turns itself off: (what it wrote to its serial line, seconds)."""
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(megabytes)]
    command += ["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio", "-nic", "none"]
    command += ["-kernel", kernel, "-initrd", archive, "-append", f"console=ttyS0 quiet loglevel=1 panic=-1 rdinit=/init {arguments}"]
    start = time.monotonic()
    try:
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_SECONDS)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as cut:
        said = (cut.stdout or b"") + f"\nnot done within {BOOT_SECONDS} s\n".encode()
    return said.decode(errors="replace").replace("\r", ""), time.monotonic() - start


def sections(said):
    """{name: (exit code, output)} of what the machine wrote between `@@ NAME` and `@@ NAME ends CODE`."""
    found = re.findall(r"^@@ ([\w-]+)\n(.*?)^@@ \1 ends (\d+)$", said, re.M | re.S)
    return {name: (int(code), output) for name, output, code in found}
