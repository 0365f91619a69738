"""Facts about models by name."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass

from tinker_cookbook import model_catalog
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.model_catalog import ModelFamily

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelAttributes:
    """What the cookbook knows about a model; ``recommended_renderers`` begins with the best one."""

    organization: str
    version_str: str
    size_str: str
    is_chat: bool
    recommended_renderers: tuple[str, ...]
    is_vl: bool = False
    is_audio_in: bool = False


_registered: dict[str, ModelAttributes] = {}


def _attributes(family: ModelFamily, size: str) -> ModelAttributes:
    return ModelAttributes(
        organization=family.organization,
        version_str=family.version,
        size_str=family.size_str or size,
        is_chat=family.is_chat,
        recommended_renderers=family.renderers,
        is_vl=family.is_vl,
        is_audio_in=family.is_audio_in,
    )


def _models_of(organization: str) -> dict[str, ModelAttributes]:
    """Models whose sizes are in the table."""
    return {
        family.name.format(size=size).split("/")[1]: _attributes(family, size)
        for family in model_catalog.CATALOG
        if family.organization == organization
        for size, shape in family.sizes.items()
        if shape is not None
    }


def get_deepseek_info() -> dict[str, ModelAttributes]:
    """The known models of deepseek-ai, by their names after the organization."""
    return _models_of("deepseek-ai")


def get_gpt_oss_info() -> dict[str, ModelAttributes]:
    """The known models of openai, by their names after the organization."""
    return _models_of("openai")


def get_llama_info() -> dict[str, ModelAttributes]:
    """The known models of meta-llama, by their names after the organization."""
    return _models_of("meta-llama")


def get_moonshot_info() -> dict[str, ModelAttributes]:
    """The known models of moonshotai, by their names after the organization."""
    return _models_of("moonshotai")


def get_nvidia_info() -> dict[str, ModelAttributes]:
    """The known models of nvidia, by their names after the organization."""
    return _models_of("nvidia")


def get_qwen_info() -> dict[str, ModelAttributes]:
    """The known models of Qwen, by their names after the organization."""
    return _models_of("Qwen")


def get_thinkingmachines_info() -> dict[str, ModelAttributes]:
    """The known models of thinkingmachines, by their names after the organization."""
    return _models_of("thinkingmachines")


def get_zai_info() -> dict[str, ModelAttributes]:
    """The known models of zai-org, by their names after the organization."""
    return _models_of("zai-org")


def register_model(model_name: str, attributes: ModelAttributes) -> None:
    """Teach the cookbook a model of your own."""
    _registered[model_name] = attributes


def get_model_attributes(model_name: str) -> ModelAttributes:
    """Attributes of a model; a ``:suffix`` is ignored, a local folder is recognised by its name.

    Raises:
        ConfigurationError: the model is not known.
    """
    for name in (model_name, model_name.split(":")[0]):
        if name in _registered:
            return _registered[name]
    found = model_catalog.find(model_name)
    if found is None:
        near = difflib.get_close_matches(model_catalog.base_name(model_name), model_catalog.known_names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"model_name={model_name!r} is not a known model.{hint} Give renderer_name=... explicitly "
            "('chat_template' fits every tokenizer with a chat template, 'role_colon' every base model), or call "
            "model_info.register_model()."
        )
    return _attributes(*found)


def get_recommended_renderer_names(model_name: str) -> list[str]:
    """Renderers that fit a model, the best one first."""
    return list(get_model_attributes(model_name).recommended_renderers)


def get_recommended_renderer_name(model_name: str) -> str:
    """The renderer to use when nothing else is asked for."""
    return get_recommended_renderer_names(model_name)[0]


def warn_if_renderer_not_recommended(model_name: str, renderer_name: str | None) -> None:
    """Log a warning when a renderer is not among those that fit a known model."""
    if renderer_name is None:
        return
    try:
        names = get_recommended_renderer_names(model_name)
    except ConfigurationError:
        return
    if renderer_name not in names:
        logger.warning("renderer %r is not recommended for %s; use %s", renderer_name, model_name, ", ".join(names))
