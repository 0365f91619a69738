"""The documents: links lead somewhere, keys and files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "docs/cookbook/*.md", "rock*/README.md", "tinker-backend/README.md")
    for page in (*ROOT.glob(pattern), *(ROOT / "tutorials").glob("*.md"))
)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted(set(PAGES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links {target}"
        assert not anchor or anchor in headings(file), f"{file.name} has no heading {anchor}"


@pytest.mark.parametrize("folder", ["rock", "rock-tinker", "tinker-backend"])
def test_a_package_says_how_to_begin(folder: str) -> None:
    page = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    assert f"./{folder}" in page and "pip install" in page and "```" in page


def test_the_readme_of_the_server_names_keys_and_defaults_that_exist(tmp_path: Path) -> None:
    config = pytest.importorskip("tinker_backend.config")
    page = (ROOT / "tinker-backend" / "README.md").read_text(encoding="utf-8")
    for file, content in re.findall(r"(?m)^echo '(.*)' > (\S+)$", page):
        (tmp_path / content).write_text(file + "\n", encoding="utf-8")
    runtime = config.RuntimeConfig.load(tmp_path / "runtime.yaml")
    engine = config.EngineConfig.load(tmp_path / "engine.yaml")
    for title, document in (("runtime.yaml", runtime), ("engine.yaml", engine)):
        section = page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
        rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
        assert len(rows) > 5
        for keys, defaults in rows:
            names = re.findall(r"`([\w.]+?)(?:\.\*)?`", keys)
            given = [part.strip() for part in defaults.split(",")]
            for index, name in enumerate(names):
                value = document
                for part in name.split("."):
                    value = getattr(value, part)
                if len(given) == len(names) and isinstance(value, str | int) and not isinstance(value, bool):
                    plain = given[index].strip("`")
                    assert name == "pretrain" or plain == str(value), f"{name} is {value}, the page says {plain}"


def test_the_quick_starts_of_both_languages_show_the_same_commands() -> None:
    blocks = {
        language: re.findall(r"(?ms)^```bash\n(.*?)^```", (ROOT / "docs" / name).read_text(encoding="utf-8"))
        for language, name in (("en", "quick-start.md"), ("zh", "quick-start.zh.md"))
    }
    bare = {language: [re.sub(r"[ \t]*(?<!\$)#.*", "", block) for block in found] for language, found in blocks.items()}
    assert bare["en"] == bare["zh"]
    files = {
        name: set(
            re.findall(r"`([\w./-]+\.(?:ya?ml|json|log|md|txt|sh|py))`", (ROOT / "docs" / name).read_text("utf-8"))
        )
        for name in ("quick-start.md", "quick-start.zh.md")
    }
    assert files["quick-start.md"] == files["quick-start.zh.md"]


def test_the_templates_of_the_examples_are_yaml() -> None:
    for path in (ROOT / "examples").rglob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path
