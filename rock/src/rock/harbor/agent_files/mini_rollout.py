"""mini-swe-agent inside the task environment, with a light chat client in place of litellm.

Runs under the agent's own Python: ``python mini_rollout.py settings.json``. Needs mini-swe-agent and the standard library only.
Exit code 0: the agent came to an end of its own (submitted, a budget reached, the context full); 1: it could not go on.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_CONFIGURED", "true")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", "/tmp/mini-swe-agent")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import FormatError, InterruptAgentFlow
from minisweagent.models.utils.actions_text import format_observation_messages, parse_regex_actions
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 1.0
EXAMPLES_VARIABLE = "ROCK_AGENT_EXAMPLES"
PROFILE_VARIABLE = "ROCK_AGENT_PROFILE"


class ContextFull(InterruptAgentFlow):
    """The policy refused the prompt as too long."""


class EndpointError(RuntimeError):
    """The model endpoint gave no usable answer."""


class ChatModel:
    """An OpenAI chat endpoint as a model of mini-swe-agent: plain HTTP, one idempotency key a call.

    ``settings`` (section ``model`` of a profile): model_name, base_url, request_timeout, max_tokens, temperature, top_p,
    extra_body, tools (tool calls instead of text), action_regex, observation_template, format_error_template,
    max_observation_length (characters), last_n_observations (0 keeps all), examples (chat turns before the task).
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.config = SimpleNamespace(model_name=settings["model_name"])
        address = urlsplit(settings["base_url"].rstrip("/") + "/chat/completions")
        self._address = address
        self._key = os.environ.get("OPENAI_API_KEY") or "local"
        self._session = uuid.uuid4().hex

    # --- the protocol of mini-swe-agent's models ----------------------------------------------------------------------

    def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        response = self._post(self._body(messages))
        choice = response["choices"][0]
        message = dict(choice["message"])
        extra = {"response": response, "cost": 0.0, "timestamp": time.time()}
        try:
            actions = self._actions(message, choice.get("finish_reason"))
        except FormatError as error:
            # The answer belongs into the history: the complaint that follows refers to it.
            error.messages = ({**message, "extra": extra}, *error.messages)
            raise
        return {**message, "extra": {**extra, "actions": actions}}

    def format_message(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        variables = {**(template_vars or {}), "limit": self.settings["max_observation_length"]}
        template = self.settings["observation_template"]
        if self.settings["tools"]:
            actions = message.get("extra", {}).get("actions", [])
            return format_toolcall_observation_messages(
                actions=actions, outputs=outputs, observation_template=template, template_vars=variables
            )
        return format_observation_messages(outputs, observation_template=template, template_vars=variables)

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {"model_name": self.settings["model_name"]}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"model": self.settings, "model_type": "rock.harbor.ChatModel"}}}

    # --- inside -------------------------------------------------------------------------------------------------------

    def _body(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        sent = [{k: v for k, v in message.items() if k != "extra"} for message in messages if message["role"] != "exit"]
        keep = self.settings["last_n_observations"]
        if keep:
            seen = [i for i, message in enumerate(messages) if "returncode" in message.get("extra", {})]
            for index in seen[:-keep]:
                lines = len(str(sent[index]["content"]).splitlines())
                sent[index] = {**sent[index], "content": f"Old environment output: ({lines} lines omitted)"}
        body: dict[str, Any] = {
            "model": self.settings["model_name"],
            "messages": [sent[0], *self.settings["examples"], *sent[1:]],
        }
        for name in ("max_tokens", "temperature", "top_p"):
            if self.settings[name] is not None:
                body[name] = self.settings[name]
        if self.settings["tools"]:
            body["tools"] = [BASH_TOOL]
        return {**body, **self.settings["extra_body"]}

    def _actions(self, message: dict[str, Any], finish_reason: str | None) -> list[dict[str, Any]]:
        template, variables = self.settings["format_error_template"], {"finish_reason": finish_reason}
        if self.settings["tools"]:
            calls = [
                SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))
                for call in message.get("tool_calls") or []
            ]
            return parse_toolcall_actions(calls, format_error_template=template, template_kwargs=variables)
        return parse_regex_actions(
            message.get("content") or "",
            action_regex=self.settings["action_regex"],
            format_error_template=template,
            template_kwargs=variables,
        )

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        payload = json.dumps(body).encode()
        key, pause = uuid.uuid4().hex, FIRST_PAUSE_SECONDS
        for attempt in range(ATTEMPTS):
            headers = {
                "content-type": "application/json",
                "authorization": f"Bearer {self._key}",
                "user-agent": "mini-swe-agent",
                "x-session-id": self._session,
                "idempotency-key": key,
                "x-stainless-retry-count": str(attempt),
            }
            try:
                status, content = self._exchange(payload, headers)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if status == 200:
                    return json.loads(content)
                problem = self._problem(status, content)
                if status < 500 and status not in (408, 429):
                    raise EndpointError(problem)
            if attempt + 1 < ATTEMPTS:
                time.sleep(pause)
                pause *= 2
        raise EndpointError(f"{self._address.geturl()}: {problem} ({ATTEMPTS} attempts)")

    def _exchange(self, payload: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._address.hostname or "", self._address.port, timeout=self.settings["request_timeout"])
        try:
            connection.request("POST", self._address.path, body=payload, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    @staticmethod
    def _problem(status: int, content: bytes) -> str:
        try:
            error = json.loads(content)["error"]
            message, code = str(error["message"]), str(error.get("code") or "")
        except (ValueError, KeyError, TypeError):
            return f"status {status}: {content[:300]!r}"
        if code in ("context_length_exceeded", "max_length"):
            raise ContextFull(
                {"role": "exit", "content": message, "extra": {"exit_status": "ContextFull", "submission": ""}}
            )
        return f"status {status}: {message}"


class LeanEnvironment(LocalEnvironment):
    """LocalEnvironment whose variables for templates leave out the process environment."""

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {**self.config.model_dump(), **platform.uname()._asdict(), **kwargs}


def make_agent(settings: dict[str, Any]) -> DefaultAgent:
    """The agent of the profile that the settings or the environment name, within the budgets of the settings."""
    profile = settings["profiles"][settings["profile"] or os.environ.get(PROFILE_VARIABLE) or "text"]
    model = {**profile["model"], **{k: v for k, v in settings["model"].items() if v is not None}}
    agent = dict(profile["agent"])
    limits = [limit for limit in (agent.get("step_limit"), settings["agent"].get("step_limit")) if limit]
    agent.update(settings["agent"], step_limit=min(limits) if limits else 0, cost_limit=0)
    examples = os.environ.get(EXAMPLES_VARIABLE)
    if examples:
        model["examples"] = json.loads(Path(examples).read_text())
    environment = {**profile["environment"], **settings["environment"]}
    return DefaultAgent(
        ChatModel(model), LeanEnvironment(**environment), **{**agent, "output_path": Path(agent["output_path"])}
    )


def main(arguments: list[str]) -> int:
    settings = json.loads(Path(arguments[0]).read_text())
    agent = make_agent(settings)
    started = time.monotonic()
    try:
        outcome = agent.run(settings["task"])
    except EndpointError as error:
        print(f"agent stopped after {agent.n_calls} calls: {error}", flush=True)
        return 1
    status = outcome.get("exit_status") or "unknown"
    print(f"{status} after {agent.n_calls} calls in {time.monotonic() - started:.1f} s", flush=True)
    return 0 if re.fullmatch(r"\w+", status) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
