"""RestClient: runs, checkpoints, sessions and samplers, without a session of its own."""

from __future__ import annotations

import time
import warnings
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from . import _admin, _pace, types
from ._client import Client
from ._copy_weights import copy_request, copy_weights
from ._errors import ExperimentalWarning, TinkerError
from ._futures import APIFuture
from ._holder import Holder, shared_holder
from ._http import Call
from ._pools import PoolKind
from ._settings import project_id as default_project_id
from ._twins import value_twin
from ._whoami import whoami

M = TypeVar("M", bound=BaseModel)
AccessScope = Literal["owned", "accessible"]
_TRACE_POLL_SECONDS = 5.0
_TRACE_LIMIT_SECONDS = 3600.0


class RestClient(Client):
    """Looks at and changes what is stored on the server. All clients of a process share one connection."""

    def __init__(
        self, _holder: Holder | None = None, *, base_url: str | None = None, api_key: str | None = None
    ) -> None:
        self.holder = _holder or shared_holder(base_url, api_key)

    # -- the server ----------------------------------------------------------------------------------------------
    def get_server_capabilities(self) -> APIFuture[types.GetServerCapabilitiesResponse]:
        """The models that the server offers."""
        return self._get("get_server_capabilities", "get_server_capabilities", types.GetServerCapabilitiesResponse)

    def whoami(self) -> APIFuture[types.WhoamiResponse]:
        """Who the credential belongs to; RuntimeError if the credential does not say."""
        return self._start("whoami", whoami(self.holder))

    # -- training runs -------------------------------------------------------------------------------------------
    def get_training_run(
        self, training_run_id: types.ModelID, access_scope: AccessScope = "owned"
    ) -> APIFuture[types.TrainingRun]:
        """One run."""
        return self._run("get_training_run", training_run_id, access_scope)

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> APIFuture[types.TrainingRun]:
        """The run that a checkpoint belongs to. ValueError for a bad path."""
        run_id = types.ParsedCheckpointTinkerPath.from_tinker_path(tinker_path).training_run_id
        return self._run("get_training_run_by_tinker_path", run_id, access_scope)

    def _run(self, method: str, run_id: str, access_scope: str) -> APIFuture[types.TrainingRun]:
        return self._get(method, f"training_runs/{run_id}", types.TrainingRun, access_scope=access_scope)

    def list_training_runs(
        self, limit: int = 20, offset: int = 0, access_scope: AccessScope = "owned", project_id: str | None = None
    ) -> APIFuture[types.TrainingRunsResponse]:
        """Runs, the newest first."""
        return self._get(
            "list_training_runs",
            "training_runs",
            types.TrainingRunsResponse,
            limit=limit,
            offset=offset,
            access_scope=access_scope,
            project_id=project_id,
        )

    # -- checkpoints ---------------------------------------------------------------------------------------------
    def get_weights_info_by_tinker_path(self, tinker_path: str) -> APIFuture[types.WeightsInfoResponse]:
        """Base model and adapter shape of a checkpoint."""
        call = Call("POST", "weights_info", {"tinker_path": tinker_path})
        return self._fetch("get_weights_info_by_tinker_path", call, types.WeightsInfoResponse)

    def list_checkpoints(self, training_run_id: types.ModelID) -> APIFuture[types.CheckpointsListResponse]:
        """Checkpoints of a run."""
        path = f"training_runs/{training_run_id}/checkpoints"
        return self._get("list_checkpoints", path, types.CheckpointsListResponse)

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> APIFuture[types.CheckpointsListResponse]:
        """Checkpoints of all runs, the newest first."""
        return self._get(
            "list_user_checkpoints", "checkpoints", types.CheckpointsListResponse, limit=limit, offset=offset
        )

    def get_external_weights_urls(self, tinker_path: str) -> APIFuture[types.ExternalWeightsUrlsResponse]:
        """Download addresses of an external checkpoint. ValueError for another kind."""
        parsed = types.ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
        if parsed.checkpoint_type != "external":
            raise ValueError(
                "get_external_weights_urls only accepts external weights checkpoints "
                f"(tinker://<training_run_id>/external_weights/<name>), got {tinker_path!r}"
            )
        return self._file_urls(parsed)

    def _file_urls(self, parsed: types.ParsedCheckpointTinkerPath) -> APIFuture[types.ExternalWeightsUrlsResponse]:
        """The same for any checkpoint; a server may refuse kinds other than external."""
        path = f"{_checkpoint_path(parsed)}/external_weights_urls"
        return self._get("get_external_weights_urls", path, types.ExternalWeightsUrlsResponse)

    def delete_checkpoint(self, training_run_id: types.ModelID, checkpoint_id: str) -> APIFuture[None]:
        """Delete a checkpoint; ``checkpoint_id`` is e.g. ``weights/step-10``."""
        call = Call("DELETE", f"training_runs/{training_run_id}/checkpoints/{checkpoint_id}")
        return self._send("delete_checkpoint", call)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Delete a checkpoint. ValueError for a bad path."""
        call = Call("DELETE", _checkpoint_path(tinker_path))
        return self._send("delete_checkpoint_from_tinker_path", call)

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Let others read a checkpoint."""
        call = Call("POST", f"{_checkpoint_path(tinker_path)}/publish")
        return self._send("publish_checkpoint_from_tinker_path", call)

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Let others read a checkpoint no longer."""
        call = Call("DELETE", f"{_checkpoint_path(tinker_path)}/publish")
        return self._send("unpublish_checkpoint_from_tinker_path", call)

    def set_checkpoint_ttl_from_tinker_path(self, tinker_path: str, ttl_seconds: int | None) -> APIFuture[None]:
        """Let a checkpoint expire in ``ttl_seconds``; None: never."""
        call = Call("PUT", f"{_checkpoint_path(tinker_path)}/ttl", {"ttl_seconds": ttl_seconds})
        return self._send("set_checkpoint_ttl_from_tinker_path", call)

    def copy_weights(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> APIFuture[str]:
        """Copy a checkpoint into a project (default: TINKER_PROJECT_ID); the path of the copy."""
        request = copy_request(path, destination_project_id or default_project_id(), ttl_seconds)
        return self._start("copy_weights", copy_weights(self.holder, request, weights_access_token))

    # -- sessions and samplers -----------------------------------------------------------------------------------
    def get_session(self, session_id: str, access_scope: AccessScope = "owned") -> APIFuture[types.GetSessionResponse]:
        """Runs and samplers of a session."""
        return self._get("get_session", f"sessions/{session_id}", types.GetSessionResponse, access_scope=access_scope)

    def list_sessions(
        self, limit: int = 20, offset: int = 0, access_scope: AccessScope = "owned"
    ) -> APIFuture[types.ListSessionsResponse]:
        """Session ids, the newest first."""
        return self._get(
            "list_sessions",
            "sessions",
            types.ListSessionsResponse,
            limit=limit,
            offset=offset,
            access_scope=access_scope,
        )

    def search_sessions(self, request: types.SessionSearchRequest) -> APIFuture[types.SessionSearchResponse]:
        """Sessions by owner, state, project, name or labels. May change without notice."""
        warnings.warn("search_sessions may change without notice", ExperimentalWarning, stacklevel=2)
        call = Call("POST", "sessions/search", request)
        return self._fetch("search_sessions", call, types.SessionSearchResponse)

    def assign_session_project(self, session_id: str, project_id: str) -> APIFuture[None]:
        """Move a session into a project."""
        call = Call("PUT", f"sessions/{session_id}/project", {"project_id": project_id})
        return self._send("assign_session_project", call)

    def export_session_trace(self, session_id: str) -> APIFuture[str]:
        """Wait for the trace of a session; its download address. TinkerError if the export fails."""

        async def export() -> str:
            deadline = time.monotonic() + _TRACE_LIMIT_SECONDS
            while True:
                call = Call("GET", f"sessions/{session_id}/trace_export")
                body = (await self.holder.send(PoolKind.TRAIN, call)).json()
                if body.get("status") == "ready" and body.get("url"):
                    return str(body["url"])
                if body.get("status") == "failed":
                    raise TinkerError(f"the trace of session {session_id} cannot be exported: {body.get('error')}")
                if time.monotonic() > deadline:
                    raise TinkerError(
                        f"the trace of session {session_id} was not ready after {_TRACE_LIMIT_SECONDS:.0f} s"
                    )
                await _pace.sleep(_TRACE_POLL_SECONDS)

        return self._start("export_session_trace", export())

    def get_sampler(self, sampler_id: str) -> APIFuture[types.GetSamplerResponse]:
        """What a sampler samples from."""
        return self._get("get_sampler", f"samplers/{sampler_id}", types.GetSamplerResponse)

    # -- moved to AdminClient ------------------------------------------------------------------------------------
    def get_audit_log(
        self, event_type: _admin.AuditEventType = "all", day: date | None = None
    ) -> APIFuture[types.AuditLogResponse]:
        """Deprecated: use AdminClient.get_audit_log."""
        return self._admin("get_audit_log").get_audit_log(event_type, day)

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> APIFuture[types.BillingUsageResponse]:
        """Deprecated: use AdminClient.get_billing_usage."""
        return self._admin("get_billing_usage").get_billing_usage(starting_on, ending_before)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> APIFuture[types.CurrentCheckpointStorageUsageResponse]:
        """Deprecated: use AdminClient.get_current_checkpoint_storage_usage."""
        client = self._admin("get_current_checkpoint_storage_usage")
        return client.get_current_checkpoint_storage_usage(project_id)

    def _admin(self, method: str) -> _admin.AdminClient:
        warnings.warn(
            f"RestClient.{method} is deprecated; use tinker.AdminClient().{method}(...)", FutureWarning, stacklevel=3
        )
        return _admin.AdminClient(self.holder)

    # -- sending -------------------------------------------------------------------------------------------------
    def _fetch(self, method: str, call: Call, model: type[M]) -> APIFuture[M]:
        return self._start(method, self.holder.fetch(PoolKind.TRAIN, call, model))

    def _get(self, method: str, path: str, model: type[M], **params: Any) -> APIFuture[M]:
        return self._fetch(method, Call("GET", path, params=params), model)

    def _send(self, method: str, call: Call) -> APIFuture[None]:
        async def send() -> None:
            await self.holder.send(PoolKind.TRAIN, call)

        return self._start(method, send())

    # -- deprecated twins ----------------------------------------------------------------------------------------
    get_training_run_async = value_twin(get_training_run)
    get_training_run_by_tinker_path_async = value_twin(get_training_run_by_tinker_path)
    list_training_runs_async = value_twin(list_training_runs)
    list_checkpoints_async = value_twin(list_checkpoints)
    list_user_checkpoints_async = value_twin(list_user_checkpoints)
    get_external_weights_urls_async = value_twin(get_external_weights_urls)
    delete_checkpoint_async = value_twin(delete_checkpoint)
    delete_checkpoint_from_tinker_path_async = value_twin(delete_checkpoint_from_tinker_path)
    publish_checkpoint_from_tinker_path_async = value_twin(publish_checkpoint_from_tinker_path)
    unpublish_checkpoint_from_tinker_path_async = value_twin(unpublish_checkpoint_from_tinker_path)
    set_checkpoint_ttl_from_tinker_path_async = value_twin(set_checkpoint_ttl_from_tinker_path)
    copy_weights_async = value_twin(copy_weights)
    get_session_async = value_twin(get_session)
    list_sessions_async = value_twin(list_sessions)
    assign_session_project_async = value_twin(assign_session_project)
    export_session_trace_async = value_twin(export_session_trace)
    get_sampler_async = value_twin(get_sampler)
    get_audit_log_async = value_twin(get_audit_log)
    get_billing_usage_async = value_twin(get_billing_usage)
    get_current_checkpoint_storage_usage_async = value_twin(get_current_checkpoint_storage_usage)


def _checkpoint_path(checkpoint: str | types.ParsedCheckpointTinkerPath) -> str:
    if isinstance(checkpoint, str):
        checkpoint = types.ParsedCheckpointTinkerPath.from_tinker_path(checkpoint)
    return f"training_runs/{checkpoint.training_run_id}/checkpoints/{checkpoint.checkpoint_id}"
