"""The "host" base image: this machine's system folders, copy on write, and an /etc without secrets.

/etc is an allow-list: only names that are known to be harmless are copied, and of them only what every user of the
machine may read. Accounts are reduced to system accounts without passwords.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
EXTRA_TREES = ("/var/lib/dpkg",)
ETC_NAMES = [
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "dpkg",
    "environment.d",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "issue",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "locale.alias",
    "locale.gen",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "mime.types",
    "mke2fs.conf",
    "nsswitch.conf",
    "os-release",
    "pam.conf",
    "pam.d",
    "perl",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "redhat-release",
    "rpc",
    "selinux",
    "services",
    "shells",
    "skel",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
    "xdg",
    "xattr.conf",
    "default/locale",
    "apt/trusted.gpg.d",
    "apt/preferences.d",
    "apt/apt.conf.d/01autoremove",
    "apt/apt.conf.d/70debconf",
]
# Addresses of package sources can carry a password: they come along only with the network.
ETC_NETWORK_NAMES = ("apt/sources.list", "apt/sources.list.d")
_SKELETON = {
    "root": 0o700, "home": 0o755, "tmp": 0o1777, "var/tmp": 0o1777, "var/log/apt": 0o755, "var/spool": 0o755,
    "var/cache/apt/archives/partial": 0o755, "var/lib/apt/lists/partial": 0o755, "run/lock": 0o755, "mnt": 0o755,
    "opt": 0o755, "srv": 0o755, "media": 0o755, "var/lib": 0o755,
}  # fmt: skip
MOUNT_POINTS = ("proc", "dev", "sys")


def system_trees() -> list[str]:
    """Folders of this machine that the host base shows copy on write."""
    trees = [f"/{name}" for name in SYSTEM_FOLDERS if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    return trees + [path for path in EXTRA_TREES if os.path.isdir(path)]


def make_folder(root: Path, relative: str, mode: int = 0o755) -> Path:
    """Creates `relative` below `root` with mode 755 on the way and `mode` at the end, whatever the umask."""
    path = root
    for part in Path(relative.lstrip("/")).parts:
        path = path / part
        if not path.is_dir():
            path.mkdir()
            path.chmod(0o755)
    path.chmod(mode)
    return path


def write_skeleton(root: Path, hostname: str, network: bool) -> None:
    """Fills `root` with the folders, links and per-sandbox files of the host base."""
    for relative, mode in _SKELETON.items():
        make_folder(root, relative, mode)
    for name in SYSTEM_FOLDERS:
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
    (root / "var/run").symlink_to("/run")
    etc = make_folder(root, "etc")
    (etc / "mtab").symlink_to("/proc/mounts")
    write_name_files(etc, hostname, network)


def write_name_files(etc: Path, hostname: str, network: bool) -> None:
    """hostname, hosts and resolv.conf of one sandbox."""
    texts = {
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n",
        "resolv.conf": _read("/etc/resolv.conf") if network else "",
    }
    for name, text in texts.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)


def etc_layer(cache: Path, extra: Iterable[str], network: bool) -> Path:
    """The folder that holds the cleaned `etc`, built once for each state of the machine's /etc.

    Args:
        cache: folder for such layers.
        extra: further names below /etc that the caller declares.
    """
    names = sorted({*ETC_NAMES, *extra, *(ETC_NETWORK_NAMES if network else ())})
    sources = list(_readable(Path("/etc"), names))
    digest = hashlib.sha256(repr(names).encode())
    for path, info in sources:
        digest.update(f"{path}\0{info.st_mtime_ns}\0{info.st_size}\n".encode())
    for account_file in ("/etc/passwd", "/etc/group"):
        digest.update(_read(account_file).encode())
    layer = cache / f"etc-{digest.hexdigest()[:20]}"
    if layer.is_dir():
        return layer
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache))
    for path, info in sources:
        target = draft / path.relative_to("/")
        make_folder(draft, str(target.parent.relative_to(draft)))
        if stat.S_ISLNK(info.st_mode):
            target.symlink_to(os.readlink(path))
        else:
            shutil.copyfile(path, target)
            target.chmod(stat.S_IMODE(info.st_mode) & 0o755)
    etc = make_folder(draft, "etc")
    (etc / "passwd").write_text(_system_accounts("/etc/passwd"))
    (etc / "group").write_text(_system_accounts("/etc/group"))
    names_of_users = [line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()]
    (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in names_of_users))
    (etc / "shadow").chmod(0o640)
    draft.chmod(0o755)
    try:
        draft.rename(layer)
    except OSError:  # somebody else built the same layer meanwhile
        shutil.rmtree(draft, ignore_errors=True)
    return layer


def _readable(etc: Path, names: Iterable[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Links and world-readable regular files below the allowed names, in a fixed order."""
    pending = [etc / name for name in sorted(names, reverse=True)]
    while pending:
        path = pending.pop()
        try:
            info = path.lstat()
            if stat.S_ISDIR(info.st_mode):
                pending.extend(sorted(path.iterdir(), reverse=True))
            elif stat.S_ISLNK(info.st_mode) or (stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH):
                yield path, info
        except OSError:
            continue


def _system_accounts(path: str) -> str:
    """Lines of passwd or group with an id below 1000 or 65534, the password field replaced."""
    kept = []
    for line in _read(path).splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2].isdigit() and (int(fields[2]) < 1000 or int(fields[2]) == 65534):
            kept.append(":".join([fields[0], "x", *fields[2:]]))
    if not kept:
        kept = ["root:x:0:0:root:/root:/bin/sh"] if path.endswith("passwd") else ["root:x:0:"]
    return "\n".join(kept) + "\n"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
