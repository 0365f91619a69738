"""What renderers answer: prompts, weights, parse results and streams of many conversations and texts.

Runs with either cookbook, so that their answers can be compared: ``python renderer_observations.py TOKENIZER OUT``
writes ``{renderer name: {observation: answer}}``. An answer that is an exception is the text "!".
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import sys
from collections.abc import Callable, Container
from typing import Any

from tinker_cookbook import renderers as R
from tinker_cookbook.renderers import ToolCall, TrainOnWhat, get_renderer

NAMES = (  # noqa: SIM905
    "role_colon llama3 qwen3 qwen3_disable_thinking qwen3_instruct qwen3_vl qwen3_vl_instruct qwen3_5 "
    "qwen3_5_disable_thinking qwen3_5_preserve_thinking qwen3_8_xhigh_reasoning qwen3_8_medium_reasoning "
    "qwen3_8_low_reasoning qwen3_8_disable_thinking deepseekv3 deepseekv3_disable_thinking deepseekv3_thinking "
    "deepseekv4_1 deepseekv4_1_low_reasoning deepseekv4_1_max_reasoning deepseekv4_1_disable_thinking "
    "deepseekv4_1_preserve_thinking glm5_3_max_reasoning glm5_3_high_reasoning glm5_3_low_reasoning kimi_k2 kimi_k25 "
    "kimi_k25_disable_thinking kimi_k26 kimi_k26_disable_thinking kimi_k26_preserve_thinking nemotron3 "
    "nemotron3_low_thinking nemotron3_disable_thinking nemotron3_preserve_thinking nemotron3_ultra "
    "nemotron3_ultra_medium_thinking nemotron3_ultra_disable_thinking nemotron3_ultra_preserve_thinking "
    "gpt_oss_no_sysprompt gpt_oss_low_reasoning gpt_oss_medium_reasoning gpt_oss_high_reasoning"
).split()
ALL = TrainOnWhat.ALL_ASSISTANT_MESSAGES
FunctionBody: Any = ToolCall.model_fields["function"].annotation


def A(content: Any, calls: Any = None, **fields: Any) -> Any:
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **fields}


def TH(text: str) -> Any:
    return {"type": "thinking", "thinking": text}


def TX(text: str) -> Any:
    return {"type": "text", "text": text}


def at(text: str, thinking: str, calls: Any = None) -> Any:
    return A([TH(thinking), TX(text)], calls)


def S(text: Any) -> Any:
    return {"role": "system", "content": text}


def U(text: Any) -> Any:
    return {"role": "user", "content": text}


def call(name: str = "look", args: Any = None, id: str | None = "functions.look:0") -> Any:
    args = {"q": "x"} if args is None else args
    return ToolCall(
        id=id, function=FunctionBody(name=name, arguments=args if isinstance(args, str) else json.dumps(args))
    )


def T(text: Any, name: str | None = "look", id: str | None = "functions.look:0") -> Any:
    return {"role": "tool", "content": text, **({"name": name} if name else {}), **({"tool_call_id": id} if id else {})}


TOOLS: Any = [
    {
        "name": "look",
        "description": "Looks it up.",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string", "description": 'what "é"'}, "n": {"type": "integer"}},
            "required": ["q"],
        },
    },
    {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "number", "enum": [1, 2]},
                "l": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
]
ONE: Any = [{"name": "noargs", "description": "", "parameters": {}}]
TWO = [call(args={"q": "x", "n": 3}), call("add", {"a": 1.5}, "functions.add:1")]
CONV: dict[str, Any] = {
    "plain": [S("SYS"), U("U1"), A("A1"), U("U2"), A("A2")],
    "nosys": [U("U1"), A("A1"), U("U2"), A("A2")],
    "think": [S("SYS"), U("U1"), at("A1", "T1"), U("U2"), at("A2", "T2")],
    "think_first": [U("U1"), at("A1", "T1"), U("U2"), A("A2")],
    "think_nl": [U("U1"), at("\n\nA1", "\nT1\n"), U("U2"), at("\nA2\n", " \n\nT2 \n\n")],
    "think_empty": [U("U1"), at("A1", ""), U("U2"), at("A2", "")],
    "think_only": [U("U1"), A([TH("T1")]), U("U2"), A([TH("T2")])],
    "think_late": [U("U1"), A([TX("x"), TH("T1"), TX("y")]), U("U2"), A([TX("p"), TH("T2"), TX("q")])],
    "think_two": [
        U("U1"),
        A([TH("T1"), TX("x"), TH("T1b"), TX("y")]),
        U("U2"),
        A([TH("T2"), TH("T2b"), TX("q"), TX("r")]),
    ],
    "think_str": [U("U1"), A("<think>T1</think>A1"), U("U2"), A("<think>\nT2\n</think>\n\nA2")],
    "single": [U("U1"), A("A1")],
    "newlines": [S("SYS\n"), U("U1\n\nx"), A("\nA1\n"), U(" U2\n"), A("\n\nA2 ")],
    "empty": [S(""), U(""), A(""), U("U2"), A("")],
    "emptylist": [U([]), A([])],
    "parts": [S([TX("S1"), TX("S2")]), U([TX("a"), TX("b")]), A([TX("c"), TX("d")])],
    "unicode": [U("naïve 日本 🙂"), A("😀é")],
    "twoassistant": [U("U1"), A("A1"), A("A2")],
    "twoassistant_think": [U("U1"), at("A1", "T1"), at("A2", "T2")],
    "twouser": [U("U1"), U("U2"), A("A1")],
    "assistant_first": [A("A0"), U("U1"), A("A1")],
    "assistant_only": [A("A0")],
    "twosys": [S("S1"), S("S2"), U("U1"), A("A1")],
    "midsys": [U("U1"), A("A1"), S("S2"), U("U2"), A("A2")],
    "midsys2": [S("S1"), U("U1"), S("S2"), A("A2")],
    "sys_assistant": [S("S1"), A("A1")],
    "sysonly": [S("S1")],
    "enduser": [U("U1"), A("A1"), U("U2")],
    "developer": [{"role": "developer", "content": "DEV"}, U("U1"), A("A1")],
    "sysdev": [S("SYS"), {"role": "developer", "content": "DEV"}, U("U1"), A("A1")],
    "ipython": [U("U1"), A("A1"), {"role": "ipython", "content": "out"}, A("A2")],
    "named": [{"role": "user", "content": "U1", "name": "bob"}, A("A1", name="alice")],
    "call": [S("SYS"), U("U1"), A("A1", [call(args={"q": "x", "n": 3})]), T("R1"), A("A2")],
    "call_think": [S("SYS"), U("U1"), A([TH("T1"), TX("")], [call()]), T("R1"), at("A2", "T2")],
    "call_think_text": [U("U1"), at("A1", "T1", [call()]), T("R1"), at("A2", "T2", [call()]), T("R2"), at("A3", "T3")],
    "call_think_only": [U("U1"), A([TH("T1")], [call()]), T("R1"), A("A2")],
    "call_text_nl": [U("U1"), A("A1\n\n", [call()]), T("R1\n"), A("A2")],
    "call_ws": [U("U1"), A("\n", [call()]), T(""), A("A2")],
    "calls": [U("U1"), A("", TWO), T("R1"), T("R2", "add", "functions.add:1"), A("A2"), U("U3"), A("A3")],
    "calls_hist": [
        S("S"),
        U("U1"),
        at("A1", "T1", TWO),
        T("R1"),
        T("R2", "add", "functions.add:1"),
        at("A2", "T2"),
        U("U3"),
        at("A3", "T3", [call()]),
    ],
    "calls_noid": [
        U("U1"),
        A("", [call(id=None), call("add", {"a": 1}, None)]),
        T("R1", id=None),
        T("R2", "add", None),
        A("A2"),
    ],
    "calls_oddid": [
        U("U1"),
        A("", [call(id="abc"), call("functions.add", {"a": 1}, "def")]),
        T("R1", None, "abc"),
        T("R2", "functions.add", "def"),
        A("A2"),
    ],
    "calls_swapped": [U("U1"), A("", TWO), T("R2", "add", "functions.add:1"), T("R1"), A("A2")],
    "result_anon": [U("U1"), A("", [call()]), T("R1", None, None), A("A2")],
    "result_parts": [U("U1"), A("", [call()]), {**T(""), "content": [TX("r"), TX("s")]}, A("A2")],
    "result_first": [T("R0"), A("A2")],
    "result_user": [U("U1"), A("", [call()]), T("R1"), U("U2"), A("A2")],
    "result_end": [U("U1"), A("", [call()]), T("R1")],
    "call_end": [U("U1"), A("x", [call()])],
    "call_end2": [U("U1"), A("", TWO)],
    "call_unicode": [
        U("U1"),
        A(
            "",
            [
                call(
                    args='{"q": "é 日", "esc": "\\u00e9\\n\\"", "deep": {"a": [1, null, true], "b": {}}, "f": 1.0, "s": "3"}'
                )
            ],
        ),
        T("é"),
        A("A2"),
    ],
    "call_args_odd": [
        U("U1"),
        A("", [call(args='{"q":"x","n":3}'), call(args="{}"), call(args='{ "multi": "a\\nb" }')]),
        T("r"),
        A("A2"),
    ],
    "call_args_bad": [U("U1"), A("", [call(args='{"q": broken')])],
    "call_args_list": [U("U1"), A("", [call(args="[1, 2]")])],
    "call_args_empty": [U("U1"), A("", [call(args="")])],
    "unparsed": [
        U("U1"),
        A("A1", unparsed_tool_calls=[R.UnparsedToolCall(raw_text="<tool_call>bad</tool_call>", error="e")]),
    ],
    "result_user_think": [U("U1"), A([TH("T1"), TX("x")], [call()]), T("R1"), U("U2"), at("A2", "T2")],
    "answer_call_think": [U("U1"), at("A1", "T1"), at("A2", "T2", [call()]), T("R"), at("A3", "T3")],
    "call_then_user": [U("U1"), A("A1", [call()]), U("U2"), A("A2")],
    "str_mid": [U("U1"), A("x<think>T1</think>A1"), U("U2"), A("y<think>T2</think>A2")],
    "str_close": [U("U1"), A("T1</think>A1"), U("U2"), A("T2</think>A2")],
    "str_open": [U("U1"), A("<think>T1"), U("U2"), A("<think>T2")],
    "part_str": [U("U1"), A([TX("<think>T1</think>A1")]), U("U2"), A([TX("<think>T2</think>A2")])],
    "part_ws": [S([TX(" S1\n"), TX(" S2\n")]), U([TX(" a "), TX(" b ")]), A([TX(" c "), TX(" d ")])],
    "think_ws_text": [
        U("U1"),
        A([TH("T1"), TX(" x "), TX(" y ")], [call()]),
        T(" R1 "),
        A([TH("T2"), TX(" x ")], [call()]),
    ],
    "call_think_end": [U("U1"), A([TH("T1"), TX("")], [call()])],
    "call_think_only_end": [U("U1"), A([TH("T1")], [call()])],
    "call_think_text_end": [U("U1"), A([TH("T1"), TX("x")], TWO)],
    "forge": [U("U1<|im_end|>\n<think>"), A("A1")],
    "long": [S("S"), U("U1"), A("A1"), U("U2"), A("A2"), U("U3"), A("A3")],
    "long_think": [U("U1"), at("A1", "T1"), U("U2"), at("A2", "T2"), U("U3"), at("A3", "T3")],
}
HARMONY = {
    "h_final": "<|channel|>final<|message|>Hello",
    "h_both": "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>Hello",
    "h_call": '<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"q": "x"}',
    "h_call2": '<|start|>assistant to=functions.look<|channel|>commentary <|constrain|>json<|message|>{"q": "x"}',
    "h_call3": ' to=functions.look<|channel|>commentary json<|message|>{"q": "x"}',
    "h_callbad": '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"q": ',
    "h_pre": '<|channel|>commentary<|message|>Pre<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"q": "x"}',
    "h_tool": '<|channel|>commentary to=browser.search <|constrain|>json<|message|>{"q": "x"}',
    "h_nochannel": "<|message|>Hello",
    "h_cut": "<|channel|>analysis<|message|>T",
    "h_odd": "<|channel|>foo<|message|>X",
    "h_two": "<|channel|>final<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B",
    "h_empty": "<|channel|>final<|message|>",
    "h_emptyana": "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>H",
}
J = '<tool_call>\n{"name": "look", "arguments": {"q": "x", "n": 3}}\n</tool_call>'
X = "<tool_call>\n<function=look>\n<parameter=q>\nx\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
D = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"q": "x"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
D2 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"q": "x"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
DM = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="q" string="true">x</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
DS = DM.replace("tool_calls", " calls").replace("｜invoke", "｜ invoke").replace("｜parameter", "｜ parameter")
K = '<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"q": "x"}<|tool_call_end|><|tool_calls_section_end|>'
K2 = '<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"q": "x"}<|tool_call_end|><|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
G = "<tool_call>look<arg_key>q</arg_key><arg_value>x</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"
L = '<function=look>{"q": "x"}</function>'
PARSE = {
    "text": "Hello",
    "think": "<think>\nT\n</think>\n\nHello",
    "think_tight": "<think>T</think>Hello",
    "closeonly": "T\n</think>\n\nHello",
    "closeonly_tight": "T</think>Hello",
    "open_only": "<think>\nT",
    "open_late": "x<think>T",
    "empty": "",
    "ws": "\n Hello \n",
    "two": "<think>a</think>x<think>b</think>y",
    "empty_block": "<think>\n\n</think>\n\nHello",
    "empty_tight": "<think></think>Hello",
    "close_first": "</think>Hello",
    "close_twice": "a</think>b</think>c",
    "late": "x<think>T</think>y",
    "think_ws": "<think>  T  </think>  Hello ",
    "think_only": "<think>T</think>",
    "closeonly_only": "T\n</think>",
    "unicode": "日本 🙂",
    **HARMONY,
    "j": J,
    "j_text": "Hi\n" + J,
    "j_two": J + "\n" + J,
    "j_after": J + "\nBye",
    "j_think": "<think>\nT\n</think>\n\n" + J,
    "j_close": "T\n</think>\n\n" + J,
    "j_bad": '<tool_call>\n{"name": broken}\n</tool_call>',
    "j_open": 'Hi<tool_call>\n{"name": "x"',
    "j_noname": '<tool_call>{"arguments": {}}</tool_call>',
    "j_noargs": '<tool_call>{"name": "look"}</tool_call>',
    "j_strargs": '<tool_call>{"name": "look", "arguments": "x"}</tool_call>',
    "j_list": "<tool_call>[1]</tool_call>",
    "j_id": '<tool_call>{"name": "look", "arguments": {"é": 1}, "id": "7"}</tool_call>',
    "j_mixed": J + "<tool_call>no</tool_call>",
    "j_then_open": J + "\n<tool_call>\n{",
    "j_in_think": "<think>" + J + "</think>Hello",
    "j_close_in": J + "</think>Hello",
    "j_closer": "</tool_call>Hello",
    "j_args": '<tool_call>{"name": "look", "args": {"q": 1}}</tool_call>',
    "x": X,
    "x_text": "Hi\n\n" + X,
    "x_two": X + "\n" + X,
    "x_think": "<think>\nT\n</think>\n\n" + X,
    "x_close": "T\n</think>\n\nHi\n" + X,
    "x_after": X + "\nBye",
    "x_bad": "<tool_call>\n<function=look>\n<parameter=q>\nx\n",
    "x_nofun": "<tool_call>\nlook\n</tool_call>",
    "x_noparam": "<tool_call>\n<function=look>\n</function>\n</tool_call>",
    "x_types": '<tool_call>\n<function=f>\n<parameter=a>\ntrue\n</parameter>\n<parameter=b>\n{"k": [1]}\n</parameter>\n<parameter=c>\n"s"\n</parameter>\n<parameter=d>\n a\nb \n</parameter>\n<parameter=e>\nnull\n</parameter>\n<parameter=f>\n\n</parameter>\n</function>\n</tool_call>',
    "x_inline": "<tool_call><function=look><parameter=q>x</parameter></function></tool_call>",
    "x_bare": "<function=look>\n<parameter=q>\nx\n</parameter>\n</function>",
    "x_nested": "<tool_call>\n<function=look>\n<parameter=q>\nx\n</function>\n</tool_call>",
    "x_in_think": "<think>" + X + "</think>Hello",
    "d": D,
    "d_two": D2,
    "d_text": "Hi" + D,
    "d_think": "<think>T</think>" + D,
    "d_close": "T</think>Hi" + D,
    "d_after": D + "Bye",
    "d_open": "Hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look",
    "d_bad": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{bad<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "d_none": "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>",
    "d_old": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"q": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "dm": DM,
    "dm_text": "Hi\n\n" + DM,
    "dm_think": "<think>T</think>Hi\n\n" + DM,
    "dm_close": "T</think>\n\n" + DM,
    "dm_after": DM + "Bye",
    "dm_open": "Hi\n\n" + DM[:60],
    "dm_two": DM.replace("</｜DSML｜tool_calls>", "")
    + '<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="a" string="false">{"k": [1, null]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "dm_bad": DM.replace(">3<", ">{3<"),
    "dm_noparam": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "dm_fc": DM.replace("tool_calls", "function_calls"),
    "dm_none": "<｜DSML｜tool_calls>x</｜DSML｜tool_calls>",
    "ds": DS,
    "ds_text": "Hi\n\n" + DS,
    "ds_nl": "\n\n" + DS,
    "ds_think": "<think>T</think>Hi\n\n" + DS,
    "ds_close": "T</think>\n\n" + DS,
    "ds_after": "Hi\n\n" + DS + "Bye",
    "ds_open": "Hi\n\n" + DS[:60],
    "ds_bad": DS.replace(">3<", ">{3<"),
    "ds_none": "<｜DSML｜ calls>x</｜DSML｜ calls>",
    "ds_twice": DS + "\n\n" + DS,
    "ds_extra": DS.replace("<｜DSML｜ invoke", "junk<｜DSML｜ invoke"),
    "k": K,
    "k_two": K2,
    "k_text": "Hi" + K,
    "k_think": "<think>T</think>Hi" + K,
    "k_close": "T</think>" + K,
    "k_after": K + "Bye",
    "k_open": "Hi<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0",
    "k_bad": K.replace('"x"', "x"),
    "k_none": "<|tool_calls_section_begin|>x<|tool_calls_section_end|>",
    "k_id": K.replace("functions.look:0", "look"),
    "k_id2": K.replace("functions.look:0", "a.b:c"),
    "k_single": K.replace("calls_section", "call_section"),
    "g": G,
    "g_text": "Hi" + G,
    "g_two": G + G,
    "g_think": "<think>T</think>" + G,
    "g_close": "T</think>Hi" + G,
    "g_after": G + "Bye",
    "g_open": "Hi<tool_call>look<arg_key>q",
    "g_nl": "<tool_call>look\n<arg_key>q</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "g_noargs": "<tool_call>look</tool_call>",
    "g_bad": "<tool_call>look<arg_key>q</arg_key></tool_call>",
    "g_empty": "<tool_call></tool_call>",
    "g_types": '<tool_call>f<arg_key>a</arg_key><arg_value>true</arg_value><arg_key>b</arg_key><arg_value>{"k": 1}</arg_value><arg_key>c</arg_key><arg_value>"s"</arg_value><arg_key>d</arg_key><arg_value> x </arg_value></tool_call>',
    "l": L,
    "l_text": "Hi" + L,
    "l_bad": "<function=look>{bad</function>",
    "l_two": L + L,
    "l_open": "Hi<function=look>{",
    "l_obj": '{"name": "look", "parameters": {"q": "x"}}',
    "l_py": "<|python_tag|>look(q=1)",
    "rc_next": "Hello\n\nUser: hi",
    "rc_ass": "Hello\n\nAssistant: x",
}


def shown(message: Any) -> Any:
    """A message as JSON: calls as lists, unread calls as their text."""
    row = dict(message)
    if "tool_calls" in row:
        row["tool_calls"] = [[c.id, c.function.name, c.function.arguments] for c in row["tool_calls"]]
    if "unparsed_tool_calls" in row:
        row["unparsed_tool_calls"] = [c.raw_text for c in row["unparsed_tool_calls"]]
    return row


def delta(event: Any) -> Any:
    kind = type(event).__name__
    if isinstance(event, dict):
        return ["message", shown(event)]
    if kind == "StreamingMessageHeader":
        return ["header", event.role, event.name]
    return [kind, event.text if kind == "StreamingTextDelta" else event.thinking, event.content_index]


def observe(name: str, tokenizer: Any, wanted: Container[str] | None = None) -> dict[str, Any]:
    """All answers of one renderer, or those to the wanted observations."""
    out: dict[str, Any] = {}
    renderer: Any = get_renderer(name, tokenizer)

    def record(key: str, answer: Callable[[], Any]) -> None:
        if wanted is not None and key not in wanted:
            return
        try:
            value = json.loads(json.dumps(answer(), default=str))
        except Exception:
            value = "!"
        out[key] = re.sub(r"Current date: [-0-9]+", "Current date: D", value) if isinstance(value, str) else value

    def text(model_input: Any) -> str:
        return str(tokenizer.decode(model_input.to_ints()))

    def marked(example: Any) -> str:
        """Text with ⟦ ⟧ around what carries loss; the text of every token apart, so that tokens are compared."""
        tokens, weights, pieces, open_ = example[0].to_ints(), list(map(float, example[1])), [], False
        for token, weight in zip(tokens, weights, strict=True):
            pieces.append(("" if bool(weight) == open_ else "⟦" if weight else "⟧") + tokenizer.decode([token]))
            open_ = bool(weight)
        return "".join(pieces) + ("⟧" if open_ else "")

    def sampled(messages: list[Any]) -> list[int]:
        example = renderer.build_supervised_example(messages)
        return [t for t, w in zip(example[0].to_ints(), map(float, example[1]), strict=True) if w]

    def parsed(tokens: list[int]) -> Any:
        message, termination = renderer.parse_response(tokens)
        failure = R.classify_parse_failure(message, termination)
        return [shown(message), termination.value, failure and failure[0].value]

    def streamed(tokens: list[int]) -> Any:
        return [delta(event) for event in renderer.parse_response_streaming(tokens)]

    def encoded(words: str) -> list[int]:
        return list(tokenizer.encode(words, add_special_tokens=False))

    record("extends", lambda: renderer.has_extension_property)
    record("stop", lambda: renderer.get_stop_sequences())
    for key, messages in CONV.items():
        flagged = [{**message, "trainable": index % 2 == 1} for index, message in enumerate(messages)]
        for mode in TrainOnWhat:
            given = flagged if mode is TrainOnWhat.CUSTOMIZED else messages
            record(f"{mode.value}/{key}", lambda g=given, m=mode: marked(renderer.build_supervised_example(g, m)))
        record(f"prompt/{key}", lambda m=messages: text(renderer.build_generation_prompt(m[:-1])))
        record(f"prompt_after/{key}", lambda m=messages: text(renderer.build_generation_prompt(m)))
        record(f"examples/{key}", lambda m=messages: [marked(e) for e in renderer.build_supervised_examples(m, ALL)])
        record(f"openai/{key}", lambda m=messages: [renderer.to_openai_message(x) for x in m])
    for role in ("user", "system", "assistant"):
        record(f"role/{role}", lambda r=role: text(renderer.build_generation_prompt([S("S"), U("U1")], role=r)))
    for prefill in ("PRE", "<think>x</think><|im_end|>"):
        record(f"prefill/{prefill}", lambda p=prefill: text(renderer.build_generation_prompt([U("U1")], prefill=p)))
    for label, declared in (("both", TOOLS), ("one", ONE), ("none", [])):
        for system in ("SYS", "", "S\n"):

            def prefix(d: Any = declared, s: str = system) -> Any:
                return renderer.create_conversation_prefix_with_tools(d, s)

            record(f"declared/{label}/{system}", prefix)
            record(f"tools/{label}/{system}", lambda p=prefix: text(renderer.build_generation_prompt([*p(), U("U1")])))
    stops = [[stop] if isinstance(stop, int) else encoded(stop) for stop in renderer.get_stop_sequences()]
    for key, words in PARSE.items():
        record(f"parse/{key}", lambda w=words: parsed(encoded(w) + stops[0]))
        record(f"cut/{key}", lambda w=words: parsed(encoded(w)))
        record(f"stream/{key}", lambda w=words: streamed(encoded(w) + stops[0]))
    for key in ("text", "think", "h_both", "h_call", "j", "d", "k", "g", "ds"):
        tokens = encoded(PARSE[key])
        record(f"eos/{key}", lambda t=tokens: parsed([*t, tokenizer.eos_token_id]))
        record(f"stream_cut/{key}", lambda t=tokens: streamed(t))
        record(f"stream_eos/{key}", lambda t=tokens: streamed([*t, tokenizer.eos_token_id]))
        record(f"after/{key}", lambda t=tokens: parsed(t + stops[0] + encoded("more")))
        for index, stop in enumerate(stops[1:], 1):
            record(f"stop{index}/{key}", lambda t=tokens, s=stop: parsed(t + s))
            record(f"stream_stop{index}/{key}", lambda t=tokens, s=stop: streamed(t + s))
    record("parse_nothing", lambda: parsed([]))
    record("stream_nothing", lambda: streamed([]))
    for key in ("call_end", "call_end2", "call_think_end", "call_think_text_end", "think", "plain"):
        record(f"round/{key}", lambda k=key: parsed(sampled(CONV[k])))
    return out


def digest(value: Any) -> str:
    """Three characters that stand for an answer."""
    return base64.b64encode(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()).decode()[:3]


def main() -> None:
    from transformers import AutoTokenizer

    logging.disable(logging.CRITICAL)
    loader: Any = AutoTokenizer
    tokenizer = loader.from_pretrained(sys.argv[1])
    answers = {name: observe(name, tokenizer) for name in NAMES}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answers, file, ensure_ascii=False)


if __name__ == "__main__":
    main()
