"""Sampling: temperature, seeds, stops, cuts of the distribution, and the shape of the answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..client import Sampler
from ..probe import Skipped, check, probe
from ..suite import Suite, same

PROMPT = [5, 9, 17, 33, 8]


def _greedy(sampler: Sampler, length: int = 12, **params: object) -> list[int]:
    options = {"max_tokens": length, "temperature": 0.0, "stop": [], **params}
    return sampler.sample(PROMPT, params=options).sequences[0].tokens


@probe("num_samples sequences come back, each with a logprob a token, none longer than max_tokens")
def samples_have_the_promised_shape(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        promise = sampler.send(sampler.body(PROMPT, 4, {"max_tokens": 7, "stop": []}))
        identities = promise.body.get("sample_sequence_ids")
        output = promise.result()
    check(len(output.sequences) == 4, f"4 samples were asked for, {len(output.sequences)} came")
    for sequence in output.sequences:
        check(len(sequence.tokens) == 7, f"without a stop there are {len(sequence.tokens)} tokens of 7")
        check(sequence.stop_reason == "length", f"stop_reason is {sequence.stop_reason}, not length")
        check(
            len(sequence.logprobs) == 7 and bool((sequence.logprobs <= 1e-6).all()), "a logprob a token, none positive"
        )
    check(isinstance(identities, list) and len(set(identities)) == 4, f"sample_sequence_ids are {identities}")
    return "4 sequences of 7 tokens"


@probe("Sampled logprobs are those of the prompt scored afterwards (temperature 1)")
def sampled_logprobs_equal_scored_ones(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        sequence = sampler.sample(PROMPT, params={"max_tokens": 16, "stop": []}).sequences[0]
        scored = sampler.score(PROMPT + sequence.tokens)[len(PROMPT) :]
    return same(sequence.logprobs, scored, suite.tolerance, "sampled against scored")


@probe("Logprobs are those of the distribution that was sampled from: temperature divides the logits")
def temperature_shows_in_the_logprobs(suite: Suite) -> str:
    temperature = 2.5
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        hot = sampler.sample(PROMPT, 32, {"max_tokens": 1, "temperature": temperature, "stop": [], "seed": 3})
        at_temperature = {s.tokens[0]: float(s.logprobs[0]) for s in hot.sequences}
        check(len(at_temperature) > 1, "32 hot samples are all the same token")
        plain = {token: float(sampler.score([*PROMPT, token])[-1]) for token in list(at_temperature)[:6]}
    tokens = list(plain)
    hot_gaps = np.array([at_temperature[token] - at_temperature[tokens[0]] for token in tokens[1:]])
    cold_gaps = np.array([plain[token] - plain[tokens[0]] for token in tokens[1:]])
    return same(hot_gaps * temperature, cold_gaps, temperature * suite.tolerance * 2, "gaps times temperature")


@probe("A seed repeats a sample; other seeds give others; samples of one request differ")
def seeds_repeat_samples(suite: Suite) -> str:
    params = {"max_tokens": 16, "temperature": 1.5, "stop": []}
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        first, again, other = (
            [s.tokens for s in sampler.sample(PROMPT, 3, {**params, "seed": seed}).sequences] for seed in (7, 7, 8)
        )
    check(first == again, "the same seed gives different tokens")
    check(first != other, "seeds 7 and 8 give the same tokens")
    check(len({tuple(tokens) for tokens in first}) > 1, "three samples of one seeded request are identical")
    return "3 samples of 16 tokens"


@probe("Temperature 0 and top_k 1 are greedy, and a tiny top_p too")
def greedy_forms_agree(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        greedy = _greedy(sampler)
        check(greedy == _greedy(sampler), "temperature 0 does not repeat")
        check(greedy == _greedy(sampler, temperature=1.0, top_k=1), "top_k 1 is not greedy")
        check(greedy == _greedy(sampler, temperature=1.0, top_p=1e-6), "top_p 1e-6 is not greedy")
    return f"{len(greedy)} tokens"


@probe("top_k draws from the k most probable tokens only")
def top_k_cuts(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        drawn = sampler.sample(PROMPT, 48, {"max_tokens": 1, "temperature": 2.0, "top_k": 3, "stop": [], "seed": 1})
        free = sampler.sample(PROMPT, 48, {"max_tokens": 1, "temperature": 2.0, "stop": [], "seed": 1})
    kinds = {s.tokens[0] for s in drawn.sequences}
    check(len(kinds) <= 3, f"top_k 3 drew {len(kinds)} different tokens")
    check(len({s.tokens[0] for s in free.sequences}) > 3, "without top_k the model draws 3 tokens or fewer")
    return f"{len(kinds)} different tokens of 48"


@probe("top_p draws from the smallest set that holds that probability")
def top_p_cuts(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        drawn = sampler.sample(PROMPT, 48, {"max_tokens": 1, "top_p": 0.3, "stop": [], "seed": 1})
        kinds = {s.tokens[0] for s in drawn.sequences}
        scored = sorted((float(sampler.score([*PROMPT, token])[-1]) for token in kinds), reverse=True)
    # All drawn tokens but the least probable one must lie within the nucleus.
    inside = float(np.exp(scored[:-1]).sum()) if len(scored) > 1 else 0.0
    check(inside < 0.3 + suite.tolerance, f"top_p 0.3 drew {len(kinds)} tokens that hold {inside:.2f} without the last")
    return f"{len(kinds)} different tokens of 48"


@probe("A stop token id ends the sample, is its last token, and gives stop_reason stop")
def stop_ids_end_a_sample(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        free = _greedy(sampler)
        stop = free[-1]
        wanted = free[: free.index(stop) + 1]
        output = sampler.sample(PROMPT, params={"max_tokens": 12, "temperature": 0.0, "stop": [stop]}).sequences[0]
    check(output.tokens == wanted, f"stop {stop} on {free} gives {output.tokens}, not {wanted}")
    check(output.stop_reason == "stop", f"stop_reason is {output.stop_reason}")
    check(len(output.logprobs) == len(wanted), f"{len(output.logprobs)} logprobs for {len(wanted)} tokens")
    return f"stopped after {len(wanted)} of 12 tokens"


@probe("A stop string ends the sample at the token that completes it")
def stop_strings_end_a_sample(suite: Suite) -> str:
    decode = _decoder(suite)
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        free = sampler.sample(PROMPT, params={"max_tokens": 24, "stop": [], "seed": 5, "temperature": 1.0})
        tokens = free.sequences[0].tokens
        text = next((decode([t]) for t in tokens[6:] if decode([t]).strip() and "\ufffd" not in decode([t])), None)
        if text is None:
            raise Skipped("the model's sample has no token with a text of its own")
        params = {"max_tokens": 24, "stop": [text], "seed": 5, "temperature": 1.0}
        stopped = sampler.sample(PROMPT, params=params).sequences[0]
    count = next(n for n in range(1, len(tokens) + 1) if text in decode(tokens[:n]))
    check(stopped.stop_reason == "stop", f"stop_reason is {stopped.stop_reason}")
    check(stopped.tokens == tokens[:count], f"{text!r} stops after {len(stopped.tokens)} tokens, not {count}")
    return f"{text!r} stopped after {count} of 24 tokens"


def _decoder(suite: Suite) -> Callable[[list[int]], str]:
    """Token ids to text, by the server's tokenizer. Raises Skipped where it cannot be had without a download."""
    with suite.run() as run:
        model = suite.client.post("get_info", {"model_id": run.id, "type": "get_info"})["model_data"]
    folder = Path(os.environ.get("TINKER_CONFORMANCE_TOKENIZER") or model.get("tokenizer_id") or "")
    if not (folder / "tokenizer.json").is_file():
        raise Skipped(
            f"the tokenizer {str(folder)!r} is no local folder; name one in TINKER_CONFORMANCE_TOKENIZER to run this probe"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Skipped("the package tokenizers is not installed") from error
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


@probe("top-k of the sampled positions: the k most probable tokens in falling order")
def sampled_top_k_is_ordered(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        params = {"max_tokens": 6, "temperature": 0.0, "stop": []}
        sequence = sampler.sample(PROMPT, params=params, topk_sample_logprobs=3).sequences[0]
    check(sequence.topk is not None, "topk_sample_logprobs was asked for and is missing")
    assert sequence.topk is not None
    check(sequence.topk.ids.shape == (6, 3), f"shape {sequence.topk.ids.shape}, not (6, 3)")
    check(sequence.topk.ids[:, 0].tolist() == sequence.tokens, "the greedy token is not the first of the top k")
    check(bool((np.diff(sequence.topk.logprobs, axis=1) <= 1e-6).all()), "a row does not fall")
    return "6 rows of 3"


@probe("Many requests at once are all answered")
def many_samples_at_once(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        promises = [
            sampler.send(sampler.body(PROMPT, 1, {"max_tokens": 1 + i % 9, "stop": [], "seed": i})) for i in range(48)
        ]
        lengths = [len(promise.result().sequences[0].tokens) for promise in promises]
    check(lengths == [1 + i % 9 for i in range(48)], f"lengths are {lengths}")
    return "48 requests"
