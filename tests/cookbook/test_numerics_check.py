"""The recipe that compares sampler and trainer: what its task counts and rewards, and what its comparison notices."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.rl_numerics_check import compare, env
from tinker_cookbook.renderers import Message, ToolCall
from tinker_cookbook.rl.types import Trajectory, Transition

CORPUS = "Before the sea there was time. In time, all that was before came after. " * 40


def task(**changes: Any) -> env.CountingTaskConfig:
    return env.CountingTaskConfig(**{"num_pages_min": 2, "num_pages_max": 3, "page_chars": 100, **changes})


def test_only_whole_words_are_counted() -> None:
    assert env.count_word("Time, time's time-out; timely sometimes TIME", "time") == 4
    assert env.count_word("", "time") == 0


@pytest.mark.parametrize(("predicted", "reward"), [(10, 1.0), (11, 0.5), (9, 0.5), (12, 0.0), (40, 0.0)])
def test_the_reward_falls_with_the_relative_error(predicted: int, reward: float) -> None:
    assert env.closeness_reward(predicted, 10, 0.2) == pytest.approx(reward)


def test_the_last_answer_of_a_reply_counts() -> None:
    assert env.parse_answer("Answer: 3\nNo.\nAnswer: 1,204") == 1204
    assert env.parse_answer("I read 5 pages.") is None


def test_problems_repeat_with_the_seed_and_count_the_pages_of_the_document_alone() -> None:
    first, second = (env.sample_problem(random.Random(3), CORPUS, task()) for _ in range(2))
    assert first == second and len(first.pages) == 3
    assert first.true_count == env.count_word(" \n".join(first.pages[: first.num_pages]), first.word)
    hidden = task(word_hint="first_last", num_pages_hint="range", words=("before",), secret_num_pages=2)
    problem = env.sample_problem(random.Random(0), CORPUS, hidden)
    assert problem.num_pages == 2 and '"before"' not in problem.prompt and "between 2 and 3" in problem.prompt


def test_tasks_that_cannot_be_are_refused() -> None:
    for wrong in ({"num_pages_min": 4}, {"word_hint": "hidden"}, {"secret_num_pages": 9}, {"words": ()}):
        with pytest.raises(ConfigurationError, match=r"task\."):
            task(**wrong)
    with pytest.raises(ConfigurationError, match="300 are needed"):
        env.sample_problem(random.Random(0), "short", task())
    with pytest.raises(ConfigurationError, match="corpus_path='nowhere.txt'"):
        env.load_corpus("nowhere.txt")


def calls(*pages: int) -> Message:
    bodies = [ToolCall.FunctionBody(name="read_page", arguments=f'{{"page": {page}}}') for page in pages]
    return Message(role="assistant", content="", tool_calls=[ToolCall(function=body, id="c") for body in bodies])


async def test_a_document_is_read_page_by_page_and_the_answer_is_graded() -> None:
    problem = env.sample_problem(random.Random(3), CORPUS, task())
    builder = env.CountingEnvGroupBuilder(problem, task(), _NoRenderer(), 2, 4096)  # type: ignore[arg-type]
    envs = await builder.make_envs()
    assert len(envs) == 2
    episode = envs[0].message_env  # type: ignore[attr-defined]
    await episode.initial_observation()
    read = await episode.step(calls(1))
    assert problem.pages[0] in read.next_messages[-1]["content"] and not read.episode_done
    twice = await episode.step(calls(2, 3))
    assert problem.pages[1] in twice.next_messages[-2]["content"]
    assert "once in a reply" in twice.next_messages[-1]["content"] and twice.metrics["calls_refused"] == 1
    assert "no page 9" in (await episode.step(calls(9))).next_messages[-1]["content"]
    done = await episode.step(Message(role="assistant", content=f"Answer: {problem.true_count}"))
    assert done.episode_done and done.reward == 1.0 and done.metrics["exact"] == 1.0
    other = envs[1].message_env  # type: ignore[attr-defined]
    await other.initial_observation()
    silent = await other.step(Message(role="assistant", content="I give up."))
    assert silent.episode_done and silent.reward == 0.0 and silent.metrics["answered"] == 0.0
    assert other.reader.pages_read == set() and episode.reader.pages_read == {1, 2}


class _NoRenderer:
    """Enough of a renderer for an environment that is played in messages."""

    def create_conversation_prefix_with_tools(self, tools: Any, system_prompt: str) -> list[Message]:
        return [Message(role="system", content=f"{system_prompt} {[spec['name'] for spec in tools]}")]

    def get_stop_sequences(self) -> list[int]:
        return [0]


def turn(prompt: list[int], action: list[int]) -> Transition:
    return Transition(tinker.ModelInput.from_ints(prompt), TokensWithLogprobs(action, [0.0] * len(action)), 0.0, False)


def test_episodes_whose_prompts_do_not_continue_one_another_are_seen() -> None:
    whole = Trajectory([turn([1, 2], [3]), turn([1, 2, 3, 4], [5])], tinker.ModelInput.empty())
    rendered_anew = Trajectory([turn([1, 2], [3]), turn([1, 2, 4], [5])], tinker.ModelInput.empty())
    assert env.is_one_sequence(whole) and not env.is_one_sequence(rendered_anew)


def settings(universal_tokenizer_path: str, tmp_path: Path, **changes: Any) -> compare.CLIConfig:
    small = {"rounds": 2, "prompts": 3, "samples": 2, "max_tokens": 5, "learning_rate": 0.3}
    name = {"model_name": universal_tokenizer_path, "renderer_name": "qwen3_instruct"}
    return compare.CLIConfig(**{**name, **small, "log_path": str(tmp_path / "run"), **changes})


async def test_a_sampler_and_a_trainer_that_agree_pass(
    fake_service: Any, universal_tokenizer_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_service.allowed = np.asarray([20, 21])
    await compare.cli_main(settings(universal_tokenizer_path, tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split()[0] == "0" and lines[-1].split()[0] == "1" and "sample " not in "".join(lines[2:])
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert fake_service.calls.count("optim_step") == 2


async def test_steps_too_small_to_show_lost_weights_are_told(
    fake_service: Any, universal_tokenizer_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await compare.cli_main(settings(universal_tokenizer_path, tmp_path, learning_rate=1e-5, log_path=None))
    assert "give a larger learning_rate" in capsys.readouterr().out.splitlines()[-1]


async def test_weights_that_do_not_arrive_at_the_sampler_are_noticed_in_the_next_round(
    fake_service: Any,
    universal_tokenizer_path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fake_service import Future, SamplingClient, State, TrainingClient

    fake_service.allowed = np.asarray([20, 21])
    stale = SamplingClient(fake_service, State().logits)
    monkeypatch.setattr(TrainingClient, "save_weights_and_get_sampling_client", lambda self, **_: Future(stale))
    with pytest.raises(SystemExit, match=r"kl_sample_train_v2 is above tolerance=0\.001"):
        await compare.cli_main(settings(universal_tokenizer_path, tmp_path, worst=2))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert len([line for line in lines if line.startswith("sample ")]) == 2


def test_differences_are_measured_for_each_pair() -> None:
    def sample(shift: float) -> compare.ScoredSample:
        decode = np.array([-1.0, -2.0])
        return compare.ScoredSample([1], [2, 3], decode, decode, decode - shift, decode)

    row = compare.compare([sample(0.1), sample(0.3)])
    assert row["kl_sample_train_v1"] == pytest.approx(0.2) and row["kl_sample_train_v2"] == pytest.approx(0.025)
    assert row["kl_sample_train_max"] == pytest.approx(0.3) and row["kl_sample_prefill_max"] == 0.0
    assert row["moved_v2"] == row["kl_sample_train_v2"]
    assert row["tokens"] == 4 and row["entropy"] == pytest.approx(1.5)
    text = compare.table_row(7, row)
    assert text.split()[:3] == ["7", "4", "2.0e-01"] and len(text) == len(compare.HEADER.splitlines()[1])


def test_prompts_are_made_of_whole_conversations(universal_tokenizer_path: str, tmp_path: Path) -> None:
    from tinker_cookbook import renderers, tokenizer_utils

    config = settings(universal_tokenizer_path, tmp_path, prompts=130, turns=1)
    renderer = renderers.get_renderer("qwen3_instruct", tokenizer_utils.get_tokenizer(universal_tokenizer_path))
    prompts = compare.build_prompts(config, renderer)
    assert len(prompts) == 130 and prompts[0] == prompts[128] != prompts[1]
    (tmp_path / "none.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    with pytest.raises(ConfigurationError, match="no conversation that ends with an answer"):
        compare.build_prompts(
            settings(universal_tokenizer_path, tmp_path, conversations=str(tmp_path / "none.jsonl")), renderer
        )
