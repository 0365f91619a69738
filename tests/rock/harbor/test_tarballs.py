"""Archives of others are unpacked below one folder, with and without the data filter of the standard library."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rock.harbor.tarballs import extract_below, extract_checked

Entry = tuple[str, bytes, str, int]
"""Name, type, content or target of a link, mode."""
FINE: list[Entry] = [
    ("src", tarfile.DIRTYPE, "", 0o777),
    ("src/run", tarfile.REGTYPE, "x" * 3000, 0o4755),
    ("src/text", tarfile.REGTYPE, "words", 0o666),
    ("src/deep/er/file", tarfile.REGTYPE, "deep", 0o600),
    ("/absolute", tarfile.REGTYPE, "made relative", 0o644),
    ("link", tarfile.SYMTYPE, "src/text", 0o777),
    ("src/up", tarfile.SYMTYPE, "../absolute", 0o777),
    ("hard", tarfile.LNKTYPE, "src/text", 0o644),
    ("folder", tarfile.SYMTYPE, "src/deep", 0o777),
    ("folder/through", tarfile.REGTYPE, "a link to a folder inside", 0o644),
]


def archive(path: Path, entries: list[Entry]) -> tarfile.TarFile:
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, text, mode in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.gid, member.uname = kind, mode, 4321, 4321, "nobody-of-here"
            if kind == tarfile.REGTYPE:
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
            else:
                member.linkname = text
                tar.addfile(member)
    return tarfile.open(path)


def tree(folder: Path) -> dict[str, tuple[str, bool, int]]:
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "/",
            bool(path.lstat().st_mode & 0o6100),
            path.lstat().st_uid,
        )
        for path in folder.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


def test_what_is_fine_is_unpacked_alike(tmp_path: Path) -> None:
    for name, extract in (("below", extract_below), ("checked", extract_checked)):
        with archive(tmp_path / "fine.tar.gz", FINE) as tar:
            extract(tar, tmp_path / name)
    found = tree(tmp_path / "checked")
    assert found == tree(tmp_path / "below")
    assert found["hard"][0] == "words" and found["src/deep/through"][0] == "a link to a folder inside"
    assert {owner for *_, owner in found.values()} == {os.getuid()}
    assert (tmp_path / "checked/src/run").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("extract", [extract_below, extract_checked])
@pytest.mark.parametrize(
    "entries",
    [
        [("../out", tarfile.REGTYPE, "x", 0o644)],
        [("a/../../out", tarfile.REGTYPE, "x", 0o644)],
        [("out", tarfile.SYMTYPE, "/etc", 0o777)],
        [("out", tarfile.SYMTYPE, "../..", 0o777)],
        [
            ("a", tarfile.DIRTYPE, "", 0o755),
            ("b", tarfile.SYMTYPE, "a/..", 0o777),
            ("b/c", tarfile.SYMTYPE, "../x", 0o777),
        ],
        [("hard", tarfile.LNKTYPE, "../secret", 0o644)],
        [("null", tarfile.CHRTYPE, "", 0o644)],
        [("pipe", tarfile.FIFOTYPE, "", 0o644)],
    ],
    ids=lambda entries: entries[-1][0],
)
def test_what_leads_outside_is_refused(
    extract: Callable[[tarfile.TarFile, Path], None], entries: list[Entry], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    with archive(tmp_path / "bad.tar.gz", entries) as tar, pytest.raises(tarfile.TarError):
        extract(tar, tmp_path / "below" / "here")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "below") == ["bad.tar.gz", "secret"]
