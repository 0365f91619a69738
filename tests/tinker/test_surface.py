"""Every public name and signature."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker import auth, types
from tinker.lib.retry_handler import RetryConfig

NAMES = [
    "ServiceClient",
    "TrainingClient",
    "SamplingClient",
    "RestClient",
    "AdminClient",
    "APIFuture",
    "BackcompatTrainingClientFuture",
    "BackcompatSamplingClientFuture",
    "LossHandle",
    "PerDatumLossFn",
    "auth",
    "AdamOptimizerConfig",
    "AdamParams",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "OptimParams",
    "Checkpoint",
    "CheckpointType",
    "Datum",
    "DmelChunk",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "SampledProvenanceSpan",
    "PromptProvenanceSpan",
    "LoraConfig",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "OptimStepRequest",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "SampledSequence",
    "SampleRequest",
    "SampleResponse",
    "SamplingParams",
    "StopReason",
    "TensorData",
    "TensorDtype",
    "TrainingRun",
    "Timeout",
    "RequestOptions",
    "TinkerError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APIConnectionError",
    "APITimeoutError",
    "BadRequestError",
    "AuthenticationError",
    "BillingError",
    "PermissionDeniedError",
    "NotFoundError",
    "ConflictError",
    "UnprocessableEntityError",
    "RateLimitError",
    "InternalServerError",
    "RequestFailedError",
    "ExperimentalWarning",
    "types",
    "__version__",
    "__title__",
]

TYPE_NAMES = [
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "AuditLogEntry",
    "AuditLogResponse",
    "AuthTokenResponse",
    "BillingEventInfo",
    "BillingUsageEvent",
    "BillingUsageResponse",
    "BillingUsageSession",
    "CancelledSessionStatusQuery",
    "CheckpointBillingEvent",
    "CheckpointsListResponse",
    "ClientConfigRequest",
    "ClientConfigResponse",
    "ClientDynamicConfigResponse",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishErrored",
    "ClientSessionFinishInterrupted",
    "ClientSessionFinishReason",
    "ClientSessionFinishReasonType",
    "ClientSessionFinishSuccess",
    "ClientSessionFinished",
    "CopyWeightsRequest",
    "CopyWeightsResponse",
    "CreateCustomLossRequest",
    "CreateCustomLossResponse",
    "CreateModelRequest",
    "CreateModelResponse",
    "CreateSamplingSessionRequest",
    "CreateSamplingSessionResponse",
    "CreateSessionRequest",
    "CreateSessionResponse",
    "CurrentCheckpointStorageUsageItem",
    "CurrentCheckpointStorageUsageResponse",
    "Cursor",
    "CustomLossGraph",
    "CustomLossInput",
    "CustomLossInputRank",
    "CustomLossNode",
    "EventType",
    "ExternalWeightsUrlsResponse",
    "FailedSessionStatusQuery",
    "ForwardBackwardInput",
    "ForwardBackwardRequest",
    "ForwardRequest",
    "FutureCompletion",
    "FutureFailed",
    "FutureFinished",
    "FutureRetrieveRequest",
    "FutureRetrieveResponse",
    "FuturesRetrieveRequest",
    "FuturesRetrieveResponse",
    "GetBillingUsageRequest",
    "GetCurrentCheckpointStorageUsageRequest",
    "GetInfoRequest",
    "GetInfoResponse",
    "GetSamplerResponse",
    "GetServerCapabilitiesResponse",
    "GetSessionResponse",
    "HealthResponse",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "JoinSamplingSessionRequest",
    "JoinSamplingSessionResponse",
    "ListSessionsResponse",
    "LoadWeightsRequest",
    "LoadWeightsResponse",
    "LossFnInputs",
    "LossFnOutput",
    "LossFnType",
    "ModelData",
    "OptimizerConfig",
    "OwnSearchOwner",
    "PromptAltTokens",
    "ProvenanceSpans",
    "RequestErrorCategory",
    "RequestFailedResponse",
    "RequestID",
    "SamplingClientKind",
    "SamplingPrefillBillingEvent",
    "SamplingSampleBillingEvent",
    "SamplingSessionFuturesTarget",
    "SaveWeightsExternalRequest",
    "SaveWeightsExternalResponse",
    "SaveWeightsExternalResponseInternal",
    "SaveWeightsForSamplerRequest",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsForSamplerResponseInternal",
    "SaveWeightsRequest",
    "SaveWeightsResponse",
    "SearchOwner",
    "SessionActive",
    "SessionCancelled",
    "SessionEndEvent",
    "SessionFailed",
    "SessionFailedReason",
    "SessionFailedRequestReason",
    "SessionFailedSamplingSessionReason",
    "SessionFailedTrainingRunReason",
    "SessionHeartbeatRequest",
    "SessionHeartbeatResponse",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "SessionSearchResponse",
    "SessionStartEvent",
    "SessionStatus",
    "SessionStatusQuery",
    "SessionSummary",
    "Severity",
    "StorageBillingEvent",
    "SupportedModel",
    "TelemetryBatch",
    "TelemetryEvent",
    "TelemetryResponse",
    "TelemetrySendRequest",
    "TrainingBillingEvent",
    "TrainingRunsResponse",
    "UnhandledExceptionEvent",
    "UnloadModelRequest",
    "UnloadModelResponse",
    "UntypedAPIFuture",
    "UserSearchOwner",
    "WeightsInfoResponse",
    "WhoamiResponse",
]

SIGNATURES = {
    tinker.ServiceClient: {
        "__init__": "user_metadata=None, project_id=None, *, display_name=None, base_url=None, api_key=None, "
        "default_headers_overrides=None, **kwargs",
        "create_lora_training_client": "base_model, rank=32, seed=None, train_mlp=True, train_attn=True, "
        "train_unembed=True, user_metadata=None, optimizer=None",
        "create_training_client_from_state": "path, base_model=None, user_metadata=None, weights_access_token=None, "
        "optimizer=None",
        "create_training_client_from_state_with_optimizer": "path, base_model=None, user_metadata=None, "
        "weights_access_token=None",
        "create_sampling_client": "model_path=None, base_model=None, retry_config=None, record_stability_info=False",
        "create_custom_loss": "fn, input_ranks",
        "copy_weights": "path, *, ttl_seconds=None, weights_access_token=None",
        "close": "status, detail=None",
        "get_console_url": "",
        "get_telemetry": "",
        "get_server_capabilities": "",
        "create_rest_client": "",
    },
    tinker.TrainingClient: {
        "__init__": "holder, model_seq_id, model_id, *, info",
        "forward": "data, loss_fn, loss_fn_config=None",
        "forward_backward": "data, loss_fn, loss_fn_config=None",
        "forward_backward_custom": "data, loss_fn, *, loss_type_input=None",
        "optim_step": "optim_params=None, *, adam_params=None",
        "save_state": "name, ttl_seconds=None, overwrite=False, user_metadata=None",
        "save_weights_for_sampler": "name, ttl_seconds=None, user_metadata=None",
        "save_weights_external": "name, ttl_seconds=None, age_encryption_recipients=None",
        "save_weights_and_get_sampling_client": "name=None, retry_config=None, record_stability_info=False, "
        "kind='snapshot'",
        "create_sampling_client": "model_path, retry_config=None, record_stability_info=False",
        "load_state": "path, weights_access_token=None",
        "load_state_with_optimizer": "path, weights_access_token=None",
        "get_info": "",
        "get_tokenizer": "",
        "get_console_url": "",
        "get_telemetry": "",
    },
    tinker.SamplingClient: {
        "__init__": "holder, *, sampling_session_id, base_model, shadow=False, retry_config=None, "
        "record_stability_info=False",
        "sample": "prompt, num_samples, sampling_params, include_prompt_logprobs=False, topk_prompt_logprobs=0, "
        "topk_sample_logprobs=0, target_prompt_logprobs=None, prompt_alt_tokens_k=0, prompt_logprobs_last_n=None",
        "compute_logprobs": "prompt, prompt_logprobs_last_n=None",
        "get_base_model": "",
        "get_tokenizer": "",
        "get_sampler_handle": "",
        "get_telemetry": "",
        "on_queue_state_change": "queue_state, queue_state_reason",
    },
    tinker.RestClient: {
        "__init__": "_holder=None, *, base_url=None, api_key=None",
        "get_server_capabilities": "",
        "get_training_run": "training_run_id, access_scope='owned'",
        "get_training_run_by_tinker_path": "tinker_path, access_scope='owned'",
        "get_weights_info_by_tinker_path": "tinker_path",
        "list_training_runs": "limit=20, offset=0, access_scope='owned', project_id=None",
        "list_checkpoints": "training_run_id",
        "list_user_checkpoints": "limit=100, offset=0",
        "get_external_weights_urls": "tinker_path",
        "delete_checkpoint": "training_run_id, checkpoint_id",
        "delete_checkpoint_from_tinker_path": "tinker_path",
        "copy_weights": "path, destination_project_id=None, *, ttl_seconds=None, weights_access_token=None",
        "publish_checkpoint_from_tinker_path": "tinker_path",
        "unpublish_checkpoint_from_tinker_path": "tinker_path",
        "set_checkpoint_ttl_from_tinker_path": "tinker_path, ttl_seconds",
        "get_session": "session_id, access_scope='owned'",
        "list_sessions": "limit=20, offset=0, access_scope='owned'",
        "assign_session_project": "session_id, project_id",
        "export_session_trace": "session_id",
        "whoami": "",
        "get_sampler": "sampler_id",
        "search_sessions": "request",
        "get_audit_log": "event_type='all', day=None",
        "get_billing_usage": "starting_on, ending_before",
        "get_current_checkpoint_storage_usage": "project_id=None",
    },
    tinker.AdminClient: {
        "__init__": "_holder=None, *, base_url=None, api_key=None",
        "get_audit_log": "event_type='all', day=None",
        "get_billing_usage": "starting_on, ending_before",
        "get_current_checkpoint_storage_usage": "project_id=None",
    },
}
NO_TWIN = {
    "__init__",
    "create_custom_loss",
    "close",
    "get_console_url",
    "get_telemetry",
    "create_rest_client",
    "get_tokenizer",
    "get_sampler_handle",
    "on_queue_state_change",
    "whoami",
    "search_sessions",
    "get_weights_info_by_tinker_path",
} | {("RestClient", "get_server_capabilities"), ("ServiceClient", "copy_weights")}


def shown(function: Any) -> str:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))[1:-1]


CASES = [(cls, name, text) for cls, methods in SIGNATURES.items() for name, text in methods.items()]


@pytest.mark.parametrize(("cls", "name", "text"), CASES, ids=lambda value: getattr(value, "__name__", str(value))[:40])
def test_signatures(cls: type, name: str, text: str) -> None:
    assert shown(getattr(cls, name)) == text
    if name in NO_TWIN or (cls.__name__, name) in NO_TWIN:
        return
    twin = getattr(cls, f"{name}_async")
    assert shown(twin) == text and inspect.iscoroutinefunction(twin)


def test_nothing_public_is_missing_or_extra() -> None:
    for cls, methods in SIGNATURES.items():
        public = {name for name in dir(cls) if not name.startswith("_")}
        public -= {name for name in public if name.endswith("_async")}
        assert public - {"create", "from_sampler_handle", "holder"} == set(methods) - {"__init__"} | (
            {"get_telemetry"} if cls in (tinker.RestClient, tinker.AdminClient) else set()
        )


def test_static_methods() -> None:
    assert shown(tinker.SamplingClient.from_sampler_handle) == "handle, *, api_key=None"
    assert shown(tinker.SamplingClient.create) == (
        "holder, *, model_path=None, base_model=None, sampling_session_id=None, retry_config=None, "
        "record_stability_info=False"
    )


@pytest.mark.parametrize("cls", [tinker.BackcompatTrainingClientFuture, tinker.BackcompatSamplingClientFuture])
def test_futures_of_clients_have_every_method_of_the_client(cls: type) -> None:
    client = cls.__mro__[-1]
    client = tinker.TrainingClient if issubclass(cls, tinker.TrainingClient) else tinker.SamplingClient
    for name in dir(client):
        if not name.startswith("_") and name not in ("create", "from_sampler_handle", "holder"):
            assert getattr(cls, name) is not getattr(client, name), name
    assert {"result", "result_async", "future", "coroutine", "__await__"} <= set(dir(cls))


def test_names() -> None:
    assert sorted(tinker.__all__) == sorted(NAMES)
    for name in [*NAMES, "APIResponse", "AsyncAPIResponse", "resources"]:
        assert getattr(tinker, name) is not None
    for name in TYPE_NAMES:
        assert hasattr(types, name), name
    assert {"get_tinker_token", "tinker_has_credentials", "raise_if_tinker_not_accessible"} <= set(dir(auth))
    with pytest.raises(AttributeError):
        tinker.no_such_name  # noqa: B018


def test_versions() -> None:
    assert (tinker.__version__, tinker.__title__) == ("0.38.0", "tinker")
    assert tinker.__wheel_version__ == importlib.metadata.version("rock-tinker")


def test_clients_and_futures_have_their_long_names() -> None:
    from tinker.lib import public_interfaces
    from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

    for name in sorted(set(public_interfaces.__all__) - {"AwaitableConcurrentFuture"}):
        assert getattr(public_interfaces, name) is getattr(tinker, name)
    assert issubclass(AwaitableConcurrentFuture, tinker.APIFuture)
    for module in ("service", "training", "sampling", "rest", "admin"):
        found = importlib.import_module(f"tinker.lib.public_interfaces.{module}_client")
        assert getattr(found, f"{module.title()}Client") is getattr(tinker, f"{module.title()}Client")


def test_retry_config_defaults() -> None:
    assert shown(RetryConfig).startswith(
        "max_connections=1000, progress_timeout=7200, retry_delay_base=0.5, retry_delay_max=10.0, jitter_factor=0.25, "
        "enable_retry_logic=True, enable_stuck_detection=True, retryable_exceptions="
    )


def test_the_error_tree() -> None:
    tree = {
        "APIError": "TinkerError",
        "APIResponseValidationError": "APIError",
        "APIStatusError": "APIError",
        "APIConnectionError": "APIError",
        "APITimeoutError": "APIConnectionError",
        "RequestFailedError": "TinkerError",
        **dict.fromkeys(
            [
                "BadRequestError",
                "AuthenticationError",
                "BillingError",
                "PermissionDeniedError",
                "NotFoundError",
                "ConflictError",
                "UnprocessableEntityError",
                "RateLimitError",
                "InternalServerError",
            ],
            "APIStatusError",
        ),
    }
    for child, parent in tree.items():
        assert getattr(tinker, child).__bases__ == (getattr(tinker, parent),)
        assert getattr(tinker, child).__module__ == "tinker"
    assert tinker.TinkerError.__bases__ == (Exception,)
    assert issubclass(tinker.ExperimentalWarning, FutureWarning)


def test_adam_and_lora_defaults() -> None:
    assert types.AdamParams().model_dump() == {
        "learning_rate": 1e-4,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    }
    assert types.LoraConfig(rank=8).model_dump() == {
        "rank": 8,
        "seed": None,
        "train_unembed": True,
        "train_mlp": True,
        "train_attn": True,
    }
    with pytest.raises(AssertionError, match="at least one"):
        tinker.ServiceClient(base_url="http://127.0.0.1:1").create_lora_training_client(
            "m", train_mlp=False, train_attn=False, train_unembed=False
        )


IMPORT_CHECK = """
import sys, time
started = time.perf_counter()
import tinker
took = time.perf_counter() - started
heavy = {"torch", "transformers", "httpx", "numpy", "pydantic"} & set(sys.modules)
tinker.ServiceClient, tinker.types.Datum
worse = {"torch", "transformers"} & set(sys.modules)
print(took, heavy, worse)
"""


def test_importing_is_cheap_and_loads_neither_torch_nor_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_CHECK], capture_output=True, text=True, timeout=60, check=True)
    took, rest = done.stdout.split(" ", 1)
    assert rest.strip() == "set() set()"
    assert float(took) < 0.5


def test_the_documentation_lists_exactly_the_public_methods() -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\.(\w+)`( \(\+ `_async`\))? \| (\S+) \| (\S+) \|", text, re.MULTILINE)
    listed = [f"{cls}.{name}{'+' * bool(twin)}" for cls, name, twin, _, _ in rows]
    public = []
    for cls in SIGNATURES:
        names = {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}
        plain = {name for name in names if not name.endswith("_async")}
        public += [f"{cls.__name__}.{name}{'+' * (f'{name}_async' in names)}" for name in plain]
    assert sorted(listed) == sorted(public)
    assert {(server, ours) for *_, server, ours in rows} == {("yes", "yes")}
