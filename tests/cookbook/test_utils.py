"""Reports, spans, loggers, costs, deprecated names, checkpoint records, images and model cards."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook import weights
from tinker_cookbook.checkpoint_utils import CheckpointRecord
from tinker_cookbook.exceptions import WeightsNotFoundError
from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.utils import cost_estimation, deprecation, logtree, misc_utils, ml_log, trace
from tinker_cookbook.utils.cost_estimation import CostTracker, TokenCostRates, TokenUsage
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter


def test_a_report_is_a_page_and_a_tree_of_the_same_things(tmp_path: Path) -> None:
    with logtree.init_trace("A & B", tmp_path / "report.html") as report:
        logtree.log_text("one < two")
        with logtree.scope_header("Part", id="p"):
            logtree.header("Inside")
            with logtree.scope_div(class_="mine"):
                logtree.table([{"a": 1, "b": 2.5}, {"a": 3}], caption="Numbers")
        logtree.table_from_dict({"y": 1, "x": 2}, sort_by="key")
        logtree.log_formatter(ConversationFormatter([{"role": "user", "content": "hi"}]))
    page = (tmp_path / "report.html").read_text()
    assert "<title>A &amp; B</title>" in page and '<p class="lt-p">one &lt; two</p>' in page
    assert '<section class="lt-section" id="p">' in page and '<h3 class="lt-h3">Inside</h3>' in page
    assert page.index("<td>x</td>") < page.index("<td>y</td>") and page.count(".lt-conversation {") == 1
    tree = json.loads((tmp_path / "report_logtree.json").read_text())
    assert tree == json.loads(json.dumps(report.to_dict())) and tree["root"]["tag"] == "body"
    drawn = tree["root"]["children"][-1]
    assert drawn["data"]["messages"] == [{"role": "user", "content": "hi"}] and drawn["children"] == []
    section = next(child for child in tree["root"]["children"] if child["tag"] == "section")
    assert [child["tag"] for child in section["children"]] == ["h2", "div"]


def test_a_failed_block_shows_its_exception_unless_told_not_to(tmp_path: Path) -> None:
    for name, keep in (("kept", True), ("dropped", False)):
        with (
            pytest.raises(RuntimeError),
            logtree.init_trace(name, tmp_path / f"{name}.html", write_on_error=keep),
        ):
            raise RuntimeError("boom")
    assert "Exception: RuntimeError: boom" in (tmp_path / "kept.html").read_text()
    assert not (tmp_path / "dropped.html").exists()
    logtree.log_text("outside a report nothing happens")
    assert logtree.flush_trace() is False


def test_a_page_takes_a_theme_and_a_template_of_its_own(tmp_path: Path) -> None:
    theme = logtree.Theme(css_text=".x{}", css_urls=["a.css"], css_vars={"--lt-accent": "red"})
    logtree.write_html_with_default_style(
        "<p>x</p>", tmp_path / "p.html", theme=theme, lang="de", extra_head="<!--e-->"
    )
    page = (tmp_path / "p.html").read_text()
    for piece in ('lang="de"', 'href="a.css"', ".x{}", "--lt-accent: red;", "<!--e-->", "<body>\n<p>x</p>"):
        assert piece in page

    class Environment:
        def get_template(self, name: str) -> Any:
            return types.SimpleNamespace(render=lambda **values: f"{name}:{values['title']}:{values['note']}")

    with logtree.init_trace("T") as report:
        logtree.log_text("a")
    context = logtree.jinja_context(report, note="n")
    assert context["body_html"] == report.body_html() and "<body" not in report.body_html(wrap_body=False)
    assert logtree.render_with_jinja(Environment(), "t", context=context, write_to=tmp_path / "t") == "t:T:n"
    assert (tmp_path / "t").read_text() == "t:T:n"


def test_sections_from_functions_and_their_coroutines() -> None:
    @logtree.scope_header_decorator("Named")
    async def first() -> None:
        logtree.log_text("1")

    @logtree.scope_header_decorator
    def second() -> None:
        logtree.log_text("2")

    with logtree.init_trace("T") as report:
        asyncio.run(first())
        second()
    assert "Named" in report.body_html() and '<h2 class="lt-h2">second</h2>' in report.body_html()


def test_spans_become_metrics_and_rows_of_files(tmp_path: Path) -> None:
    with trace.trace_iteration(3) as window:
        with trace.scope_span_sync("once"):
            pass
        window.record_span("twice", 10.0, 11.0)
        window.record_span("twice", 12.0, 15.0)
        assert "time/total" not in window.get_timing_metrics()
    metrics = window.get_timing_metrics()
    assert metrics["time/total"] > 0 and metrics["time/once"] >= 0
    assert [metrics[f"time/twice:{key}"] for key in ("total", "count", "mean", "max")] == [4.0, 2, 2.0, 3.0]
    other = trace.IterationWindow()
    other.merge_spans(window.spans[1:])
    assert [row["wall_start"] for row in other.get_span_dicts()] == [0.0, 2.0]
    assert [row["task"] for row in other.get_span_records()] == ["twice", "twice"]
    store = TrainingRunStore.local(tmp_path)
    other.save_timing(3, store=store)
    other.write_spans_jsonl(tmp_path / "timing_spans.jsonl", 4)
    trace.IterationWindow().write_spans_jsonl(tmp_path / "timing_spans.jsonl", 5)
    rows = store.read_timing()
    assert [row["step"] for row in rows] == [3, 4] and rows[0]["spans"] == rows[1]["spans"] == other.get_span_dicts()


def test_spans_are_written_as_nested_trace_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @trace.scope
    async def outer() -> None:
        trace.update_scope_context({"tokens": 7})
        async with trace.scope_span("inner"):
            await asyncio.sleep(0)

    assert trace.scope(outer) is outer
    trace.trace_init(flush_interval_sec=0.01, output_file=tmp_path / "events.jsonl")
    asyncio.run(outer())
    trace.trace_shutdown()
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path / "events.jsonl"), str(tmp_path / "events.json")])
    trace.convert_jsonl_to_json_main()
    events = json.loads((tmp_path / "events.json").read_text())
    spans = [event for event in events if event["ph"] != "M"]
    assert [(e["name"], e["ph"]) for e in spans] == [("outer", "B"), ("inner", "B"), ("inner", "E"), ("outer", "E")]
    assert spans[-1]["args"]["tokens"] == 7 and [e["ts"] for e in spans] == sorted(e["ts"] for e in spans)
    assert {e["name"] for e in events if e["ph"] == "M"} == {"process_name", "thread_name"}


class Recorder(ml_log.Logger):
    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, Any]]] = []

    def log_hparams(self, config: Any) -> None:
        self.rows.append((None, dict(config)))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.rows.append((step, metrics))


def test_events_have_a_step_of_their_own_in_every_destination(tmp_path: Path) -> None:
    recorder, files = Recorder(), ml_log.JsonLogger(tmp_path)
    both = ml_log.MultiplexLogger([recorder, files])
    both.enable_event_steps()
    both.log_metrics_event({"score": 0.5}, 7, "eval/samples")
    assert recorder.rows == [(7, {"score": 0.5, "eval/samples": 7})]
    assert files.store.read_metrics() == [{"step": 7, "score": 0.5, "eval/samples": 7}] and both.store is files.store
    both.log_summary({"best": 1})
    assert files.store.read_metrics()[-1] == {"best": 1}


def test_the_wandb_destination_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    class Run:
        id, url = "run-1", "https://wandb.example/run-1"
        config = types.SimpleNamespace(update=lambda values, **_: calls.append(("config", values)))

        def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
            calls.append(("log", (dict(metrics), step)))

        def define_metric(self, name: str, **options: Any) -> None:
            calls.append(("axis", (name, options.get("step_metric"))))

    module = types.ModuleType("wandb")
    module.init = lambda **options: calls.append(("init", options)) or Run()  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "wandb", module)
    first = ml_log.WandbLogger("p", {"lr": 1}, tmp_path, "name")
    first.log_metrics({"x": 1}, step=2)
    first.enable_event_steps()
    first.log_metrics({"x": 2}, step=3)
    first.log_metrics_event({"score": 1}, 9, "samples", {"score": "tokens"})
    assert ("config", {"lr": 1}) in calls and ("axis", ("score", "tokens")) in calls
    assert [row for kind, row in calls if kind == "log"] == [
        ({"x": 1}, 2),
        ({"x": 2, "step": 3}, None),
        ({"score": 1, "samples": 9}, None),
    ]
    ml_log.WandbLogger(log_dir=tmp_path)
    starts = [options for kind, options in calls if kind == "init"]
    assert (starts[0]["id"], starts[1]["id"], starts[1]["resume"]) == (None, "run-1", "allow")


def test_costs_of_steps_and_of_discarded_rollouts() -> None:
    rates = TokenCostRates(1.0, 0.5, 2.0, 4.0)
    tracker, usage = CostTracker(rates), TokenUsage(sampled=1, prefill_cached=2, prefill_uncached=3, trained=4)
    assert tracker.record_step(usage)["cost/step_usd"] == pytest.approx(22e-6)
    more = tracker.extend_step(usage)
    assert more["tokens/sampled"] == 2 and more["cost/step_usd"] == more["cost/cumulative_usd"] == pytest.approx(44e-6)
    tracker.record_discarded_sampling(TokenUsage(sampled=5))
    totals = tracker.cumulative_metrics()
    assert totals["tokens/cumulative/sampled"] == 7 and totals["cost/discarded_usd"] == pytest.approx(10e-6)
    resumed = CostTracker(rates)
    resumed.restore([totals])
    assert resumed.cumulative == tracker.cumulative


def test_prices_come_from_a_list_that_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "prices.json"
    entry = {"tinker_id": "org/m", "prefill": "$1.50", "cached_prefill": 0.5, "sample": "2", "train": 4}
    path.write_text(json.dumps([entry, {"tinker_id": "org/half", "prefill": 1}]))
    assert cost_estimation.fetch_model_pricing("org/m", url=str(path)) == TokenCostRates(1.5, 0.5, 2.0, 4.0)
    assert cost_estimation.fetch_model_pricing("org/m", url=f"file://{path}") is not None
    assert cost_estimation.fetch_model_pricing("org/half", url=str(path)) is None
    assert cost_estimation.fetch_model_pricing("org/other", url=str(path)) is None and "not listed" in caplog.text
    assert cost_estimation.load_model_pricing() is None and cost_estimation.load_model_pricing(url="/nowhere") is None


def test_deprecated_names_warn_and_then_fail() -> None:
    @deprecation.deprecated
    def plain() -> int:
        return 1

    @deprecation.deprecated(message="use plain", removal_version="0.0.1")
    def gone() -> int:
        return 1

    @deprecation.deprecated(message="old", removal_version="999.0")
    class Old:
        pass

    with pytest.warns(DeprecationWarning, match="'Function plain' is deprecated"):
        assert plain() == 1
    with pytest.warns(DeprecationWarning, match="removed in version 999.0. old"):
        assert isinstance(Old(), Old)
    with pytest.raises(RuntimeError, match="should have been removed"):
        gone()
    moved = deprecation.make_deprecated_module_getattr("old", {"join": ("os.path.join", "999.0")})
    with pytest.warns(DeprecationWarning, match="Use os.path.join instead"):
        assert moved("join")("a", "b") == "a/b"
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        moved("other")


def test_means_leave_out_what_is_not_there() -> None:
    assert misc_utils.dict_mean([{"a": 1, "b": None}, {"a": 2}, {"c": None}]) == {"a": 1.5}
    assert list(misc_utils.safezip([1, 2], "ab")) == [(1, "a"), (2, "b")]
    with pytest.raises(ValueError, match="longer"):
        list(misc_utils.safezip([1], [1, 2]))


def test_a_checkpoint_record_keeps_fields_and_extra_keys_apart() -> None:
    record = CheckpointRecord("n", batch=3, extra={"note": None, "batch": 99})
    assert record.batch == 3 and record.extra == {"note": None}
    assert record.get("epoch", -1) is None and record.get("note", -1) is None and record.get("other", -1) == -1
    assert record.has("batch") and record.has("note") and not record.has("epoch") and not record.has("other")
    assert CheckpointRecord.from_dict(record.to_dict()) == record


def test_an_image_becomes_a_data_uri(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image").new("RGBA", (10, 5))
    from tinker_cookbook import image_processing_utils

    image.convert("RGB").save(tmp_path / "x.jpg")
    uri = image_processing_utils.image_to_data_uri(image)
    assert uri.startswith("data:image/jpeg;base64,") and image_processing_utils.image_to_data_uri(uri) == uri
    assert image_processing_utils.image_to_data_uri(str(tmp_path / "x.jpg")).startswith("data:image/jpeg;base64,")
    assert image_processing_utils.resize_image(image, 4).size == (4, 2)
    with pytest.raises(ValueError, match="not fetched"):
        image_processing_utils.image_to_data_uri("https://images.example/x.png")


def test_a_model_card_is_an_object_of_the_hubs_library(tmp_path: Path) -> None:
    config = weights.ModelCardConfig(base_model="org/base", tags=["mine"], license="mit")
    card = weights.generate_model_card(config=config)
    card.save(tmp_path / "README.md")
    assert (
        card.data.base_model == "org/base"
        and card.data.tags == ["mine", "tinker", "tinker-cookbook"]
        and card.data.license == "mit"
    )
    assert str(card) == (tmp_path / "README.md").read_text() and "# org/base" in str(card)
    assert "Merged model" in str(card) and "PeftModel" not in str(card)
    (tmp_path / "adapter_config.json").write_text("{}")
    adapter = weights.generate_model_card(config=config, repo_id="me/tuned", model_path=str(tmp_path))
    assert adapter.data.library_name == "peft" and "# me/tuned" in str(adapter)
    code = str(adapter).split("```python\n")[1].split("```")[0]
    assert 'PeftModel.from_pretrained(base, "me/tuned")' in code and compile(code, "card", "exec")


def test_a_readme_of_the_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded = []

    class Hub:
        def __init__(self, token: str | None = None) -> None: ...

        def create_repo(self, repo_id: str, **_: object) -> str:
            return f"https://hub/{repo_id}"

        def upload_folder(self, folder_path: str, repo_id: str) -> None:
            uploaded.append((Path(folder_path) / "README.md").read_text())

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    config = weights.ModelCardConfig(base_model="org/base")
    for _ in range(2):
        assert (
            weights.publish_to_hf_hub(model_path=str(tmp_path), repo_id="me/m", model_card=config) == "https://hub/me/m"
        )
        (tmp_path / "README.md").write_text("mine")
    assert "base_model: org/base" in uploaded[0] and uploaded[1] == "mine"


def test_weights_that_are_not_there_are_a_missing_file_too(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no folder"):
        weights.publish_to_hf_hub(model_path=str(tmp_path / "none"), repo_id="me/tuned")
    with pytest.raises(WeightsNotFoundError, match="adapter_model.safetensors is missing"):
        weights.build_lora_adapter(
            base_model=str(tmp_path), adapter_path=str(tmp_path), output_path=str(tmp_path / "out")
        )


def test_messages_of_a_run_whose_folder_is_gone_are_no_fault(tmp_path: Path) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        ml_log.configure_logging_module(str(tmp_path / "logs.log"))
        logging.getLogger("a").warning("first")
        made = [handler for handler in root.handlers if handler not in before]
        for handler in made:
            handler.close()  # as logging.config.dictConfig of another library does
        logging.getLogger("a").warning("second")
        assert [line.split(": ")[1] for line in (tmp_path / "logs.log").read_text().splitlines()] == ["first", "second"]
        for handler in made:
            handler.close()
        (tmp_path / "logs.log").unlink()
        tmp_path.rmdir()
        logging.getLogger("a").warning("third")
        assert [
            handler for handler in root.handlers if isinstance(handler, logging.FileHandler) and handler in made
        ] == []
    finally:
        root.setLevel(level)
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
        for handler in before:
            if handler not in root.handlers:
                root.addHandler(handler)
