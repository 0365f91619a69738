"""Weights of a checkpoint: download, PEFT folder, merged model, publication."""

from tinker_cookbook.weights.adapter import build_lora_adapter
from tinker_cookbook.weights.download import download
from tinker_cookbook.weights.merge import build_hf_model
from tinker_cookbook.weights.model_card import ModelCardConfig, generate_model_card
from tinker_cookbook.weights.publish import publish_to_hf_hub

__all__ = [
    "ModelCardConfig",
    "build_hf_model",
    "build_lora_adapter",
    "download",
    "generate_model_card",
    "publish_to_hf_hub",
]
