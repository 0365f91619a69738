"""Where the answers of the renderers are meant to differ from those of the official cookbook 0.6.1, and why.

Rows of (renderer names, observations, reason), both regular expressions that must match as a whole. Observations that
the official renderer refuses are not compared at all: ``docs/cookbook/differences.md`` says what is possible there.
"""

from __future__ import annotations

import re

_MODES = (
    "last_assistant_message|last_assistant_turn|all_assistant_messages|all_messages|all_tokens|"
    "all_user_and_system_messages|customized|prompt|prompt_after|examples"
)
_CALLS = "call|call_(?!then_think).*|calls|calls_.*|result_(?!first).*|answer_call_think|think_ws_text"

DIFFERENCES: tuple[tuple[str, str, str], ...] = (
    ("llama3", rf"({_MODES}|round|openai)/({_CALLS})", "tool calls have no form: refused instead of dropped"),
    ("role_colon", rf"({_MODES}|round|openai)/({_CALLS})", "tool calls are written as JSON instead of dropped"),
    (
        "role_colon",
        r"(parse|cut|eos|after|stop\d)/([jxg](_.*)?|.*ws|h_callbad|ds_nl)",
        "calls are read; white space around an answer is the format's",
    ),
    ("role_colon", rf"({_MODES})/(sysonly|enduser)", "no text <UNUSED> at the end"),
    ("llama3|role_colon", r"openai/.*think.*", "reasoning is a field of its own, not text"),
    (
        "deepseekv3.*",
        rf"({_MODES}|round)/(empty|think_only|{_CALLS})",
        "a message without text has its reasoning block and its end marker like every other",
    ),
    ("deepseekv3_thinking", "last_assistant_turn/assistant_only", "without user message the whole turn is trained"),
    ("qwen3(_disable_thinking)?", rf"({_MODES})/str_(mid|close)", "text around reasoning in a string is kept, once"),
    ("glm5_3.*", rf"({_MODES})/str_mid", "text before reasoning in a string is kept"),
    ("glm5_3.*", r"(parse|stream)/(j_open|j_then_open|x_bad|g_open)", "a call that is not closed is reported"),
    ("kimi.*", r"(parse|stream)/k_(none|id|id2)", "tool calls with an unknown id are reported instead of dropped"),
    ("kimi.*", r"examples/(enduser|sysonly|twouser)", "no examples without a trained token"),
    (
        "kimi_k2[56]_disable_thinking",
        "(last_assistant_turn|examples)/(twoassistant_think|answer_call_think)",
        "reasoning in the trained turn is refused",
    ),
    ("deepseekv3.*", r"(parse|stream)/d_none", "a block without calls is reported"),
    ("gpt_oss.*", r"parse/h_call(2|3|bad)|round/call_end2", "the content of a bare call is empty, not its raw text"),
    ("deepseekv4_1.*", rf"({_MODES}|openai)/call_args_(empty|bad|list)", "arguments that are no object"),
    ("deepseekv4_1.*", "openai/think_empty", "an empty reasoning part is reasoning"),
    (".*", "openai/calls_noid", "calls without id get one, which the API demands"),
)


# Observations that are recorded as digests, for runs without the official cookbook.
RECORDED = re.compile(rf"extends|stop|(?!examples)({_MODES})/.*|tools/.*|parse/.*|prefill/.*|after/.*|stop\d/.*")


def meant(name: str, observation: str) -> bool:
    """Whether an answer is listed as different."""
    return any(re.fullmatch(names, name) and re.fullmatch(keys, observation) for names, keys, _ in DIFFERENCES)
