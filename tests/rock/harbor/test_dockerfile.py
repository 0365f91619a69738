"""Reading Dockerfiles: what is accepted becomes steps, the rest is refused with line and reason."""

from __future__ import annotations

import textwrap

import pytest

from rock.harbor.dockerfile import CopyStep, DockerfileError, FolderStep, RunStep, read_dockerfile


def read(tmp_path, text, **options):
    path = tmp_path / "Dockerfile"
    path.write_text(textwrap.dedent(text))
    return read_dockerfile(path, **options)


def test_instructions_become_steps_with_their_context(tmp_path):
    found = read(
        tmp_path,
        r"""
        # syntax=docker/dockerfile:1
        ARG VERSION=3.11
        FROM --platform=linux/amd64 python:${VERSION}-slim AS base
        ENV NAME=value OTHER="two words" PATH=/opt/bin:$PATH
        ENV OLD style value
        WORKDIR /work
        WORKDIR sub
        SHELL ["/bin/bash", "-o", "pipefail", "-c"]
        # a comment between
        RUN echo one \
            # inside a continuation
            && echo "$NAME"
        USER nobody
        COPY --chmod=755 --chown=1:1 a.txt b.txt /target/
        ADD data.tar.gz relative
        RUN ["/bin/echo", "exec form"]
        CMD ["bash"]
        """,
        base_env={"PATH": "/bin"},
    )
    assert found.image == "python:3.11-slim"
    assert found.final.env == {"PATH": "/opt/bin:/bin", "NAME": "value", "OTHER": "two words", "OLD": "style value"}
    assert (found.final.workdir, found.final.user) == ("/work/sub", "nobody")
    folders = [step.path for step in found.steps if isinstance(step, FolderStep)]
    runs = [step for step in found.steps if isinstance(step, RunStep)]
    copies = [step for step in found.steps if isinstance(step, CopyStep)]
    assert folders == ["/work", "/work/sub"]
    assert runs[0].command.split() == ["echo", "one", "&&", "echo", '"$NAME"'] and runs[0].context.user == ""
    assert runs[0].context.shell == ("/bin/bash", "-o", "pipefail", "-c")
    assert runs[1].command == ("/bin/echo", "exec form") and runs[1].context.user == "nobody"
    assert (copies[0].sources, copies[0].target, copies[0].mode, copies[0].owner) == (
        ("a.txt", "b.txt"),
        "/target/",
        0o755,
        "1:1",
    )
    assert copies[1].unpack and copies[1].target == "/work/sub/relative"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A:-x}", "x"),
        ("${B:-x}", "b"),
        ("${B:+x}", "x"),
        ("${A:+x}", ""),
        ("${A:-${B}}", "b"),
        (r"\$B", "$B"),
        ("$B/$A.", "b/."),
    ],
)
def test_variables_are_substituted_as_docker_does(tmp_path, text, value):
    assert read(tmp_path, f"FROM x\nENV B=b\nENV OUT={text}\n").final.env["OUT"] == value


def test_build_arguments_win_over_defaults_and_do_not_survive_the_build(tmp_path):
    text = "FROM x\nARG A=default\nARG B\nRUN echo\nENV C=$A$B\n"
    assert read(tmp_path, text).final.env == {"C": "default"}
    assert read(tmp_path, text, build_args={"A": "1", "B": "2"}).final.env == {"C": "12"}


def test_here_documents_of_run_are_kept(tmp_path):
    found = read(tmp_path, "FROM x\nRUN <<EOF\necho one\nFROM nothing\nEOF\nRUN echo two\n")
    assert [step.command for step in found.steps] == ["<<EOF\necho one\nFROM nothing\nEOF", "echo two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RUN echo\n", "line 1: RUN stands before FROM"),
        ("", "no FROM"),
        ("FROM a\nFROM b\n", "line 2: a second FROM"),
        ("FROM a\nCOPY --from=b x y\n", "line 2: option --from=b"),
        ("FROM a\nADD https://example.org/x /x\n", "only files of the build folder"),
        ("FROM a\nONBUILD RUN x\n", "instruction ONBUILD"),
        ("FROM a\nRUN --mount=type=secret,id=x cat\n", "--mount=type=secret"),
        ("FROM a\nCOPY <<EOF /x\ntext\nEOF\n", "here-documents"),
        ("FROM a\nENV 1x=2\n", "ENV '1x=2'"),
        ('FROM a\nCOPY "x y\n', "unbalanced quotes"),
        ("FROM a b\n", "FROM image"),
    ],
)
def test_what_is_not_supported_is_refused_with_line_and_reason(tmp_path, text, words):
    with pytest.raises(DockerfileError, match=words.replace("(", r"\(")):
        read(tmp_path, text)
