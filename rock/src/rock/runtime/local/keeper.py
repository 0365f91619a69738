"""The keeper: one small process outside each sandbox that builds it, waits, and clears everything away.

Three processes: the keeper (outside; the owner's child), the stager (joins the sandbox's user namespace and starts
the init) and the init (pid 1 inside; reaps orphans). The owner holds the keeper's standard input open: when the
owner dies, however it dies, the keeper reads end-of-file, kills the init (with it the kernel ends every process
inside) and removes control groups and files. If the keeper itself is killed, stager and init follow through their
parent-death signal, and the next keeper in the same state folder removes the files.

Standard input: one JSON line {"run": folder, "spec": {...}, "trees": [...], "lowers": [...], "shades": {...}}.
Standard output: JSON lines: {"event": "ready", "pid", "limits_missing", "notes"} or {"event": "failed", "reason"}; at the
end {"event": "ended", "reason"}.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from rock.runtime.local import syscalls as sc
from rock.runtime.local.cgroups import SandboxCgroup
from rock.runtime.local.identity import Identity, choose_identity
from rock.runtime.local.seccomp import restrict
from rock.runtime.local.spec import Limits, SandboxSpec
from rock.runtime.local.stage import Stage

_START_DEADLINE_SECONDS = 30.0


def main() -> None:
    """Runs one sandbox from the request on standard input to its end."""
    os.umask(0o022)
    request = json.loads(sys.stdin.buffer.readline())
    run = Path(request["run"])
    keeper = Keeper(run, request)
    keeper.serve()


def say(**event: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


class Keeper:
    def __init__(self, run: Path, request: dict[str, Any]) -> None:
        self.run = run
        self.request = request
        self.spec = SandboxSpec.from_json(request["spec"])
        self.cgroup = SandboxCgroup(self.spec.sandbox_id)
        self.init_pid = 0
        self.stager_pid = 0
        self.reason = ""
        self._stop_signal = ""

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        lock = os.open(self.run / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            missing, notes = self._start()
        except Exception as error:
            self._end()
            say(event="failed", reason=f"{type(error).__name__}: {error}")
            return
        say(event="ready", pid=self.init_pid, limits_missing=missing, notes=notes)
        self._wait(wake_read)
        self._end()
        say(event="ended", reason=self.reason)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop_signal = signal.Signals(number).name

    # -- start ----------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[list[str], list[str]]:
        identity, _lock = choose_identity()  # the descriptor stays open, and with it the range reserved, until our end
        missing = self.cgroup.create(self.spec.limits)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stager_pid = os.fork()
        if self.stager_pid == 0:
            ours.close()
            _run_guarded(theirs, lambda: _stager(theirs, self.run, self.request, self.spec, identity, missing))
        theirs.close()
        ours.settimeout(_START_DEADLINE_SECONDS)
        notes: list[str] = []
        while True:
            try:
                packet = ours.recv(65536)
            except TimeoutError:
                raise TimeoutError(f"the sandbox was not ready within {_START_DEADLINE_SECONDS:.0f} s") from None
            if not packet:
                raise RuntimeError("the sandbox process died during its start (out of memory?)")
            message = json.loads(packet)
            if message["kind"] == "map":
                identity.write(message["pid"])
                ours.send(b"go")
            elif message["kind"] == "init":
                self.init_pid = message["pid"]
                notes = message["notes"]
                self.cgroup.add(self.init_pid)
                ours.send(b"go")
            elif message["kind"] == "ready":
                return missing, notes
            else:
                raise RuntimeError(message["reason"])

    # -- life -----------------------------------------------------------------------------------------------------

    def _wait(self, wake_read: int) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN | select.POLLHUP)
        poll.register(wake_read, select.POLLIN)
        limit = self.spec.limits.time_seconds
        deadline = time.monotonic() + limit if limit else None
        while not self.reason:
            wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000 + 1
            events = poll.poll(wait_ms)
            if self._stop_signal:
                self.reason = f"keeper got {self._stop_signal}"
            elif deadline is not None and time.monotonic() >= deadline:
                self.reason = f"time limit of {limit:g} s is over"
            for fd, _ in events:
                if fd == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                elif fd == 0:
                    command = os.read(0, 4096)
                    self.reason = "stopped by its owner" if command else "its owner is gone"
            if self._reap_stager() and not self.reason:
                self.reason = "its init process ended"

    def _reap_stager(self) -> bool:
        if not self.stager_pid:
            return True
        done, _ = os.waitpid(self.stager_pid, os.WNOHANG)
        if done:
            self.stager_pid = 0
        return bool(done)

    def _end(self) -> None:
        for pid in (self.init_pid, self.stager_pid):
            if pid and self.stager_pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.stager_pid:
            os.waitpid(self.stager_pid, 0)
            self.stager_pid = 0
        self.cgroup.remove()
        if not self.spec.keep:
            remove_run(self.run)


def remove_run(run: Path) -> None:
    """Removes a run folder, its lock last: if this is interrupted, the free lock tells that the rest is a leftover."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(run)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path))
            elif entry.name != "lock":
                os.unlink(entry.path)
    remove_tree(run)


def remove_tree(folder: Path) -> None:
    """Removes a folder, also where the sandbox left folders without permissions."""
    if os.geteuid() != 0:
        pending = [str(folder)]
        while pending:
            path = pending.pop()
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)
                with os.scandir(path) as entries:
                    pending += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)


