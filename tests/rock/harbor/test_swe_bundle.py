"""SWE-agent as an archive with a Python of its own: built from a folder, a tarball or git, pinned, and refused when it is not that."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from rock.harbor.swe_bundle import BundleError, build_bundle, check_archive, fetch_source, file_digest, tree_digest
from rock.runtime.local import Bind, LocalRoot, NamespaceSandbox, SandboxSpec

SETUP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "sweagent"
version = "1.1.0"
[tool.hatch.build.targets.wheel]
packages = ["sweagent"]
"""
RUN = """
import json, os, ssl, subprocess, sys
seen = subprocess.run(["sh", "-c", "echo ${LD_LIBRARY_PATH-none} ${PYTHONPATH-none}"], capture_output=True, text=True).stdout
print(json.dumps({"arguments": sys.argv[1:], "prefix": sys.prefix, "child": seen.strip(), "tools": os.environ["SWE_AGENT_TOOLS_DIR"]}))
"""


@pytest.fixture(scope="module")
def agent_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of SWE-agent's shape."""
    folder = tmp_path_factory.mktemp("source") / "SWE-agent"
    files = {
        "pyproject.toml": SETUP,
        "sweagent/__init__.py": "",
        "sweagent/run/__init__.py": "",
        "sweagent/run/run.py": RUN,
        "config/default.yaml": "agent: {}\n",
        "tools/edit/install.sh": "#!/bin/sh\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def no_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty lock: the source is built with what is installed here."""
    path = tmp_path_factory.mktemp("lock") / "requirements.txt"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def agent_bundle(agent_source: Path, no_packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    output = tmp_path_factory.mktemp("bundle") / "sweagent.tar.gz"
    made = build_bundle(str(agent_source), output, sha256=tree_digest(agent_source), requirements=no_packages)
    assert made["kind"] == "folder" and made["sha256"] == file_digest(output)
    assert output.with_name("sweagent.tar.gz.sha256").read_text().split() == [made["sha256"], "sweagent.tar.gz"]
    check_archive(output)
    return output


@pytest.mark.slow
@pytest.mark.namespaces
async def test_the_bundle_runs_in_a_container_and_its_commands_see_the_task_s_python(
    agent_bundle: Path, rock_state: Path
) -> None:
    spec = SandboxSpec("bundle", binds=(Bind(str(agent_bundle), "/tmp/bundle.tar.gz"),))
    sandbox = NamespaceSandbox(LocalRoot(rock_state), spec)
    await sandbox.start()
    try:
        done = await sandbox.exec("tar -xzf /tmp/bundle.tar.gz -C / --no-same-owner", timeout=120)
        assert done.exit_code == 0, done.stderr
        done = await sandbox.exec("/opt/sweagent-venv/bin/sweagent run --x 1", timeout=60)
        assert done.exit_code == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen == {
            "arguments": ["run", "--x", "1"],
            "prefix": "/opt/sweagent/python",
            "child": "none none",
            "tools": "/opt/sweagent/source/tools",
        }
        listed = await sandbox.exec("cat /opt/sweagent-configs/default.yaml; cat /opt/sweagent/bundle.json")
        assert listed.stdout.startswith("agent: {}") and json.loads(listed.stdout.partition("\n")[2])["format"] == 1
    finally:
        await sandbox.stop()


def test_a_tarball_and_a_git_commit_give_the_same_source_as_the_folder(agent_source: Path, tmp_path: Path) -> None:
    tarball = tmp_path / "SWE-agent-1.1.0.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(agent_source, "SWE-agent-1.1.0")
    made = fetch_source(str(tarball), tmp_path / "a", None, file_digest(tarball))
    assert (made["kind"], made["tarball_sha256"]) == ("tarball", file_digest(tarball))
    clone = tmp_path / "clone"
    subprocess.run(["cp", "-r", str(agent_source), str(clone)], check=True)
    git = ["git", "-C", str(clone), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    made = fetch_source(f"file://{clone}", tmp_path / "b", commit, tree_digest(agent_source))
    assert (made["kind"], made["commit"]) == ("git", commit)
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b") == tree_digest(agent_source)
    with pytest.raises(BundleError, match="pinned is 0000"):
        fetch_source(f"file://{clone}", tmp_path / "c", commit, "0" * 64)


def test_packages_that_were_installed_before_go_into_the_archive_and_nothing_is_installed(
    agent_source: Path, tmp_path: Path
) -> None:
    packages, output = tmp_path / "packages", tmp_path / "sweagent.tar.gz"
    packages.mkdir()
    pinned = tree_digest(agent_source)
    with pytest.raises(BundleError, match="has no sweagent"):
        build_bundle(str(agent_source), output, sha256=pinned, packages=packages)
    shutil.copytree(agent_source / "sweagent", packages / "sweagent")
    (packages / "yaml-6.0.dist-info").mkdir()
    made = build_bundle(str(agent_source), output, sha256=pinned, packages=packages)
    assert made["packages"] == ["yaml-6.0"]
    with tarfile.open(output) as archive:
        names = archive.getnames()
    site = f"opt/sweagent/python/lib/python3.{sys.version_info.minor}/site-packages"
    assert f"{site}/sweagent/run/run.py" in names and f"{site}/pip" not in names


def test_a_source_that_is_not_pinned_or_not_the_pinned_one_is_refused(agent_source: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.tar.gz"
    with pytest.raises(BundleError, match=f"not pinned: give --sha256 {tree_digest(agent_source)}"):
        build_bundle(str(agent_source), output)
    with pytest.raises(BundleError, match="pinned is 0000"):
        build_bundle(str(agent_source), output, sha256="0" * 64)
    with pytest.raises(BundleError, match="full commit"):
        build_bundle("https://127.0.0.1/SWE-agent.git", output, commit="v1.1.0")
    with pytest.raises(BundleError, match="no folder, no file and no git URL"):
        build_bundle(str(tmp_path / "nothing"), output, sha256="0" * 64)
    (tmp_path / "other").mkdir()
    with pytest.raises(BundleError, match="no source of SWE-agent"):
        build_bundle(str(tmp_path / "other"), output, sha256=tree_digest(tmp_path / "other"))
    assert not output.exists()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (_member("/etc/passwd"), "leads outside"),
        (_member("opt/sweagent/../../etc/x"), "leads outside"),
        (_member("testbed/conftest.py"), "lies outside"),
        (_member("tests/test.sh"), "lies outside"),
        (_member("opt/sweagent/x", tarfile.SYMTYPE, "/etc"), "leads outside"),
        (_member("opt/sweagent/x", tarfile.SYMTYPE, "../../tests"), "leads outside"),
        (_member("opt/sweagent/x", tarfile.LNKTYPE, "etc/passwd"), "leads outside"),
        (_member("opt/sweagent/x", tarfile.CHRTYPE), "device"),
    ],
)
def test_an_archive_that_could_write_elsewhere_is_refused(
    tmp_path: Path, member: tarfile.TarInfo, message: str
) -> None:
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(_member("opt/sweagent/fine"), io.BytesIO())
        archive.addfile(member, io.BytesIO())
    with pytest.raises(BundleError, match=message):
        check_archive(path)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = _member("opt/sweagent/big")
        member.size = 1 << 20
        archive.addfile(member, io.BytesIO(os.urandom(1 << 20)))
    path.write_bytes(path.read_bytes()[: 1 << 19])
    with pytest.raises(BundleError, match="no complete tar archive"):
        check_archive(path)


INSTALL = """
import asyncio, json, pathlib, sys, tempfile
from rock.harbor.swe_agent import BudgetedSweAgent
class Container:
    default_user = None
    done = []
    async def upload_file(self, source, target): self.done.append(["upload", str(target)])
    async def exec(self, command, **options):
        self.done.append(["exec", command])
        class Result: return_code, stdout, stderr = 0, "", ""
        return Result
try:
    agent = BudgetedSweAgent(pathlib.Path(tempfile.mkdtemp()), model_name="openai/local", **json.loads(sys.argv[1]))
    asyncio.run(agent.install(Container()))
    print(json.dumps(Container.done))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.harbor
@pytest.mark.slow
def test_the_agent_takes_only_the_pinned_bundle(agent_bundle: Path, harbor_python: str, tmp_path: Path) -> None:
    def install(**kwargs: str) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3] / "rock/src"),
            "HARBOR_TELEMETRY": "off",
        }
        words = [harbor_python, "-c", INSTALL, json.dumps(kwargs)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    digest = file_digest(agent_bundle)
    uploaded, unpacked = json.loads(install(bundle=str(agent_bundle), bundle_sha256=digest))
    assert (
        uploaded == ["upload", "/tmp/sweagent-bundle.tar.gz"] and "tar -xzf" in unpacked[1] and "uv" not in unpacked[1]
    )
    assert "/tests holds files" in unpacked[1]
    assert "pinned is" in install(bundle=str(agent_bundle), bundle_sha256="0" * 64)
    assert "'bundle_sha256' is None" in install(bundle=str(agent_bundle))
    assert "is not there" in install(bundle=str(tmp_path / "none"), bundle_sha256=digest)
