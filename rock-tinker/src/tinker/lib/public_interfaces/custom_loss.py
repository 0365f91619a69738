"""Losses of one's own."""

from ..._loss_handle import LossHandle, PerDatumLossFn

__all__ = ["LossHandle", "PerDatumLossFn"]
