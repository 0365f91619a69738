"""Endpoint groups of the API by the module that speaks with them."""

from __future__ import annotations

from ._admin import AdminClient
from ._rest import RestClient
from ._sampling import SamplingClient
from ._service import ServiceClient
from ._training import TrainingClient

__all__ = ["AdminClient", "RestClient", "SamplingClient", "ServiceClient", "TrainingClient"]
