"""Sessions: creation, heartbeat, end, listing, search."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from .base import Request, Response

ClientSessionFinishReasonType = Literal["success", "errored", "interrupted"]


class HealthResponse(Response):
    status: Literal["ok"]


class AuthTokenResponse(Response):
    jwt: str


class CreateSessionRequest(Request):
    tags: list[str]
    user_metadata: dict[str, Any] | None
    sdk_version: str
    project_id: str | None = None
    display_name: str | None = None
    type: Literal["create_session"] = "create_session"


class CreateSessionResponse(Response):
    type: Literal["create_session"] = "create_session"
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None
    session_id: str


class SessionHeartbeatRequest(Request):
    session_id: str
    type: Literal["session_heartbeat"] = "session_heartbeat"


class SessionHeartbeatResponse(Response):
    type: Literal["session_heartbeat"] = "session_heartbeat"


class GetSessionResponse(Response):
    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, str] | None = None
    display_name: str | None = None


class ListSessionsResponse(Response):
    sessions: list[str]


class WhoamiResponse(Response):
    user_urn: str
    org_urn: str
    email: str | None = None


# -- how a session ended ---------------------------------------------------------------------------------------------
class ClientSessionFinishSuccess(Response):
    type: Literal["success"] = "success"


class ClientSessionFinishErrored(Response):
    type: Literal["errored"] = "errored"


class ClientSessionFinishInterrupted(Response):
    type: Literal["interrupted"] = "interrupted"


ClientSessionFinishReason = Annotated[
    ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted,
    Field(discriminator="type"),
]


class ClientSessionFinished(Response):
    type: Literal["client_finished"] = "client_finished"
    reason: ClientSessionFinishReason
    detail: str | None = None


class SessionFailedRequestReason(Response):
    type: Literal["request"] = "request"
    request_id: str
    request_type: str


class SessionFailedTrainingRunReason(Response):
    type: Literal["training_run"] = "training_run"
    training_run_id: str


class SessionFailedSamplingSessionReason(Response):
    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str


SessionFailedReason = Annotated[
    SessionFailedRequestReason | SessionFailedTrainingRunReason | SessionFailedSamplingSessionReason,
    Field(discriminator="type"),
]


class SessionFailed(Response):
    type: Literal["failed"] = "failed"
    category: Literal["user", "internal"]
    reason: SessionFailedReason
    message: str


class SessionCancelled(Response):
    type: Literal["cancelled"] = "cancelled"
    detail: str | None = None


class SessionActive(Response):
    type: Literal["active"] = "active"


SessionStatus = Annotated[
    SessionFailed | SessionCancelled | ClientSessionFinished | SessionActive, Field(discriminator="type")
]


# -- search ----------------------------------------------------------------------------------------------------------
class OwnSearchOwner(Request):
    type: Literal["own"] = "own"


class AccessibleSearchOwner(Request):
    type: Literal["accessible"] = "accessible"


class UserSearchOwner(Request):
    type: Literal["user"] = "user"
    owner_urns: Annotated[list[str], Field(min_length=1, max_length=10)]


SearchOwner = OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner


class ActiveSessionStatusQuery(Request):
    type: Literal["active"] = "active"


class CancelledSessionStatusQuery(Request):
    type: Literal["cancelled"] = "cancelled"


class FailedSessionStatusQuery(Request):
    type: Literal["failed"] = "failed"


class ClientFinishedSessionStatusQuery(Request):
    type: Literal["client_finished"] = "client_finished"
    reasons: Annotated[list[ClientSessionFinishReasonType] | None, Field(min_length=1)] = None


SessionStatusQuery = (
    ActiveSessionStatusQuery | CancelledSessionStatusQuery | FailedSessionStatusQuery | ClientFinishedSessionStatusQuery
)


class SessionSearchCursor(Response):
    last_created_at: AwareDatetime
    last_session_id: str


class SessionSearchRequest(Request):
    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = {}
    display_name: Annotated[str | None, Field(min_length=1)] = None
    owner: SearchOwner = OwnSearchOwner()
    statuses: Annotated[list[SessionStatusQuery] | None, Field(min_length=1)] = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: SessionSearchCursor | None = None


class SessionSummary(Response):
    session_id: str
    created_at: datetime
    owner: str
    project_id: str
    status: SessionStatus | None = None
    checkpoints_count: int
    display_name: str | None = None
    user_metadata: dict[str, str] | None = None
    checkpoint_storage_bytes: int | None = None


class SessionSearchResponse(Response):
    sessions: list[SessionSummary]
    next_cursor: SessionSearchCursor | None = None
