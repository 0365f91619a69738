"""Root inside a sandbox attacks the machine, its limits and its neighbours. Every attack must fail."""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rock.errors import SandboxError
from rock.runtime.local import Bind, Limits, NamespaceSandbox
from rock.runtime.local.archive import unpack_host

pytestmark = [pytest.mark.namespaces, pytest.mark.skipif(os.geteuid() != 0, reason="the attacks assume a root owner")]
MakeSandbox = Callable[..., Awaitable[NamespaceSandbox]]


async def _refused(box: NamespaceSandbox, command: str) -> str:
    result = await box.exec(command, timeout=30)
    assert result.exit_code != 0, f"{command} succeeded: {result.stdout}{result.stderr}"
    return result.stderr


async def test_the_machines_secrets_are_not_there(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    marker = tmp_path / "secret"
    marker.write_text("host secret")
    box = await make_sandbox()
    for path in ("/root/.ssh", "/root/.bashrc", str(marker), "/etc/ssh/ssh_host_rsa_key", "/etc/sudoers", "/work"):
        await _refused(box, f"ls -d {path}")
    shadow = (await box.exec("cat /etc/shadow /etc/passwd /etc/group")).stdout
    assert all(line.split(":")[1] in ("*", "x") for line in shadow.splitlines())
    listed = (await box.exec("ls -A /home /root /opt /srv /mnt /media /tmp")).stdout
    assert all(line.startswith("/") or not line for line in listed.splitlines() if line != ".rocklet")
    env = (await box.exec("env")).stdout
    assert not any(
        line.split("=")[0] in os.environ
        and line.split("=")[0] not in ("PATH", "LANG", "HOME", "USER", "PWD", "SHLVL", "_")
        for line in env.splitlines()
    )


async def test_mounts_devices_and_kernel_settings_are_out_of_reach(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox()
    await _refused(box, "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk")
    await _refused(box, "ls /dev/vda /dev/sda /dev/kvm /dev/mem /dev/kmsg 2>/dev/null")
    await _refused(box, "mount -t ext4 /dev/vda /mnt")
    await _refused(box, "mount -t sysfs sysfs /sys && echo 1 > /sys/kernel/mm/ksm/run")
    await _refused(box, "mount -t debugfs none /mnt")
    await _refused(box, "mount -t devtmpfs none /mnt")
    await _refused(box, "echo '|/tmp/x' > /proc/sys/kernel/core_pattern")
    await _refused(box, "echo b > /proc/sysrq-trigger")
    await _refused(box, "echo 1 > /proc/sys/vm/drop_caches")
    await _refused(box, "head -c 1 /proc/kcore")
    await _refused(box, "dmesg")
    await _refused(box, "date -s 2001-01-01")
    await _refused(box, "swapon /dev/zero")
    await _refused(box, "modprobe dummy || insmod /tmp/x.ko")


async def test_processes_outside_are_invisible_and_cannot_be_killed(make_sandbox: MakeSandbox) -> None:
    outsider = subprocess.Popen(["sleep", "55.5"])
    try:
        box = await make_sandbox()
        neighbour = await make_sandbox("neighbour")
        await neighbour.spawn("exec sleep 56.5")
        await asyncio.sleep(0.3)
        seen = (await box.exec("ps -e -o args=")).stdout
        assert "55.5" not in seen and "56.5" not in seen
        await box.exec(f"kill -9 {outsider.pid}; kill -9 -1", timeout=10)
        assert outsider.poll() is None
        assert "56.5" in (await neighbour.exec("ps -e -o args=")).stdout
    finally:
        outsider.kill()
        outsider.wait()


async def test_no_path_leads_out_of_the_root(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host secret")
    box = await make_sandbox(binds=(Bind(str(tmp_path), "/bound"),))
    inode = (tmp_path / "secret").stat().st_ino
    escape = f"""
import os, sys
# 1: the classic double chroot
os.makedirs("/tmp/jail", exist_ok=True)
fd = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail"); os.fchdir(fd)
for _ in range(64): os.chdir("..")
os.chroot(".")
print("chroot", os.path.exists({str(tmp_path)!r}))
# 2: the roots of other processes
print("roots", any(os.path.exists(f"/proc/{{p}}/root{tmp_path}") for p in os.listdir("/proc") if p.isdigit()))
print("cwd", any(os.path.exists(f"/proc/{{p}}/cwd{tmp_path}") for p in os.listdir("/proc") if p.isdigit()))
# 3: file handles
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
handle = (ctypes.c_ubyte * 16)(8, 0, 0, 0, 1, 0, 0, 0, *({inode}).to_bytes(4, "little"))
mount = os.open("/bound", os.O_RDONLY)
print("handle", libc.open_by_handle_at(mount, handle, 0) >= 0)
# 4: the namespaces of the machine
try:
    libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)
except OSError:
    pass
print("setns", os.path.exists({str(tmp_path)!r}))
"""
    result = await box.exec(["/usr/bin/python3", "-c", escape], timeout=20)
    lines = dict(line.split() for line in result.stdout.splitlines())
    assert lines == {"chroot": "False", "roots": "False", "cwd": "False", "handle": "False", "setns": "False"}, (
        result.stderr
    )
    await _refused(box, "umount /proc && umount -l / && ls /work")
    await _refused(box, f"nsenter -t 1 -m ls {tmp_path}")


async def test_limits_cannot_be_lifted_from_inside(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox(limits=Limits(memory_bytes=100 << 20, pids=30))
    attack = """
for c in memory pids cpu cgroup2; do
  mkdir -p /tmp/$c
  if [ $c = cgroup2 ]; then mount -t cgroup2 none /tmp/$c; else mount -t cgroup -o $c none /tmp/$c; fi
  for d in /tmp/$c /tmp/$c/.. /tmp/$c/x; do
    mkdir -p /tmp/$c/x
    echo -1 > $d/memory.limit_in_bytes; echo max > $d/pids.max; echo max > $d/memory.max; echo -1 > $d/cpu.cfs_quota_us
    echo $$ > $d/cgroup.procs
  done
done 2>/dev/null
unshare -C true 2>/dev/null
ulimit -u unlimited 2>/dev/null
exec /usr/bin/python3 -c "x = b'x' * (300 << 20); print('lifted')"
"""
    assert "lifted" not in (await box.exec(attack, timeout=60)).stdout
    nested = "unshare -Ur --mount --pid --fork /usr/bin/python3 -c \"x = b'x' * (300 << 20); print('lifted')\""
    assert "lifted" not in (await box.exec(nested, timeout=60)).stdout


async def test_without_network_no_socket_of_the_machine_is_reached(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    server = http.server.HTTPServer(("0.0.0.0", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0rock-test-{os.getpid()}")
    abstract.listen()
    code = f"""
import socket, fcntl
def reach(family, address):
    try:
        s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2); s.connect(address); return "reached"
    except OSError as error:
        return "refused"
print(reach(socket.AF_INET, ("127.0.0.1", {server.server_port})))
print(reach(socket.AF_INET, ("{_own_address()}", {server.server_port})))
print(reach(socket.AF_UNIX, "\\0rock-test-{os.getpid()}"))
try:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); print("vsock")
except OSError:
    print("refused")
print(",".join(name for _, name in socket.if_nameindex() if not name.startswith(("tunl", "sit", "ip", "gre", "ifb", "erspan", "dummy"))))
"""
    try:
        box = await make_sandbox()
        result = await box.exec(["/usr/bin/python3", "-c", code], timeout=30)
        assert result.stdout.split() == ["refused"] * 4 + ["lo"], result.stderr
        shared = await make_sandbox("shared", network="host")
        assert (await shared.exec(["/usr/bin/python3", "-c", code], timeout=30)).stdout.split()[0] == "reached"
    finally:
        server.shutdown()
        server.server_close()
        abstract.close()


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.2"


async def test_links_that_a_sandbox_makes_do_not_lead_copies_astray(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    box = await make_sandbox()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "f").write_text("untouched")
    # copying in: the target's folder is a link to a place outside; for us it is a path of the sandbox
    await box.exec(f"ln -s {victim} /data")
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("attack")
    await box.exec("mkdir -p /real; ln -s /real /linked")
    await box.put(source, "/linked")
    with pytest.raises(SandboxError):
        await box.put(source, "/data")
    assert (victim / "f").read_text() == "untouched"
    assert (await box.exec("cat /real/f")).stdout == "attack"
    # copying out: links to the machine's files, absolute, relative, and through a folder that is a link
    await box.exec(
        "mkdir -p /out/d; cd /out; ln -s /etc/shadow abs; ln -s ../../../../etc/shadow rel; ln -s d/../../x up; "
        "ln -s d ok; echo 1 > d/f; mkfifo pipe; ln -s / rootlink"
    )
    left_out = await box.get("/out", tmp_path / "got")
    assert sorted(left_out) == ["./abs", "./rel", "./rootlink", "./up"]
    assert sorted(os.listdir(tmp_path / "got")) == ["d", "ok"]
    # a file named like a link that stands at the goal replaces the link, not what it points to
    goal = tmp_path / "goal"
    goal.mkdir()
    (goal / "f").symlink_to(victim / "f")
    (goal / "d").symlink_to(victim)
    await box.exec("mkdir /out2; echo new > /out2/f; mkdir /out2/d; echo new > /out2/d/f")
    left_out = await box.get("/out2", goal)
    assert (victim / "f").read_text() == "untouched" and (goal / "f").read_text() == "new\n"
    assert "./d/f" in left_out


def test_a_forged_archive_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    import io
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:

        def add(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, mode
            content = b"attack" if kind == tarfile.REGTYPE else b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        add("./", tarfile.DIRTYPE)
        add("../outside")
        add("/absolute-rock-test")
        add("link", tarfile.SYMTYPE, "..")
        add("link/through")
        add("hard", tarfile.LNKTYPE, "/etc/passwd")
        add("device", tarfile.CHRTYPE)
        add("suid", mode=0o4777)
    stream.seek(0)
    goal = tmp_path / "a" / "goal"
    goal.mkdir(parents=True)
    unpack_host(stream, goal)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert "outside" not in names and "a/outside" not in names and "a/through" not in names
    assert not Path("/absolute-rock-test").exists()
    assert not (goal / "device").exists() and not (goal / "hard").exists()
    assert (goal / "suid").stat().st_mode & 0o7000 == 0


async def test_a_set_user_id_file_gives_nobody_on_the_machine_root(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    box = await make_sandbox()
    await box.exec("cp /usr/bin/id /usr/bin/rootid && chmod 4755 /usr/bin/rootid")
    run = box.root.run_folder("box")
    reached = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "ls", str(run)], capture_output=True
    )
    assert reached.returncode != 0
    assert (await box.exec("/usr/bin/rootid -u", user="nobody")).stdout == "0\n"  # inside it works as ever


async def test_the_entering_helper_cannot_be_traced_or_overwritten(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox()
    code = """
import os
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    for name in ("exe", "mem"):
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        except OSError:
            continue
        link = os.readlink(f"/proc/{pid}/exe")
        if name == "exe" and "python" in link and int(pid) != os.getpid():
            print("writable", pid, link)
        os.close(fd)
print("end")
"""
    before = Path(sys.executable).resolve().stat().st_mtime_ns
    results = await asyncio.gather(*(box.exec(["/usr/bin/python3", "-c", code], timeout=30) for _ in range(6)))
    assert all(one.stdout == "end\n" for one in results), [one.stdout for one in results]
    assert Path(sys.executable).resolve().stat().st_mtime_ns == before
