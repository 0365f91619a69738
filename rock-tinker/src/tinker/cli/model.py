"""tinker model"""

from __future__ import annotations

import click

from .output import print_json, print_table, wants_json, yes_no
from .server import rest_client


@click.group("model")
def group() -> None:
    """The models that the server offers."""


@group.command("list")
@click.argument("substring", required=False)
def list_models(substring: str | None) -> None:
    """List models, or those whose name contains SUBSTRING."""
    models = rest_client().get_server_capabilities().result().supported_models
    if substring:
        models = [model for model in models if substring.lower() in (model.model_name or "").lower()]
    if wants_json():
        print_json({"models": models})
        return
    rows = [
        (
            model.model_name or "-",
            str(model.max_context_length or "-"),
            yes_no(model.trainable),
            yes_no(model.sampleable),
        )
        for model in models
    ]
    print_table(("Model", "Max Context", "Trainable", "Sampleable"), rows)
