"""The snippets of the concept pages and of the SDK's README run, each page as one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted((REPOSITORY / "docs" / "cookbook" / "concepts").glob("*.md"))
PROGRAMS = [*PAGES, REPOSITORY / "rock-tinker" / "README.md"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(
    page: Path, tutorial_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    snippets = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text(encoding="utf-8"))
    assert snippets, f"{page.name} shows no code"
    for name in ("TINKER_BASE_URL", "TINKER_MODELS_DIR"):
        monkeypatch.setenv(name, tutorial_environment[name])
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
    exec(compile("\n".join(snippets), str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_overview_lists_every_page() -> None:
    index = (REPOSITORY / "docs" / "tutorials.md").read_text(encoding="utf-8")
    assert set(re.findall(r"concepts/([\w-]+\.md)", index)) == {page.name for page in PAGES}
