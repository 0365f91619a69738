"""Tokens to text: never half a letter, never a stop string, and the same whatever the pieces are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinker_backend.server.chat.answer import Answer
from tinker_backend.server.chat.conversation import ToolCall
from tinker_backend.server.chat.detokenizer import Detokenizer, StopFilter
from tinker_backend.server.chat.tokenizer import ChatTokenizer
from tinker_backend.server.chat.tool_calls import (
    BARE_JSON,
    HERMES,
    MISTRAL,
    XML,
    Part,
    ToolCallParser,
    ToolStyle,
    style_of,
)


def _cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(st.text(max_size=40))
def test_pieces_join_to_the_text_and_none_holds_half_a_letter(chat_tokenizer: ChatTokenizer, text: str) -> None:
    text = text.replace("\ufffd", "")
    detokenizer = Detokenizer(chat_tokenizer)
    pieces = [detokenizer.feed([token]) for token in chat_tokenizer.encode(text)]
    assert "".join(pieces) + detokenizer.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_letter_that_never_ends_shows_as_one_replacement(chat_tokenizer: ChatTokenizer) -> None:
    detokenizer = Detokenizer(chat_tokenizer)
    tokens = chat_tokenizer.encode("a€")
    assert "".join(detokenizer.feed([token]) for token in tokens[:-1]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_control_tokens_are_silent_and_ids_beyond_the_vocabulary_too(chat_tokenizer: ChatTokenizer) -> None:
    tokens = chat_tokenizer.encode("<|im_start|>hi<|im_end|>")
    assert Detokenizer(chat_tokenizer).feed([*tokens, 10_000_000]) == "hi"
    assert chat_tokenizer.text(tokens) == "hi"


@given(
    st.text(alphabet="abc", max_size=20),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_a_text_is_cut_before_its_first_stop_however_it_comes(text: str, stops: list[str], places: list[int]) -> None:
    filter_ = StopFilter(stops)
    out = "".join(filter_.feed(piece) for piece in _cut(text, places)) + filter_.finish()
    # Piecewise, the stop that is complete first wins; no stop may be in what comes out.
    assert text.startswith(out) and not any(stop in out for stop in stops)
    assert (filter_.found is None) == (not any(stop in text for stop in stops))
    if filter_.found is not None:
        assert text.startswith(out + filter_.found)
    else:
        assert out == text


def _parse(style: ToolStyle, text: str, places: list[int]) -> list[Part]:
    parser = ToolCallParser(style)
    parts = [part for piece in _cut(text, places) for part in parser.feed(piece)] + parser.finish()
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _shown(parts: list[Part]) -> list[object]:
    return [part if isinstance(part, str) else (part.name, part.arguments) for part in parts]


CASES: list[tuple[ToolStyle, str, list[object]]] = [
    (HERMES, "plain text, no call", ["plain text, no call"]),
    (
        HERMES,
        'I look.\n<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>',
        ["I look.", ("ls", {"path": "/"})],
    ),
    (
        HERMES,
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>\n<tool_call>{"name": "b", "arguments": "{\\"x\\": 1}"}</tool_call>',
        [("a", {}), ("b", {"x": 1})],
    ),
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": "</b>"}}', [("a", {"x": "</b>"})]),
    (HERMES, "<tool_call>not json</tool_call> so", ["<tool_call>not json</tool_call> so"]),
    (HERMES, "a <tool_ is no call", ["a <tool_ is no call"]),
    (
        XML,
        "<tool_call>\n<function=edit>\n<parameter=path>\na.py\n</parameter>\n<parameter=line>\n3\n</parameter>\n</function>\n</tool_call>",
        [("edit", {"path": "a.py", "line": 3})],
    ),
    (MISTRAL, 'ok [TOOL_CALLS] [{"name": "ls", "arguments": {"a": 1}}]', ["ok", ("ls", {"a": 1})]),
    (BARE_JSON, '{"name": "ls", "parameters": {"a": 1}}', [("ls", {"a": 1})]),
    (BARE_JSON, '{"just": "json"}', ['{"just": "json"}']),
    (BARE_JSON, 'text {"name": "ls", "parameters": {}}', ['text {"name": "ls", "parameters": {}}']),
]


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=12))
def test_tool_calls_are_found_however_the_text_comes(
    case: tuple[ToolStyle, str, list[object]], places: list[int]
) -> None:
    style, text, wanted = case
    assert _shown(_parse(style, text, places)) == wanted


@given(
    st.sampled_from([HERMES, XML, MISTRAL, BARE_JSON]), st.text(max_size=60), st.lists(st.integers(0, 60), max_size=5)
)
def test_no_answer_breaks_the_parser(style: ToolStyle, text: str, places: list[int]) -> None:
    _parse(style, style.start + text, places)
    _parse(style, text, places)


def test_the_style_is_told_by_the_template() -> None:
    assert style_of("... <tool_call> ...") is HERMES
    assert style_of("<tool_call><function=...") is XML
    assert style_of("[TOOL_CALLS]") is MISTRAL
    assert style_of(None) is HERMES


def test_an_answer_keeps_tokens_text_and_calls(chat_tokenizer: ChatTokenizer) -> None:
    answer = Answer(chat_tokenizer, (), HERMES)
    tokens = chat_tokenizer.encode('Let me see.\n<tool_call>{"name": "ls", "arguments": {}}</tool_call><|im_end|>')
    parts = [part for token in tokens for part in answer.feed([token])]
    rest, finish = answer.finish("stop")
    assert finish == "tool_calls" and answer.tokens == tokens
    assert answer.text == "Let me see." and [call.name for call in answer.calls] == ["ls"]
    assert "".join(part for part in [*parts, *rest] if isinstance(part, str)) == answer.text


def test_an_answer_stops_before_its_stop_string(chat_tokenizer: ChatTokenizer) -> None:
    answer = Answer(chat_tokenizer, ("STOP",), None)
    answer.feed(chat_tokenizer.encode("one STOP two"))
    _, finish = answer.finish("stop")
    assert (answer.text, finish, answer.stop_sequence) == ("one ", "stop_sequence", "STOP")


def test_a_forced_call_needs_no_opening(chat_tokenizer: ChatTokenizer) -> None:
    answer = Answer(chat_tokenizer, (), HERMES, opened='<tool_call>\n{"name": "ls", "arguments": ')
    answer.feed(chat_tokenizer.encode('{"path": "/tmp"}}\n</tool_call>'))
    _, finish = answer.finish("stop")
    assert finish == "tool_calls"
    call = answer.calls[0]
    assert isinstance(call, ToolCall) and (call.name, call.arguments) == ("ls", {"path": "/tmp"})
