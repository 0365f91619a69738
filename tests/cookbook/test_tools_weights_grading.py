"""Tools from functions, agent episodes, weights export, reading of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest

from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.eval.benchmarks import BenchmarkConfig, BenchmarkResult, pass_at_k
from tinker_cookbook.eval.benchmarks.grading import check_gsm8k, extract_boxed, extract_mcq_answer, same_answer
from tinker_cookbook.exceptions import WeightsMergeError
from tinker_cookbook.renderers import Message, ToolCall, get_renderer
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.rollout_presets import agentic
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.types import StopReason
from tinker_cookbook.tool_use import build_agent_tool_env, handle_tool_call, simple_tool_result, tool


@tool
def add(a: Annotated[int, "first"], b: int = 2) -> str:
    """Add two numbers."""
    return str(a + b)


class Box:
    def __init__(self) -> None:
        self.items: list[str] = []

    @tool
    async def put(self, item: str) -> Any:
        """Put something in."""
        self.items.append(item)
        return simple_tool_result("ok", should_stop=item == "stop")


def call(name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(id="c1", function=ToolCall.FunctionBody(name=name, arguments=text))


def test_declarations_come_from_the_signature() -> None:
    spec = add.to_spec()
    assert (spec["name"], spec["description"]) == ("add", "Add two numbers.")
    assert spec["parameters"]["required"] == ["a"]
    assert spec["parameters"]["properties"]["a"] == {"title": "A", "type": "integer", "description": "first"}


async def test_calls_run_and_errors_become_results() -> None:
    box = Box()
    tools = [add, box.put]
    assert (await handle_tool_call(tools, call("add", {"a": 3}))).messages[0]["content"] == "5"
    await handle_tool_call(tools, call("put", {"item": "x"}))
    assert box.items == ["x"]
    for bad, kind in (
        (call("sub", {}), "tool_not_found"),
        (call("add", "{"), "json_decode_failed"),
        (call("add", {"a": "q"}), "validation_failed"),
    ):
        result = await handle_tool_call(tools, bad)
        assert result.metadata["error"] == kind and "error" in result.messages[0]["content"]
        assert result.messages[0].get("tool_call_id") == "c1"


class Scripted(TokenCompleter):
    def __init__(self, tokenizer: Any, stop: int, texts: list[str]) -> None:
        self.tokenizer, self.stop, self.texts = tokenizer, stop, list(texts)
        self.prompts: list[list[int]] = []

    async def __call__(
        self, model_input: Any, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        self.prompts.append(model_input.to_ints())
        tokens = [*self.tokenizer.encode(self.texts.pop(0), add_special_tokens=False), self.stop]
        return TokensWithLogprobs(tokens, [-1.0] * len(tokens))


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'


async def episode(tokenizer: Any, texts: list[str], **options: Any) -> tuple[Any, Scripted]:
    renderer = get_renderer("qwen3_instruct", tokenizer)
    messages = [*renderer.create_conversation_prefix_with_tools([add.to_spec()]), Message(role="user", content="3+2?")]

    def reward(history: list[Message]) -> tuple[float, dict[str, float]]:
        return float("5" in str(history[-1]["content"])), {"messages": len(history)}

    env = build_agent_tool_env(renderer, [add], messages, reward, **options)
    policy = Scripted(tokenizer, renderer.get_stop_sequences()[0], texts)  # type: ignore[arg-type]
    return await run_rollout(policy, env), policy


async def test_an_agent_calls_tools_until_it_answers(universal_tokenizer: Any) -> None:
    trajectory, policy = await episode(universal_tokenizer, [CALL, "It is 5."])
    assert [t.reward for t in trajectory.transitions] == [0.0, 1.0]
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert "<tool_response>\n5\n</tool_response>" in universal_tokenizer.decode(policy.prompts[1])
    first = trajectory.transitions[0]
    assert policy.prompts[1][: len(policy.prompts[0]) + len(first.ac.tokens)] == policy.prompts[0] + first.ac.tokens


async def test_unreadable_calls_may_be_tried_again_and_limits_end_the_episode(universal_tokenizer: Any) -> None:
    broken = "<tool_call>\n{\n</tool_call>"
    trajectory, policy = await episode(universal_tokenizer, [broken, CALL, "5"], rollout_config=agentic())
    assert trajectory.stop_reason is StopReason.COMPLETED and trajectory.transitions[0].metrics["parse_error"] == 1
    assert "could not be read" in universal_tokenizer.decode(policy.prompts[1])
    stuck, _ = await episode(universal_tokenizer, [broken] * 5, rollout_config=agentic())
    assert stuck.stop_reason is StopReason.PARSE_ERROR and len(stuck.transitions) == 3
    last, _ = await episode(
        universal_tokenizer,
        [CALL, broken],
        max_turns=2,
        parse_error_policy=ParseErrorPolicy(max_consecutive=3, terminal_reward=-2.0),
    )
    assert last.stop_reason is StopReason.PARSE_ERROR and last.transitions[-1].reward == -2.0
    assert last.transitions[-1].metrics["max_turns"] == 1 and "stop/max_turns" not in last.transitions[-1].metrics
    limited, _ = await episode(universal_tokenizer, [CALL] * 5, max_turns=2)
    assert limited.stop_reason is StopReason.MAX_TURNS and limited.transitions[-1].metrics["stop/max_turns"] == 1


# Weights


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def tiny_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=request.param,
    )
    LlamaForCausalLM(config).save_pretrained(str(tmp_path / "base"))
    return tmp_path / "base"


def save_adapter(folder: Path, base: Path, modules: list[str]) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(str(base)), LoraConfig(r=4, lora_alpha=32, target_modules=modules)
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(str(folder))


def test_merged_and_converted_weights_give_the_logits_of_the_adapter(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from tinker_cookbook.weights import build_hf_model, build_lora_adapter

    save_adapter(tmp_path / "adapter", tiny_model, ["q_proj", "down_proj", "lm_head"])
    ids = torch.arange(10)[None]

    def logits(model: Any) -> Any:
        with torch.no_grad():
            return model(ids).logits

    base = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    plain = logits(base).clone()
    expected = logits(PeftModel.from_pretrained(base, str(tmp_path / "adapter")))
    assert (expected - plain).abs().max() > 0.01
    out = build_hf_model(
        base_model=str(tiny_model),
        adapter_path=str(tmp_path / "adapter"),
        output_path=str(tmp_path / "m"),
        dtype="float32",
    )
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(out)), expected, atol=1e-5, rtol=1e-4)
    peft = build_lora_adapter(
        base_model=str(tiny_model), adapter_path=str(tmp_path / "adapter"), output_path=str(tmp_path / "p")
    )
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(str(tiny_model)), peft)
    torch.testing.assert_close(logits(again), expected, atol=1e-6, rtol=1e-5)


def test_adapters_that_do_not_fit_are_refused_and_leave_nothing(tiny_model: Path, tmp_path: Path) -> None:
    from tinker_cookbook.weights import build_hf_model

    save_adapter(tmp_path / "adapter", tiny_model, ["q_proj"])
    config = json.loads((tiny_model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tiny_model / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsMergeError, match="quantised"):
        build_hf_model(
            base_model=str(tiny_model), adapter_path=str(tmp_path / "adapter"), output_path=str(tmp_path / "m")
        )
    assert not (tmp_path / "m").exists()


# Reading answers


def test_boxed_answers_may_be_nested() -> None:
    assert extract_boxed(r"so \boxed{\frac{1}{2}} and \boxed{3}") == "3"
    assert extract_boxed(r"\boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert extract_boxed(r"\boxed{1") is None and extract_boxed("none") is None


@pytest.mark.parametrize(
    "given,expected,same",
    [
        ("1,234", "1234", True),
        ("0.50", "1/2", True),
        (r"\frac12", r"\frac{1}{2}", True),
        (r"\dfrac{3}{4}", "0.75", True),
        ("x = 5", "5", True),
        (r"5\%", "5", True),
        ("12", "13", False),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("(1,2)", "(1,3)", False),
        ("", "1", False),
        (r"-\frac{1}{3}", r"\frac{-1}{3}", True),
    ],
)
def test_answers_are_compared_by_value(given: str, expected: str, same: bool) -> None:
    assert same_answer(given, expected) is same


def test_gsm8k_and_choices_are_read_from_tricky_texts() -> None:
    assert check_gsm8k("First 3, then 4. So the total is $1,200.", "1200")
    assert not check_gsm8k("The answer is \\boxed{7}, not 8", "8")
    assert extract_mcq_answer("A is wrong. The answer is (C).") == "C"
    assert extract_mcq_answer("I think\nB") == "B" and extract_mcq_answer("A good question") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("concurrency", 0), ("timeout_seconds", -1), ("num_samples", 0), ("context_window", -5), ("temperature", -0.1)],
)
def test_settings_of_a_benchmark_without_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        BenchmarkConfig(**{field: value})  # type: ignore[arg-type]


def test_completed_examples_are_those_without_error_that_were_not_cut_off() -> None:
    result = BenchmarkResult("sums", 0.5, num_examples=10, num_correct=5, num_errors=1, num_truncated=1)
    assert result.num_completed == 8 and result.score_completed == 5 / 8
    assert BenchmarkResult("sums", 0.0, num_examples=1, num_correct=0, num_errors=1).score_completed == 0.0


def test_pass_at_k_equals_the_chance_of_a_draw() -> None:
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25) and pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(4, 0, 4) == 0 and pass_at_k(4, 4, 1) == 1


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("2x", "x*2", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("3\\sqrt{2}", "\\sqrt{18}", True),
        ("-x^2", "-(x^2)", True),
        ("2\\pi", "\\pi*2", True),
        ("(x+1)^{100}", "(1+x)^{100}", True),
        ("x^2+1", "(x+1)^2", False),
        ("9^{9^{9}}", "3", False),
        ("9**9**9**9", "1", False),
        ("((9^99)^99)^99", "(1)", False),
        ("10^{10^{10}}", "(5)", False),
    ],
)
def test_expressions_are_compared_within_limits(given: str, expected: str, same: bool) -> None:
    pytest.importorskip("sympy")
    from tinker_cookbook.eval.benchmarks.grading import same_answer

    assert same_answer(given, expected) is same


def test_an_answer_is_never_evaluated_as_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sympy")
    from tinker_cookbook.eval.benchmarks.grading import same_answer

    monkeypatch.chdir(tmp_path)
    written = "+".join(f"chr({ord(letter)})" for letter in "open('f','w')")
    for attack in (
        f"exec({written})",
        "exit()",
        "eval(chr(49)+chr(49))",
        "print(1)",
        "input()",
        "open(chr(102),chr(119))",
    ):
        assert same_answer(attack, "(1)") is False
    assert not list(tmp_path.iterdir())
