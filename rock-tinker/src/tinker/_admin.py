"""AdminClient: audit log and usage figures."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from . import types
from ._client import Client
from ._futures import APIFuture
from ._holder import Holder, shared_holder
from ._http import Call
from ._pools import PoolKind
from ._twins import value_twin

M = TypeVar("M", bound=BaseModel)
AuditEventType = Literal["all", "checkpoints", "projects", "teams", "organizations"]


class AdminClient(Client):
    """Audit log, usage and storage of an organization."""

    def __init__(
        self, _holder: Holder | None = None, *, base_url: str | None = None, api_key: str | None = None
    ) -> None:
        self.holder = _holder or shared_holder(base_url, api_key)

    def get_audit_log(
        self, event_type: AuditEventType = "all", day: date | None = None
    ) -> APIFuture[types.AuditLogResponse]:
        """Who did what, of one day if given."""
        params = {"event_type": event_type, "day": None if day is None else day.isoformat()}
        return self._get("get_audit_log", "audit", types.AuditLogResponse, PoolKind.REST_SUPPORT_REDIRECT, params)

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> APIFuture[types.BillingUsageResponse]:
        """Usage by hour, from ``starting_on`` to before ``ending_before``: datetimes or RFC 3339 text, full hours."""
        params = {"starting_on": _rfc3339(starting_on), "ending_before": _rfc3339(ending_before)}
        return self._get("get_billing_usage", "billing/usage/events", types.BillingUsageResponse, params=params)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> APIFuture[types.CurrentCheckpointStorageUsageResponse]:
        """Storage that checkpoints take now, of one project if given."""
        return self._get(
            "get_current_checkpoint_storage_usage",
            "billing/usage/checkpoints/current",
            types.CurrentCheckpointStorageUsageResponse,
            params={"project_id": project_id},
        )

    def _get(
        self,
        method: str,
        path: str,
        model: type[M],
        kind: PoolKind = PoolKind.TRAIN,
        params: dict[str, Any] | None = None,
    ) -> APIFuture[M]:
        return self._start(method, self.holder.fetch(kind, Call("GET", path, params=params), model))

    get_audit_log_async = value_twin(get_audit_log)
    get_billing_usage_async = value_twin(get_billing_usage)
    get_current_checkpoint_storage_usage_async = value_twin(get_current_checkpoint_storage_usage)


def _rfc3339(moment: datetime | str) -> str:
    """Text for the query; a datetime without a zone is taken as UTC, text must parse (ValueError)."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
