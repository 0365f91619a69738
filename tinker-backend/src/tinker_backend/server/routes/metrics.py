"""/metrics in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ..access import Server
from ..backend import Backend

router = APIRouter()


class _Collector:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        """Reads the figures at the time of the scrape."""
        backend = self._backend
        operations = CounterMetricFamily("tinker_operations", "Finished operations", labels=["kind", "outcome"])
        for (kind, outcome), count in backend.promises.counts.items():
            operations.add_metric([kind, outcome], count)
        yield operations
        for name, text, value in (
            ("tinker_pending_operations", "Accepted and unfinished operations", backend.promises.pending),
            ("tinker_pending_samples", "Accepted and unfinished samples", backend.sampling.pending),
            (
                "tinker_pending_training_bytes",
                "Payload of unfinished training requests",
                backend.training.pending_bytes,
            ),
            ("tinker_result_cache_bytes", "Results held in memory", backend.promises.cached_bytes),
            ("tinker_sessions_active", "Sessions with a recent heartbeat", backend.sessions.active),
            ("tinker_runs", "Runs in memory", len(backend.training.runs)),
            ("tinker_resident_samplers", "Weights versions in the runtime", backend.samplers.resident),
            ("tinker_ledger_backlog", "Ledger jobs that wait", backend.ledger.backlog),
            ("tinker_runtime_up", "1 while the runtime is ready", int(backend.supervisor.state == "ready")),
            ("tinker_batch_largest", "Most runs in one batch so far", backend.services.batcher.largest),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, count in (
            ("tinker_runtime_restarts", "Deaths of the runtime", backend.supervisor.restarts),
            ("tinker_batches", "forward_backward calls to the runtime", backend.services.batcher.calls),
            ("tinker_batched_requests", "Requests in them", backend.services.batcher.requests),
        ):
            yield CounterMetricFamily(name, text, value=count)


@router.get("/metrics")
async def metrics(backend: Server) -> Response:
    """All figures."""
    registry = CollectorRegistry()
    registry.register(_Collector(backend))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
