"""The Anthropic door: ``/anthropic/api/v1/messages`` and ``messages/count_tokens``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from ...errors import ApiError
from ..access import Caller, Server
from ..chat import anthropic_answers as answers
from ..chat.anthropic_requests import CountBody, MessagesBody
from ..chat.door import SSE_HEADERS, door_route, while_connected
from ..chat.generation import find_target
from ..chat.reply import Reply
from ..chat.template import render

router = APIRouter(prefix="/anthropic/api/v1", tags=["anthropic"], route_class=door_route(answers.error_body))


@router.post("/messages", response_model=None)
async def messages(body: MessagesBody, request: Request, backend: Server, caller: Caller) -> Response:
    """An answer, whole or streamed."""
    settings, conversation = body.to_settings(), body.to_conversation()
    target = await find_target(backend, body.model, caller)
    reply = await asyncio.to_thread(Reply.to_conversation, backend, target, conversation, settings)
    identity = f"msg_{uuid.uuid4().hex}"
    if body.stream:
        events = _events(identity, body.model, reply)
        return StreamingResponse(events, media_type="text/event-stream", headers=SSE_HEADERS)
    await while_connected(request, reply.finish())
    answer = reply.answers[0]
    counts = answers.usage(len(reply.prompt), reply.completion_tokens, reply.cached)
    content = answers.blocks(answer.text, answer.calls)
    return JSONResponse(answers.message(identity, body.model, content, reply.finishes[0], answer.stop_sequence, counts))


async def _events(identity: str, model: str, reply: Reply) -> AsyncIterator[str]:
    writer = answers.EventWriter()
    start = answers.message(identity, model, [], None, None, answers.usage(len(reply.prompt), 0))
    try:
        yield answers.sse({"type": "message_start", "message": start})
        yield answers.sse({"type": "ping"})
        async for growth in reply.grow():
            for part in growth.parts:
                for event in writer.part(part):
                    yield answers.sse(event)
        counts = answers.usage(len(reply.prompt), reply.completion_tokens, reply.cached)
        for event in writer.end(reply.finishes[0], reply.answers[0].stop_sequence, counts):
            yield answers.sse(event)
    except ApiError as error:
        yield answers.sse(answers.error_body(error.status, str(error)))


@router.post("/messages/count_tokens")
async def count_tokens(body: CountBody, backend: Server, caller: Caller) -> dict[str, Any]:
    """How many tokens the prompt has."""
    conversation = body.to_conversation()
    target = await find_target(backend, body.model, caller)

    def count() -> int:
        return len(target.tokenizer.encode(render(target.tokenizer, conversation)))

    return {"input_tokens": await asyncio.to_thread(count)}