def _run_guarded(channel: socket.socket, action: Any) -> None:
    """Runs a forked child's body; an exception goes to the keeper as the reason. Never returns."""
    try:
        action()
    except BaseException as error:
        with contextlib.suppress(OSError):
            channel.send(json.dumps({"kind": "failed", "reason": str(error) or type(error).__name__}).encode())
        os._exit(1)
    os._exit(0)


def _tell(channel: socket.socket, **message: Any) -> None:
    channel.send(json.dumps(message).encode())


def _stager(
    channel: socket.socket,
    run: Path,
    request: dict[str, Any],
    spec: SandboxSpec,
    identity: Identity,
    missing: list[str],
) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    keeper_pid = os.getppid()
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper_pid:
        os._exit(1)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    userns: int | None = None
    if identity.mapped_mounts:
        userns = _new_user_namespace(identity)
        sc.unshare(sc.CLONE_NEWNS)
    else:
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        _tell(channel, kind="map", pid=os.getpid())
        channel.recv(16)
    sc.mount("none", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    stage = Stage(run, userns)
    stage.collect(spec, request["lowers"], request["trees"], request["shades"])
    if userns is not None:
        sc.setns(userns, sc.CLONE_NEWUSER)
        os.close(userns)
    else:
        # A second namespace, so that the read-only mounts of the first are locked for whoever is root inside.
        _enter_child_namespace(Identity(0, identity.count, False))
    if identity.count > 1:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of identity had cleared it
    network = sc.CLONE_NEWNET if spec.network == "none" else 0
    sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | network)
    stage.assemble(spec, request["lowers"], request["trees"], request["shades"])
    alive_read, alive_write = os.pipe2(os.O_CLOEXEC)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    init_pid = os.fork()
    if init_pid == 0:
        os.close(alive_write)
        os.close(go_write)
        _run_guarded(channel, lambda: _init(channel, spec, identity, missing, alive_read, go_read))
    os.close(go_read)
    _tell(channel, kind="init", pid=init_pid, notes=stage.notes)
    if channel.recv(16) != b"go":
        os._exit(1)
    os.write(go_write, b"g")
    channel.close()
    _, status = os.waitpid(init_pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _enter_child_namespace(identity: Identity) -> None:
    """A further user namespace for this process, its maps written by a child that stays in the present one."""
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    writer = os.fork()
    if writer == 0:
        code = 1
        try:
            if os.read(go_read, 1):
                identity.write(parent)
                code = 0
        finally:
            os._exit(code)
    sc.unshare(sc.CLONE_NEWUSER)
    os.write(go_write, b"1")
    _, status = os.waitpid(writer, 0)
    for fd in (go_read, go_write):
        os.close(fd)
    if status:
        raise OSError("the second user namespace got no id map")


def _new_user_namespace(identity: Identity) -> int:
    """Descriptor of a fresh user namespace with the sandbox's maps, made by a child that ends at once."""
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    end_read, end_write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(end_write)
            sc.unshare(sc.CLONE_NEWUSER)
            os.write(ready_write, b"1")
            os.read(end_read, 1)
        finally:
            os._exit(0)
    os.close(ready_write)
    try:
        if os.read(ready_read, 1) != b"1":
            raise OSError("user namespaces are not allowed here (see user.max_user_namespaces)")
        identity.write(child)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready_read, end_read, end_write):
            os.close(fd)
        os.waitpid(child, 0)


def _init(
    channel: socket.socket, spec: SandboxSpec, identity: Identity, missing: list[str], alive_read: int, go_read: int
) -> None:
    """Pid 1 of the sandbox."""
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.read(go_read, 1) != b"g":
        os._exit(1)
    with contextlib.suppress(OSError):  # cgroup namespaces are a convenience; the groups themselves stay out of reach
        sc.unshare(sc.CLONE_NEWCGROUP)
    Stage.enter_root(map_terminal_group=identity.count > 5)
    socket.sethostname(spec.hostname or spec.sandbox_id[:63])
    if spec.network == "none":
        _loopback_up()
    set_rlimits(spec.limits, missing)
    restrict()
    if not identity.mapped_mounts:
        sc.prctl(sc.PR_SET_DUMPABLE, 1)  # an owner without root could not enter otherwise
    _tell(channel, kind="ready")
    channel.close()
    os.dup2(0, 2)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(alive_read, select.POLLIN | select.POLLHUP)
    poll.register(wake_read, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == alive_read:  # the stager is gone
                os._exit(0)
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def set_rlimits(limits: Limits, missing: list[str]) -> None:
    """Limits of this process and its children; those in `missing` stand in for absent control groups."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wanted: list[tuple[int, int]] = []
    if limits.open_files is not None:
        wanted.append((resource.RLIMIT_NOFILE, limits.open_files))
    if "memory" in missing and limits.memory_bytes is not None:
        wanted.append((resource.RLIMIT_DATA, limits.memory_bytes))
    if "pids" in missing and limits.pids is not None:
        wanted.append((resource.RLIMIT_NPROC, limits.pids))
    for kind, value in wanted:
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if "cpu" in missing and limits.cpus is not None:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[: max(1, round(limits.cpus))])


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(probe, 0x8913, request)  # SIOCGIFFLAGS
        name, flags = struct.unpack_from("16sH", request)
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH22x", name, flags | 1))  # SIOCSIFFLAGS, IFF_UP


if __name__ == "__main__":
    main()
