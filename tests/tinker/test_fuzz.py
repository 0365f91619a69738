"""Whatever a server sends, the SDK gives a result or an error that callers know; no file name leaves the folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinker
from tinker import _proto
from tinker._decode import decode_forward_backward, decode_sample
from tinker._download import safe_relative_path

EXAMPLES = int(os.environ.get("TINKER_FUZZ_EXAMPLES", "120"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
pytestmark = pytest.mark.timeout(300 + EXAMPLES)

SIZES = st.one_of(st.integers(-2, 9), st.integers(-(2**63), 2**63 - 1))
BLOBS = st.one_of(
    st.binary(max_size=40),
    st.lists(SIZES, max_size=6).map(lambda values: np.array(values, "<i8").tobytes()),
    st.lists(st.floats(width=32), max_size=8).map(lambda values: np.array(values, "<f4").tobytes()),
)


@st.composite
def training_results(draw: st.DrawFn) -> bytes:
    message = _proto.ForwardBackwardOutput(loss_fn_output_type=draw(st.text(max_size=5)))
    for _ in range(draw(st.integers(0, 2))):
        record = message.loss_fn_outputs.add(num_datums=draw(SIZES))
        for name in draw(st.lists(st.text(max_size=4), max_size=2, unique=True)):
            tensor = record.fields[name]
            tensor.data, tensor.offsets, tensor.dtype = draw(BLOBS), draw(BLOBS), draw(st.integers(0, 6))
            tensor.trailing_shape.extend(draw(st.lists(SIZES, max_size=2)))
    body: bytes = message.SerializeToString()
    return body


@st.composite
def sample_results(draw: st.DrawFn) -> bytes:
    message = _proto.SampleResponse()
    sequence = message.sequences.add(stop_reason=draw(st.integers(0, 3)), tokens=draw(BLOBS))
    if draw(st.booleans()):
        sequence.logprobs = draw(BLOBS)
    for topk in (sequence.topk_sampled_logprobs, message.topk_prompt_logprobs):
        if draw(st.booleans()):
            topk.token_ids, topk.logprobs = draw(BLOBS), draw(BLOBS)
            topk.k, topk.length = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        tensor = message.target_prompt_logprobs
        tensor.dtype = draw(st.integers(0, 6))
        tensor.shape.extend(draw(st.lists(SIZES, max_size=3)))
        if draw(st.booleans()):
            tensor.dense = draw(BLOBS)
        else:
            csr = tensor.sparse_csr
            csr.values, csr.crow_indices, csr.col_indices = draw(BLOBS), draw(BLOBS), draw(BLOBS)
    body: bytes = message.SerializeToString()
    return body


def check(body: bytes) -> None:
    for decode in (decode_forward_backward, lambda data: decode_sample(data, ["s"])):
        # The promise passes the one on and turns the other into an APIResponseValidationError.
        with contextlib.suppress(ValueError, DecodeError):
            decode(body)


@given(st.one_of(st.binary(max_size=300), training_results(), sample_results()), st.integers(0, 10**6), st.data())
@FUZZ
def test_any_result_is_decoded_or_refused(body: bytes, place: int, data: Any) -> None:
    check(body)
    if body:
        place %= len(body)
        check(body[:place] + bytes([data.draw(st.integers(0, 255))]) + body[place + 1 :])


NAMES = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from(["..", ".", "", "/", "a", "C:", "\\", "\0", "~", "..."]), max_size=5).map("/".join),
)


@given(NAMES)
@FUZZ
def test_no_name_of_a_file_leaves_the_folder(name: str) -> None:
    try:
        path = safe_relative_path(name)
    except tinker.TinkerError:
        return
    assert isinstance(path, PurePosixPath)
    folder = Path("/some/folder")
    resolved = os.path.normpath(folder / path)
    assert resolved.startswith("/some/folder/"), name
