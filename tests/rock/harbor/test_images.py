"""Dockerfiles become layers that are built once."""

from __future__ import annotations

import io
import tarfile
import textwrap
import time

import pytest

from rock.harbor.dockerfile import DockerfileError
from rock.harbor.images import ImageBuilder, ImageError, StandIn, resolve_image
from rock.runtime.local import LocalRoot, NamespaceSandbox, SandboxSpec

pytestmark = [pytest.mark.namespaces]


@pytest.fixture
def image_folder(tmp_path):
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / "tree" / "below").mkdir(parents=True)
    (folder / "tree" / "below" / "b.sh").write_text("#!/bin/sh\necho from b\n")
    (folder / "tree" / "below" / "b.sh").chmod(0o755)
    with tarfile.open(folder / "packed.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("inside/c.txt")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"c\n"))
    return folder


def write(folder, text):
    (folder / "Dockerfile").write_text(textwrap.dedent(text))


async def look(root, image, command):
    sandbox = NamespaceSandbox(root, SandboxSpec("look", layers=image.layers, env=image.env, workdir=image.workdir))
    await sandbox.start()
    try:
        return await sandbox.exec(command, user=image.user or None)
    finally:
        await sandbox.stop()


async def test_files_commands_variables_and_users_end_up_in_the_image(rock_state, image_folder):
    write(
        image_folder,
        """
        FROM debian:bookworm-slim
        ARG WORD=hello
        ENV GREETING=$WORD PATH=/opt/tree/below:$PATH
        WORKDIR /work
        COPY a.txt .
        COPY *.txt /globbed/
        COPY tree /opt/tree
        ADD packed.tar.gz /unpacked
        RUN echo "$GREETING $WORD" > made && useradd -m worker && chown worker made
        COPY --chmod=600 --chown=worker a.txt private.txt
        USER worker
        RUN id -un > "$HOME/who" && cat made >> "$HOME/who"
        """,
    )
    root = LocalRoot(rock_state)
    image = await ImageBuilder(root).build(image_folder)
    assert (image.workdir, image.user, image.env["GREETING"]) == ("/work", "worker", "hello")
    command = "cat a.txt /globbed/a.txt /unpacked/inside/c.txt ~worker/who; stat -c '%U %a' private.txt; b.sh; id -un; echo ${WORD-none}"
    done = await look(root, image, command)
    assert done.stdout.split("\n")[:-1] == [
        "one", "one", "c", "worker", "hello hello", "worker 600", "from b", "worker", "none"
    ]  # fmt: skip


async def test_a_second_build_takes_no_time_and_a_changed_file_builds_anew(rock_state, image_folder):
    write(
        image_folder,
        "FROM debian\nRUN sleep 1 && date +%N > /stamp\nCOPY a.txt /a.txt\nRUN cat /a.txt /stamp > /both\n",
    )
    root = LocalRoot(rock_state)
    first = await ImageBuilder(root).build(image_folder)
    started = time.monotonic()
    assert await ImageBuilder(root).build(image_folder) == first
    assert time.monotonic() - started < 0.3
    (image_folder / "a.txt").write_text("two\n")
    second = await ImageBuilder(root).build(image_folder)
    assert second.layers != first.layers and second.layers[-1] == first.layers[-1]
    assert (await look(root, second, "head -n 1 /both")).stdout == "two\n"
    forced = await ImageBuilder(root).build(image_folder, force=True)
    assert forced.layers[-1] != second.layers[-1]


async def test_layers_of_a_read_only_store_are_used_and_nothing_is_written_there(rock_state, image_folder, tmp_path):
    write(image_folder, "FROM debian\nRUN echo x > /x\n")
    store = rock_state / "store"
    built = await ImageBuilder(LocalRoot(store)).build(image_folder)
    before = sorted(path.name for path in store.rglob("*"))
    own = LocalRoot(rock_state / "own")
    found = await ImageBuilder(own, stores=[store]).build(image_folder)
    assert found == built and not list((own.folder / "layers").iterdir())
    assert sorted(path.name for path in store.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (
            "FROM debian\nRUN echo broken >&2; exit 7\n",
            ImageError,
            "line 2 of the Dockerfile failed with exit code 7: broken",
        ),
        ("FROM debian\nCOPY none.txt /\n", DockerfileError, "line 2: COPY source 'none.txt' does not exist"),
        ("FROM debian\nCOPY ../x /\n", DockerfileError, "outside the build folder"),
        ("FROM registry.example/some:thing\n", ImageError, "stand_ins"),
        ("FROM python:2.2\n", ImageError, "Python 2.2"),
    ],
)
async def test_what_cannot_be_built_says_why_and_leaves_no_layer(rock_state, image_folder, text, error, words):
    write(image_folder, text)
    root = LocalRoot(rock_state)
    with pytest.raises(error, match=words):
        await ImageBuilder(root).build(image_folder)
    assert not (root.folder / "built").exists() and not list((root.folder / "run").iterdir())


async def test_a_step_that_never_ends_is_stopped_at_the_deadline_of_the_build(rock_state, image_folder):
    write(image_folder, "FROM debian\nRUN sleep 600\n")
    with pytest.raises(ImageError, match="build_timeout_sec"):
        await ImageBuilder(LocalRoot(rock_state), timeout=1).build(image_folder)


def test_declared_stand_ins_win_and_patterns_match():
    declared = {"registry.example/*": StandIn(base="scratch"), "python:*": StandIn(env={"X": "1"})}
    assert resolve_image("registry.example/a:1", declared).base == "scratch"
    assert resolve_image("python:3.11", declared).env == {"X": "1"}
    assert resolve_image("ubuntu:24.04").base == "host"


@pytest.mark.parametrize("place", ["/work", "/usr/local/share/work"], ids=["assembled", "by a sandbox"])
async def test_placing_files_without_commands_gives_the_same_image_with_and_without_a_sandbox(
    rock_state, image_folder, place
):
    write(
        image_folder,
        f"""
        FROM debian
        WORKDIR {place}
        COPY a.txt renamed.txt
        COPY a.txt .
        COPY tree {place}/tree
        ADD packed.tar.gz unpacked
        COPY --chmod=640 a.txt secret/
        COPY a.txt {place}
        """,
    )
    root = LocalRoot(rock_state)
    image = await ImageBuilder(root).build(image_folder)
    done = await look(root, image, "find . -type f -exec stat -c '%n %a %u' {} + | sort; tree/below/b.sh")
    assert done.stdout.splitlines() == [
        "./a.txt 644 0",
        "./renamed.txt 644 0",
        "./secret/a.txt 640 0",
        "./tree/below/b.sh 755 0",
        "./unpacked/inside/c.txt 644 0",
        "from b",
    ]


async def test_a_link_below_is_followed_inside_the_image_and_never_on_this_machine(rock_state, image_folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    write(
        image_folder,
        f"FROM debian\nRUN mkdir -p /real {outside} && ln -s /real /link && ln -s {outside} /out\nCOPY a.txt /link/\nCOPY a.txt /out/\n",
    )
    root = LocalRoot(rock_state)
    image = await ImageBuilder(root).build(image_folder)
    assert (await look(root, image, f"cat /real/a.txt {outside}/a.txt")).stdout == "one\none\n"
    assert list(outside.iterdir()) == []
