"""Uploaded losses: a traced graph and its declared inputs."""

from __future__ import annotations

from typing import Any, Literal

from .base import Request, Response

CustomLossInputRank = Literal[0, 1, 2]


class CustomLossInput(Request):
    name: str
    rank: CustomLossInputRank


class CustomLossNode(Request):
    op: Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
    name: str
    target: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class CustomLossGraph(Request):
    format: Literal[1] = 1
    nodes: list[CustomLossNode]


class CreateCustomLossRequest(Request):
    session_id: str
    custom_loss_seq_id: int
    name: str
    inputs: list[CustomLossInput]
    graph: CustomLossGraph
    type: Literal["create_custom_loss"] = "create_custom_loss"


class CreateCustomLossResponse(Response):
    loss_id: str
    type: Literal["create_custom_loss"] = "create_custom_loss"
