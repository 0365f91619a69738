"""Runs one command, or one file transfer, inside a sandbox from outside: joins its namespaces, forks, executes.

Standard input of the helper is the command's own; its first argument is JSON: {"pid", "network", "cgroups": [...],
"user", "cwd", "env", "action": "exec" | "pack" | "unpack", "argv": [...], "path", "limits", "missing", "mapped"}.
The exit code is the command's (128 + n after signal n). SIGTERM ends the command and all its descendants.
Transfers run our own code only: a tar stream over the standard streams, nothing of the image is executed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

from rock.runtime.local import syscalls as sc
from rock.runtime.local.archive import pack, unpack
from rock.runtime.local.keeper import set_rlimits
from rock.runtime.local.seccomp import restrict
from rock.runtime.local.spec import Limits
from rock.runtime.processes import MARK, kill_family

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class StopRequested(Exception):
    pass


def main() -> None:
    request = json.loads(sys.argv[1])
    tarfile.grp = tarfile.pwd = None  # type: ignore[attr-defined]  # names of accounts differ inside and outside
    signal.signal(signal.SIGTERM, _on_stop)
    signal.signal(signal.SIGINT, _on_stop)
    inner_pid = 0
    try:
        join(request)
        sys.path.clear()  # from here on the file system is the sandbox's: a forgotten import must fail, not run its files
        sys.path_importer_cache.clear()
        pid_read, pid_write = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.write(pid_write, str(os.getpid()).encode())
            _inside(request)
        os.close(pid_write)
        inner_pid = int(os.read(pid_read, 32) or b"0")
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    except StopRequested:
        if inner_pid:
            kill_command(inner_pid, request["env"].get(MARK, ""))
        os._exit(128 + signal.SIGTERM)
    except OSError as error:
        os.write(2, f"rock: cannot enter the sandbox: {error}\n".encode())
        os._exit(_NOT_EXECUTABLE)


def _on_stop(*_: object) -> None:
    raise StopRequested


def join(request: dict[str, Any]) -> None:
    """Moves this process into the sandbox: control groups first (paths of the outside), then the namespaces."""
    for folder in request["cgroups"]:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    handle = os.pidfd_open(request["pid"])
    flags = sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP
    if request["network"] == "none":
        flags |= sc.CLONE_NEWNET
    sc.setns(handle, flags)
    os.close(handle)
    os.chdir("/")
    if request["mapped"]:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _inside(request: dict[str, Any]) -> None:
    try:
        os.setsid()
        limits = Limits(**request["limits"])
        set_rlimits(limits, request["missing"])
        restrict()
        uid, gid, groups, home = account(request["user"])
        if uid != 0 or gid != 0:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if request["action"] == "pack":
            pack(request["path"], sys.stdout.buffer)
            os._exit(0)
        if request["action"] == "unpack":
            unpack(request["path"], sys.stdin.buffer)
            os._exit(0)
        env = {"HOME": home, "USER": request["user"] or "root", **request["env"]}
        _chdir(request["cwd"])
        argv = request["argv"]
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError as error:
        os.write(2, f"rock: {error.filename or request['argv'][0]}: not found\n".encode())
        os._exit(_NOT_FOUND)
    except BaseException as error:
        os.write(2, f"rock: {error}\n".encode())
        os._exit(_NOT_EXECUTABLE)


def _chdir(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise OSError(f"working directory {folder}: {error.strerror}") from error


def account(user: str) -> tuple[int, int, list[int], str]:
    """(uid, gid, supplementary groups, home) of `user` ("", "name", "uid" or "name:group") in the sandbox's passwd."""
    name, _, group = (user or "0").partition(":")
    rows = [line.split(":") for line in _lines("/etc/passwd")]
    group_rows = [line.split(":") for line in _lines("/etc/group")]
    row = next((row for row in rows if len(row) >= 6 and (row[0] == name or row[2] == name)), None)
    if row is None and not name.isdigit():
        raise ValueError(f"user {name!r} is not in the sandbox's /etc/passwd")
    uid = int(row[2]) if row else int(name)
    gid = int(row[3]) if row else 0
    if group:
        match = next((int(r[2]) for r in group_rows if len(r) >= 3 and r[0] == group), None)
        gid = int(group) if group.isdigit() else match if match is not None else gid
    login = row[0] if row else ""
    extra = [int(r[2]) for r in group_rows if len(r) >= 4 and login and login in r[3].split(",")]
    return uid, gid, extra, row[5] if row else "/"


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace").splitlines()
    return []


def kill_command(inner_pid: int, mark: str) -> None:
    """SIGKILL for all that a command started. The pids are those of the sandbox, so a child of ours, which lives
    there, does the killing."""
    if os.fork() == 0:
        try:
            kill_family(inner_pid, mark)
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
