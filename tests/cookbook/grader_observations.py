"""What the graders of a cookbook say of generated answers: python grader_observations.py TOKENIZER OUT.

Uses names that both cookbooks have, else the first one of two that is there, so that it runs with either.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

logging.disable(logging.CRITICAL)
RECIPES = "tinker_cookbook.recipes."


def first(*paths: str) -> Any:
    """The first of ``module:name`` that exists."""
    for path in paths:
        module, name = path.split(":")
        try:
            return getattr(importlib.import_module(RECIPES.removesuffix("recipes.") + module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"none of {paths}")


def number(rng: random.Random) -> str:
    value = rng.choice([0, 1, 2, 3, 7, 10, 12, 100, 1000, 2500, 12345, 1234567, -1, -5, -40])
    forms = [
        str(value),
        f"{value:,}",
        f"{value}.0",
        f"{value}.5",
        f"{value}.",
        f"${value}$",
        f"\\${value}",
        f"{value}\\%",
        f"{value}%",
        f" {value} ",
        f"+{value}",
        f"{value:,}".replace(",", "{,}"),
        f"\\text{{{value}}}",
        f"{value}\\text{{ cm}}",
        f"{value} \\text{{ cm}}",
        f"{value} cm",
        f"{value}^\\circ",
        f"{value}^{{\\circ}}",
        f"x={value}",
        f"x = {value}",
        f"0{value}",
        f".{abs(value)}",
        f"{value}e2",
        f"{value} dollars",
        f"{value} million",
        f"\\left({value}\\right)",
        f"({value})",
        f"{{{value}}}",
        f"\\mathrm{{{value}}}",
        f"{value}\\!",
        f"{value}\\,",
    ]
    return rng.choice(forms)


def expression(rng: random.Random) -> str:
    a, b = rng.randint(1, 6), rng.randint(1, 6)
    forms = [
        f"\\frac{{{a}}}{{{b}}}",
        f"\\dfrac{{{a}}}{{{b}}}",
        f"\\tfrac{{{a}}}{{{b}}}",
        f"\\frac{a}{b}",
        f"\\frac {a} {b}",
        f"-\\frac{{{a}}}{{{b}}}",
        f"\\frac{{-{a}}}{{{b}}}",
        f"{a}/{b}",
        f"{a}\\frac{{{b}}}{{7}}",
        f"{a} {b}/7",
        f"\\sqrt{{{a}}}",
        f"\\sqrt{a}",
        f"{a}\\sqrt{{{b}}}",
        f"\\frac{{\\sqrt{{{a}}}}}{{{b}}}",
        f"{a}\\pi",
        f"{a}pi",
        f"\\frac{{{a}\\pi}}{{{b}}}",
        f"{a}^{b}",
        f"{a}^{{{b}}}",
        f"x^{a}+{b}",
        f"{b}+x^{a}",
        f"(x+{a})(x-{b})",
        f"(x-{b})(x+{a})",
        f"x^2+{a - b}x-{a * b}",
        f"{a}x+{b}",
        f"{b}+{a}x",
        f"{a}\\cdot{b}",
        f"{a}\\times {b}",
        f"{a * b}",
        f"{a}+{b}i",
        f"{b}i+{a}",
        f"\\log_{{{a}}}{b}",
        f"e^{{{a}}}",
        f"|{a}-{b}|",
        f"{a}!",
        f"{a}_{b}",
        f"2^{{{a}x}}",
        f"\\cos {a}",
    ]
    return rng.choice(forms)


def collection(rng: random.Random) -> str:
    a, b, c = rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3)
    forms = [
        f"({a},{b})",
        f"({a}, {b})",
        f"({b},{a})",
        f"[{a},{b}]",
        f"[{a},{b})",
        f"({a},{b}]",
        f"\\left({a},{b}\\right)",
        f"({a},{b},{c})",
        f"\\{{{a},{b}\\}}",
        f"{a},{b}",
        f"{a}, {b}",
        f"{b}, {a}",
        f"({a},\\infty)",
        f"(-\\infty,{a}]",
        f"({a},\\frac{{{b}}}{{2}})",
        f"({a},{b}/2)",
        f"({a},0.{5 * b})",
        f"({a},{b})\\cup({b},{c})",
        f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}",
        f"{a} and {b}",
        f"{a} or {b}",
    ]
    return rng.choice(forms)


def words(rng: random.Random) -> str:
    return rng.choice(
        [
            "\\text{yes}",
            "yes",
            "Yes",
            "\\text{Yes}",
            "A",
            "\\text{A}",
            "(A)",
            "\\text{(A)}",
            "a",
            "\\textbf{A}",
            "Monday",
            "monday",
            "\\text{east}",
            "east",
            "\\infty",
            "none",
            "\\emptyset",
            "",
            " ",
            "x",
            "\\frac{1}",
            "\\sqrt{",
            "1/0",
            "((",
            "2**3",
            "even",
            "\\text{even}",
            "p - q",
            "\\text{Even}",
        ]
    )


KINDS = (number, expression, collection, words)


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Given answers and references, mostly of one kind."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        kind = rng.choices(KINDS, weights=(4, 4, 3, 1))[0]
        other = kind if rng.random() < 0.9 else rng.choice(KINDS)
        rows.append((kind(rng), other(rng)))
    return rows


def math(count: int) -> dict[str, Any]:
    """``safe_grade`` of pairs, and an environment's two checks of whole answers."""
    module = importlib.import_module(RECIPES + "math_rl.math_env")
    out = {
        f"grade {given!r} {truth!r}": module.safe_grade(given, truth, timeout=20.0) for given, truth in pairs(count, 0)
    }
    rng = random.Random(1)
    for given, truth in pairs(count // 8, 2):
        text = rng.choice(
            [
                "So \\boxed{%s}.",
                "\\boxed{%s}",
                "first \\boxed{9} then \\boxed{%s}",
                "\\boxed{%s} and later \\boxed{",
                "\\fbox{%s}",
                "\\boxed %s",
                "The answer is %s",
                "\\boxed{\\boxed{%s}}",
                "\\boxed{%s",
                "$\\boxed{%s}$ or $\\boxed{}$",
                "\\boxed {%s}",
            ]
        ).replace("%s", given)
        env = module.MathEnv("?", truth, None, timeout=20.0)
        out[f"answer {text!r} {truth!r}"] = [bool(env.check_format(text)), bool(env.check_answer(text))]
    return out


def gsm8k(count: int) -> dict[str, Any]:
    read = importlib.import_module(RECIPES + "math_rl.math_env").extract_gsm8k_final_answer
    rng, out = random.Random(3), {}
    for _ in range(count):
        text = rng.choice(
            ["#### %s", "so it is\n#### %s", "####%s", "#### %s\n", "#### 1\n#### %s", "%s", "## %s", "a #### %s b"]
        )
        text = text.replace("%s", number(rng))
        out[f"gsm8k {text!r}"] = outcome(lambda text=text: read(text))
    return out


def arithmetic(count: int) -> dict[str, Any]:
    env_class = importlib.import_module(RECIPES + "math_rl.arithmetic_env").ArithmeticEnv
    rng, out = random.Random(4), {}
    for _ in range(count):
        x, y = rng.randint(0, 99), rng.randint(0, 99)
        value = x + y + rng.choice([0, 0, 0, 1, 10])
        text = rng.choice(
            [
                "%s",
                " %s",
                "%s.",
                "%s\n",
                "= %s",
                "The answer is %s",
                "%s %s",
                "%s apples",
                "0%s",
                "-%s",
                "%s.0",
                "**%s**",
                "%s = %s",
                "",
                "x + y = %s!",
                "%s, I think",
                "first 5 then %s",
                "%s then 5",
                "1,%s",
                "%s/1",
                "${%s}$",
            ]
        ).replace("%s", str(value))
        env = env_class(x, y, None)
        out[f"sum {x}+{y} {text!r}"] = [bool(env.check_answer(text)), bool(env.check_format(text))]
    return out


def code(count: int) -> dict[str, Any]:
    read = first("recipes.code_rl.code_grading:extract_code_from_model", "eval.benchmarks.grading:extract_python_code")
    rng, out = random.Random(5), {}
    pieces = [
        "```python\nprint(1)\n```",
        "```\nprint(2)\n```",
        "```py\nprint(3)\n```",
        "```Python\nprint(4)\n```",
        "```cpp\nint main;\n```",
        "text",
        "```python\nprint(5)",
        "``` python\nprint(6)\n```",
        "```python print(7)```",
        "\n",
        "`x`",
        "```python\n\n```",
        "  ```python\n  print(8)\n  ```",
        "```python\r\nprint(9)\r\n```",
        "```python\nprint('```')\n```",
        "```python3\nprint(10)\n```",
    ]
    for _ in range(count):
        text = rng.choice(["", "\n"]).join(rng.choice(pieces) for _ in range(rng.randint(1, 4)))
        out[f"code {text!r}"] = read(text)
    return out


def rubric(count: int) -> dict[str, Any]:
    read = importlib.import_module(RECIPES + "rubric.data").Rubric("quality").extract_score
    rng, out = random.Random(6), {}
    for _ in range(count):
        value = rng.choice(
            [
                "0.5",
                "1",
                "0",
                " 0.7 ",
                "-1",
                "1.5",
                "one",
                "",
                "0,5",
                "5/10",
                "1.",
                ".5",
                "1e-1",
                "nan",
                "inf",
                "0.5.",
                "\n1\n",
                "<b>1</b>",
                "50%",
            ]
        )
        text = rng.choice(
            [
                "<score>%s</score>",
                "I say <score>%s</score>.",
                "<score>0.1</score><score>%s</score>",
                "<score>%s",
                "%s</score>",
                "score: %s",
                "<SCORE>%s</SCORE>",
                "<score> %s </score>",
                "<score>\n%s\n</score>",
                "<score>%s</score> <score>x</score>",
            ]
        )
        text = text.replace("%s", value)
        out[f"rubric {text!r}"] = outcome(lambda text=text: str(read(text)))
    return out


def shorter(count: int) -> dict[str, Any]:
    model = first(
        "recipes.preference.shorter.env:PreferenceModelShorter",
        "recipes.preference.shorter.train:ShorterPreferenceModel",
    )()
    comparison = first("preference.types:Comparison")
    rng, out = random.Random(7), {}
    texts = ["", " ", "a", "ab", "abc def", "é", "日本語", "a\nb", "x" * 50, "\t\t\t", "word " * 5, "  padded  "]
    for _ in range(count):
        a, b = rng.choice(texts), rng.choice(texts)
        sides = [[{"role": "assistant", "content": text}] for text in (a, b)]
        if rng.random() < 0.1:
            sides[0].append({"role": "user", "content": "more"})
        asked = comparison([{"role": "user", "content": "q"}], *sides)
        out[f"shorter {sides}"] = float(asyncio.run(model(asked)))
    return out


def guess_number(count: int, tokenizer: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from tinker_cookbook import renderers

    read = AutoTokenizer.from_pretrained(str(tokenizer))
    renderer = renderers.get_renderer("qwen3_instruct", read)
    builder = first(
        "recipes.multiplayer_rl.guess_number.env:GuessNumberEnvGroupBuilder",
        "recipes.multiplayer_rl.guess_number.env:GuessNumberGroupBuilder",
    )
    rng, out = random.Random(8), {}

    async def play(answer: int, texts: list[str]) -> list[Any]:
        env = (await builder(answer=answer, renderer=renderer, num_envs=1).make_envs())[0]
        await env.initial_observation()
        turns = []
        for text in texts:
            cut = len(text) % 5 == 0  # some answers are cut off
            tokens = read.encode(text if cut else text + "<|im_end|>", add_special_tokens=False)
            result = await env.step(tokens, extra={"stop_reason": "length" if cut else "stop"})
            turns.append([result.reward, result.episode_done])
            if result.episode_done:
                break
        return turns

    forms = [
        "Guess: %s",
        "guess: %s",
        "Guess:%s",
        "Guess %s",
        "%s",
        "Guess: %s.",
        "I say Guess: %s!",
        "Guess: number",
        "Guess: -%s",
        "Guess: %s5",
        "Guess: %s\nGuess: 1",
        "",
        "Guess:  %s",
        "Guess: 0%s",
        "I say Guess: %s",
        "Guess: %s ",
        " Guess: %s",
        "Guess: %s\nthanks",
        "ok\nGuess: %s",
        "Guess: %s Guess: 1",
        "Guess: %s.0",
    ]
    for _ in range(count):
        answer = rng.randint(0, 60)
        texts = [
            rng.choice(forms).replace("%s", str(rng.choice([answer, answer, rng.randint(0, 60)])))
            for _ in range(rng.randint(1, 12))
        ]
        out[f"guess {answer} {texts}"] = asyncio.run(play(answer, texts))
    return out


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the kind of error."""
    try:
        return call()
    except ValueError:
        return "ValueError"
    except Exception as error:
        return type(error).__name__


def main(tokenizer: Path, out: Path) -> None:
    found = {
        "math": math(4000),
        "gsm8k": gsm8k(600),
        "arithmetic": arithmetic(800),
        "code": code(800),
        "rubric": rubric(600),
        "shorter": shorter(400),
        "guess_number": guess_number(400, tokenizer),
    }
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
