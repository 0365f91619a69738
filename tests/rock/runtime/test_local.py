"""What a local sandbox does for its owner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rock.errors import SandboxError, SandboxStartError
from rock.runtime.local import Bind, Limits, LocalRoot, NamespaceSandbox, SandboxSpec
from rock.runtime.local.keeper import remove_run

pytestmark = pytest.mark.namespaces
MakeSandbox = Callable[..., Awaitable[NamespaceSandbox]]
SOURCE = Path(__file__).parents[3] / "rock" / "src"


async def test_commands_have_streams_exit_codes_folders_and_variables(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox(env={"A": "spec", "B": "spec"}, workdir="/usr")
    result = await box.exec('echo "$A $B"; pwd; echo err >&2; exit 5', env={"B": "call"})
    assert (result.stdout, result.stderr, result.exit_code) == ("spec call\n/usr\n", "err\n", 5)
    assert (await box.exec(["printf", "%s", "$A"])).stdout == "$A"
    assert (await box.exec("kill -TERM $$")).exit_code == 143
    assert (await box.exec(["/no/such"])).exit_code == 127
    assert (await box.exec("true", cwd="/no/such")).exit_code == 126
    assert (await box.exec("cat", stdin=b"in")).stdout == "in"
    assert (await box.exec("id -u; id -g", user="nobody")).stdout == "65534\n65534\n"
    missing = await box.exec("true", user="nosuchuser")
    assert missing.exit_code == 126 and "nosuchuser" in missing.stderr
    cut = await box.exec("yes | head -c 100000", max_output=1000)
    assert len(cut.stdout) == 1000 and cut.truncated


async def test_a_time_out_kills_the_command_with_all_its_children(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox()
    start = time.monotonic()
    command = "echo part; (setsid sleep 51 &); nohup sleep 51 >/dev/null & sleep 51"
    result = await box.exec(command, timeout=0.5)
    assert result.timed_out and result.exit_code == 124 and result.stdout == "part\n"
    assert time.monotonic() - start < 5
    assert (await box.exec("pgrep -c sleep || true")).stdout == "0\n"


async def test_cancelling_the_caller_kills_the_command(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox()
    task = asyncio.create_task(box.exec("sleep 52"))
    await asyncio.sleep(0.4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await box.exec("pgrep -c sleep || true")).stdout == "0\n"


async def test_a_background_process_neither_blocks_the_answer_nor_dies_with_the_command(
    make_sandbox: MakeSandbox,
) -> None:
    box = await make_sandbox()
    start = time.monotonic()
    assert (await box.exec("sleep 53 & echo done")).stdout == "done\n"
    assert time.monotonic() - start < 3
    assert (await box.exec("pgrep -c sleep")).stdout == "1\n"


async def test_files_go_in_and_out_without_running_anything(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    box = await make_sandbox()
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/file").write_bytes(os.urandom(300_000))
    (source / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/file")
    await box.put(source, "/data/copy")
    await box.put(source / "run.sh", "/data/one")
    assert (await box.exec("/data/copy/run.sh; /data/one; stat -c %U /data/one; readlink /data/copy/link")).stdout == (
        "hi\nhi\nroot\ndeep/file\n"
    )
    assert await box.get("/data/copy", tmp_path / "back") == []
    assert (tmp_path / "back/link").read_bytes() == (source / "deep/file").read_bytes()
    assert os.access(tmp_path / "back/run.sh", os.X_OK)
    await box.get("/data/one", tmp_path / "single")
    assert (tmp_path / "single").read_text().endswith("echo hi\n")
    await box.write_file("/a/b/c", b"\0\1")
    assert await box.read_file("/a/b/c") == b"\0\1"
    with pytest.raises(SandboxError, match="/no/such"):
        await box.get("/no/such", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        await box.put(tmp_path / "none", "/x")


async def test_writes_go_to_the_sandbox_alone(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir()
    (tmp_path / "ro/f").write_text("outside")
    (tmp_path / "rw").mkdir()
    binds = (Bind(str(tmp_path / "ro"), "/ro"), Bind(str(tmp_path / "rw"), "/rw", writable=True))
    box = await make_sandbox("one", binds=binds)
    other = await make_sandbox("two")
    assert (await box.exec("touch /usr/bin/rock-test-new && echo x > /etc/hostname && rm /usr/bin/env")).exit_code == 0
    assert not Path("/usr/bin/rock-test-new").exists() and Path("/usr/bin/env").exists()
    assert (await other.exec("test -e /usr/bin/env && ! test -e /usr/bin/rock-test-new")).exit_code == 0
    assert (await box.exec("echo x > /ro/f")).exit_code != 0
    assert (await box.exec("mount -o remount,rw,bind /ro && echo x > /ro/f")).exit_code != 0
    assert (tmp_path / "ro/f").read_text() == "outside"
    assert (await box.exec("cat /ro/f > /rw/g")).exit_code == 0
    assert (tmp_path / "rw/g").read_text() == "outside"
    assert (tmp_path / "rw/g").stat().st_uid == os.getuid()


async def test_limits_hold_for_all_processes_together(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox(limits=Limits(memory_bytes=128 << 20, cpus=0.5, pids=40))
    hog = await box.exec(["/usr/bin/python3", "-c", "x = b'x' * (400 << 20)"], timeout=60)
    assert hog.exit_code in (1, 137)
    forks = await box.exec("for i in $(seq 100); do sleep 2 & done; wait", timeout=60)
    assert "Resource temporarily unavailable" in forks.stderr
    assert (await box.exec("echo alive")).stdout == "alive\n"
    if "cpu" not in box.limits_missing:
        burn = "import time; s=time.time(); c=time.process_time\nwhile c() < 0.6: pass\nprint(time.time() - s)"
        wall = float((await box.exec(["/usr/bin/python3", "-c", burn], timeout=60)).stdout)
        assert wall > 0.9


async def test_the_time_limit_ends_a_sandbox(make_sandbox: MakeSandbox) -> None:
    box = await make_sandbox(limits=Limits(time_seconds=1))
    assert "time limit" in await asyncio.wait_for(box.wait(), 10)
    with pytest.raises(SandboxError, match="time limit"):
        await box.exec("true")


async def test_a_snapshot_starts_as_an_image(make_sandbox: MakeSandbox) -> None:
    first = await make_sandbox("first")
    await first.exec("mkdir /app && echo 1 > /app/v && ln -s v /app/l && rm /usr/bin/yes && chown nobody /app/v")
    lower = await first.snapshot()
    second = await make_sandbox("second", layers=(lower,))
    seen = await second.exec(
        "cat /app/l; stat -c %U /app/v; test -e /usr/bin/yes || echo gone; rm -r /app; mkdir /app; echo 2 > /app/w"
    )
    assert seen.stdout == "1\nnobody\ngone\n"
    upper = await second.snapshot()
    third = await make_sandbox("third", layers=(upper, lower))
    assert (await third.exec("ls /app; cat /app/w; test -e /usr/bin/yes || echo gone")).stdout == "w\n2\ngone\n"
    assert await first.snapshot() == lower  # same content, same layer


async def test_a_failed_start_says_why_and_leaves_nothing(local_root: LocalRoot, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder shall be mounted")
    for spec, message in [
        (SandboxSpec("x", binds=(Bind("/no/such", "/x"),)), "/no/such"),
        (SandboxSpec("x", layers=("/no/such",)), "/no/such"),
        (SandboxSpec("x", layers=(str(tmp_path),), binds=(Bind("/usr", "/data/x"),)), "mount point /data/x"),
    ]:
        box = NamespaceSandbox(local_root, spec)
        with pytest.raises(SandboxStartError, match=message):
            await box.start()
        assert list((local_root.folder / "run").iterdir()) == []
    with pytest.raises(ValueError, match="sandbox_id"):
        await NamespaceSandbox(local_root, SandboxSpec("../x")).start()
    with pytest.raises(ValueError, match="/proc/a"):
        await NamespaceSandbox(local_root, SandboxSpec("x", binds=(Bind("/usr", "/proc/a"),))).start()


async def test_two_sandboxes_cannot_share_an_id(make_sandbox: MakeSandbox, local_root: LocalRoot) -> None:
    await make_sandbox("same")
    with pytest.raises(SandboxStartError):
        await NamespaceSandbox(local_root, SandboxSpec("same")).start()
    with pytest.raises(SandboxStartError):
        await NamespaceSandbox(local_root, SandboxSpec("same")).start()


OWNER = """
import asyncio, sys
from rock.runtime.local import LocalRoot, NamespaceSandbox, SandboxSpec, Limits
async def main():
    box = NamespaceSandbox(LocalRoot(sys.argv[1]), SandboxSpec("orphan", limits=Limits(memory_bytes=64 << 20)))
    await box.start()
    await box.spawn("exec sleep 54.5")
    await asyncio.sleep(0.3)
    print(box.pid, flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_a_killed_owner_or_keeper_leaves_no_process_group_or_file(local_root: LocalRoot, victim: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(local_root.folder)], stdout=subprocess.PIPE, env=env, text=True
    )
    assert owner.stdout is not None
    init = int(owner.stdout.readline())
    if victim == "owner":
        owner.kill()
    else:
        stager = int(Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1])
        keeper = int(Path(f"/proc/{stager}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(keeper, 9)
    end = time.monotonic() + 10
    while Path(f"/proc/{init}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{init}").exists()
    owner.kill()
    owner.wait()
    assert subprocess.run(["pgrep", "-f", "^sleep 54.5"], capture_output=True).stdout == b""
    while time.monotonic() < end and victim == "owner" and any((local_root.folder / "run").iterdir()):
        time.sleep(0.02)
    removed = local_root.sweep()
    assert removed == (["orphan"] if victim == "keeper" else [])
    assert list((local_root.folder / "run").iterdir()) == []
    left = [path for path in Path("/sys/fs/cgroup").glob("*/**/rock-orphan") if path.is_dir()]
    assert left == []


def test_a_removal_that_is_interrupted_is_finished_by_the_next_sweep(
    local_root: LocalRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = local_root.run_folder("half")
    (run / "disk").mkdir(parents=True)
    for name in ("lock", "a", "z", "disk/b"):
        (run / name).write_text("")
    unlink, removed = os.unlink, []

    def cut_off(path: Any, **where: Any) -> None:
        if len(removed) == 2:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, **where)

    monkeypatch.setattr(os, "unlink", cut_off)
    with pytest.raises(KeyboardInterrupt):
        remove_run(run)
    monkeypatch.undo()
    assert (run / "lock").exists() and len(removed) == 2
    assert local_root.sweep() == ["half"] and not run.exists()


NESTED = """
import asyncio
from rock.runtime.local import LocalRoot, NamespaceSandbox, SandboxSpec
async def main():
    root = LocalRoot("/var/lib/rock")
    box = NamespaceSandbox(root, SandboxSpec("inner", network="host"))
    await box.start()
    seen = await box.exec("id -u; touch /usr/bin/new && echo written; pgrep -c python; cat /secret || echo hidden")
    await box.write_file("/app/f", b"1")
    layer = await box.snapshot()
    await box.stop()
    again = NamespaceSandbox(root, SandboxSpec("again", layers=(layer,), network="host"))
    await again.start()
    code = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:28080/hello').status)"
    port = await again.exec(["/usr/bin/python3", "-c", code])
    more = await again.exec("cat /app/f")
    await again.stop()
    print(repr((seen.stdout, port.stdout, port.stderr[-300:], more.stdout)))
asyncio.run(main())
"""


async def test_a_sandbox_in_a_sandbox_shares_only_the_network(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("x")
    binds = (Bind.of(SOURCE), Bind(str(tmp_path), "/www"))
    outer = await make_sandbox("outer", binds=binds)
    await outer.exec("echo outer > /secret")
    await outer.spawn(["/usr/bin/python3", "-m", "http.server", "28080", "--bind", "127.0.0.1", "--directory", "/www"])
    await asyncio.sleep(0.7)
    result = await outer.exec(["/usr/bin/python3", "-c", NESTED], env={"PYTHONPATH": str(SOURCE)}, timeout=60)
    assert result.exit_code == 0, result.stderr
    seen, port, problem, more = eval(result.stdout)
    assert seen == "0\nwritten\n1\nhidden\n" and more == "1"
    assert port == "200\n", problem
    assert (await outer.exec("ls /var/lib/rock/run; test -e /usr/bin/new || echo untouched")).stdout == "untouched\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_user_without_rights_gets_a_sandbox_too(rock_state: Path) -> None:
    python = "/usr/bin/python3"
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True, text=True
    )
    if version.stdout.strip() != "True":
        pytest.skip("the system's Python is older than 3.11")
    reachable = subprocess.run(
        ["setpriv", "--reuid", "65534", "--clear-groups", "test", "-r", str(SOURCE / "rock/__init__.py")]
    )
    if reachable.returncode != 0:
        pytest.skip("the checkout is not readable for other users")
    rock_state.chmod(0o755)
    (rock_state / "u").mkdir()
    os.chown(rock_state / "u", 65534, 65534)
    code = NESTED.replace("/var/lib/rock", str(rock_state / "u/state")).replace('network="host"', 'network="none"')
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-c", code],
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen, _, _, more = eval(done.stdout)
    assert seen == "0\nwritten\n1\nhidden\n" and more == "1"
    assert list((rock_state / "u/state/run").iterdir()) == []
