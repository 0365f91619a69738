"""The OpenAI door: ``/oai/api/v1/{chat/completions,completions,models}``."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from ...errors import ApiError, BadRequest, NotFound
from ...runtime.roles import ModelCard
from ..access import Caller, Server
from ..chat import openai_answers as answers
from ..chat.door import SSE_HEADERS, door_route, while_connected
from ..chat.generation import Target, find_target
from ..chat.openai_requests import ChatBody, CompletionBody
from ..chat.reply import Growth, Reply
from ..chat.text_completion import TextCompletion

router = APIRouter(prefix="/oai/api/v1", tags=["openai"], route_class=door_route(answers.error_body))


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatBody, request: Request, backend: Server, caller: Caller) -> Response:
    """A chat answer, whole or streamed."""
    settings, conversation = body.to_settings(), body.to_conversation()
    target = await find_target(backend, body.model, caller)
    reply = await asyncio.to_thread(Reply.to_conversation, backend, target, conversation, settings)
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": body.model}
    if body.stream:
        events = _chat_events(body, reply, {**head, "object": "chat.completion.chunk"})
        return StreamingResponse(events, media_type="text/event-stream", headers=SSE_HEADERS)
    await while_connected(request, reply.finish())
    choices = []
    for index, answer in enumerate(reply.answers):
        logprobs = answers.chat_logprobs(target.tokenizer, reply.scored[index]) if body.logprobs else None
        choice = answers.chat_choice(index, answer.text, answer.calls, reply.finishes[index], logprobs)
        choices.append(choice | ({"token_ids": answer.tokens} if body.return_token_ids else {}))
    return JSONResponse(
        {
            **head,
            "object": "chat.completion",
            "choices": choices,
            "usage": answers.usage(len(reply.prompt), reply.completion_tokens, reply.cached),
            **({"prompt_token_ids": reply.prompt} if body.return_token_ids else {}),
        }
    )


async def _chat_events(body: ChatBody, reply: Reply, head: dict[str, Any]) -> AsyncIterator[str]:
    tokenizer = reply.target.tokenizer
    calls = [0] * len(reply.answers)

    def event(choice: dict[str, Any]) -> str:
        return answers.sse({**head, "choices": [choice], **({"usage": None} if body.wants_usage else {})})

    try:
        for index in range(len(reply.answers)):
            first = answers.chat_delta(index, None)
            if body.return_token_ids and index == 0:
                first["prompt_token_ids"] = reply.prompt
            yield event(first)
        async for growth in reply.grow():
            for choice in _chat_choices(body, growth, calls):
                if body.logprobs and growth.scored:
                    choice["logprobs"] = answers.chat_logprobs(tokenizer, growth.scored)
                    growth.scored.clear()
                yield event(choice)
            if growth.finish is not None:
                yield event(answers.chat_end(growth.index, growth.finish))
        if body.wants_usage:
            counts = answers.usage(len(reply.prompt), reply.completion_tokens, reply.cached)
            yield answers.sse({**head, "choices": [], "usage": counts})
        yield answers.sse("[DONE]")
    except ApiError as error:
        yield answers.sse(answers.error_body(error.status, str(error)))


def _chat_choices(body: ChatBody, growth: Growth, calls: list[int]) -> list[dict[str, Any]]:
    choices = []
    for part in growth.parts:
        choices.append(answers.chat_delta(growth.index, part, calls[growth.index]))
        calls[growth.index] += not isinstance(part, str)
    wants_tokens = body.return_token_ids and growth.scored
    if not choices and growth.scored and (body.logprobs or wants_tokens):
        choices.append(answers.chat_delta(growth.index, ""))
    if wants_tokens:
        choices[0]["token_ids"] = [one.token for one in growth.scored]
    return choices


@router.post("/completions", response_model=None)
async def completions(body: CompletionBody, request: Request, backend: Server, caller: Caller) -> Response:
    """The continuation of one or several prompts, whole or streamed."""
    settings, prompts = body.to_settings(), body.prompts()
    if len(prompts) * settings.count > 128:
        raise BadRequest(f"prompt: {len(prompts)} prompts with n {settings.count} make over 128 answers; send fewer")
    target = await find_target(backend, body.model, caller)
    completion = await asyncio.to_thread(TextCompletion, backend, target, body, settings, prompts)
    head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
    head["model"] = body.model
    if body.stream:
        events = completion.events(head)
        return StreamingResponse(events, media_type="text/event-stream", headers=SSE_HEADERS)
    choices = await while_connected(request, completion.choices())
    return JSONResponse({**head, "choices": choices, "usage": completion.usage()})


@router.get("/models")
async def list_models(backend: Server, caller: Caller) -> dict[str, Any]:
    """The base models and their aliases; sampler checkpoints are named by their path and not listed."""
    cards = await backend.cards()
    return {"object": "list", "data": [_model(name, card, backend.started_at) for name, card in cards.items()]}


@router.get("/models/{name:path}")
async def get_model(name: str, backend: Server, caller: Caller) -> dict[str, Any]:
    """A base model, an alias or a sampler path of the caller."""
    target: Target = await find_target(backend, name, caller)
    if not target.card.sampleable:
        raise NotFound(f"model {name!r} cannot be sampled")
    return _model(name, target.card, backend.started_at)


def _model(name: str, card: ModelCard, created: float) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(created),
        "owned_by": "tinker-backend",
        "root": card.name,
        "max_model_len": card.max_context_length,
    }
