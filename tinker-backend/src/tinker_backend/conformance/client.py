"""A raw client of the Tinker wire: requests, promises, and small handles for a session, a run and a sampler.

It repeats nothing and hides nothing: what a server refuses comes back as ``Refused``, a failed operation as
``Failed``, and a wait that passes its deadline as ``Overdue``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import httpx
import numpy as np

from . import wire

Kind = Literal["json", "loss", "sample"]
PENDING = "try_again"
SDK_VERSION = "0.38.0"


class Refused(Exception):
    """The server answered a request with an error status."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"{response.request.url.path}: HTTP {response.status_code} {response.text[:300]}")
        self.status = response.status_code
        self.response = response


class Failed(Exception):
    """A future ended in an error. ``category`` is what the server said: user, server or unknown."""

    def __init__(self, message: str, category: str) -> None:
        super().__init__(f"{category}: {message}")
        self.category = category


class Overdue(Exception):
    """A future had no result within the deadline."""


@dataclass(frozen=True)
class Promise:
    """An accepted operation."""

    client: WireClient
    request_id: str
    kind: Kind
    body: dict[str, Any]

    def poll(self, timeout: float = 60.0) -> httpx.Response:
        """One ``retrieve_future``, as it comes."""
        accept = "application/json" if self.kind == "json" else "application/x-protobuf, application/json"
        return self.client.request(
            "POST",
            "retrieve_future",
            json={"request_id": self.request_id, "allow_metadata_only": False},
            headers={"Accept": accept},
            timeout=timeout,
        )

    def result(self) -> Any:
        """Polls until there is a result. Raises ``Failed``, ``Refused`` or ``Overdue``."""
        deadline = time.monotonic() + self.client.deadline
        while time.monotonic() < deadline:
            response = self.poll()
            if response.headers.get("content-type", "").startswith("application/x-protobuf"):
                read = wire.read_loss_output if self.kind == "loss" else wire.read_sample_output
                return read(response.content)
            if response.status_code == 408 or (response.status_code == 200 and response.json().get("type") == PENDING):
                continue
            if response.status_code >= 400:
                raise Refused(response)
            body = response.json()
            if "error" in body:
                raise Failed(str(body["error"]), str(body.get("category", "unknown")))
            return body
        raise Overdue(f"no result of {self.request_id} within {self.client.deadline:.0f} s")


class WireClient:
    """HTTP to one server. ``deadline`` bounds the wait for every future, in seconds."""

    def __init__(self, base_url: str, api_key: str | None, deadline: float = 300.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.deadline = deadline
        self._http = httpx.Client(
            headers={"X-API-Key": api_key} if api_key else {},
            timeout=60.0,
            follow_redirects=True,
            # Shorter than any server keeps an idle connection, so that none is closed under a request.
            limits=httpx.Limits(keepalive_expiry=1.0),
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Any request below ``/api/v1``."""
        return self._http.request(method, f"{self.base_url}/api/v1/{path}", **options)

    def get(self, path: str, **params: Any) -> Any:
        """A GET whose answer is JSON. Raises ``Refused``."""
        return self._checked(self.request("GET", path, params=params))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """A POST of JSON whose answer is JSON. Raises ``Refused``."""
        return self._checked(self.request("POST", path, json=body))

    def promise(self, path: str, body: dict[str, Any], kind: Kind = "json") -> Promise:
        """A POST of JSON that answers with a promise. Raises ``Refused``."""
        answer = self.post(path, body)
        return Promise(self, answer["request_id"], kind, answer)

    def promise_loss(self, body: bytes) -> Promise:
        """A forward_backward. Raises ``Refused``."""
        answer = self._checked(
            self.request("POST", "forward_backward", content=body, headers={"Content-Type": "application/x-protobuf"})
        )
        return Promise(self, answer["request_id"], "loss", answer)

    def download(self, url: str) -> bytes:
        """A file that the server gave an address of; the key goes along to the server itself only."""
        url = url if "://" in url else self.base_url + url
        if httpx.URL(url).host == httpx.URL(self.base_url).host:
            response = self._http.get(url)
        else:
            response = httpx.get(url, timeout=60.0, follow_redirects=True)
        if response.status_code >= 400:
            raise Refused(response)
        return response.content

    def session(self) -> Session:
        """A new session; leaving its block finishes it."""
        answer = self.post(
            "create_session",
            {
                "tags": ["conformance"],
                "user_metadata": {},
                "sdk_version": SDK_VERSION,
                "type": "create_session",
            },
        )
        return Session(self, answer["session_id"])

    @staticmethod
    def _checked(response: httpx.Response) -> Any:
        if response.status_code >= 400:
            raise Refused(response)
        return response.json()


class Session:
    """A session and its counters."""

    def __init__(self, client: WireClient, session_id: str) -> None:
        self.client = client
        self.id = session_id
        self._runs = 0
        self._created: list[str] = []
        self._samplers = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> httpx.Response:
        """Ends the session. Where sessions cannot be finished its runs are unloaded one by one, so that servers with
        room for few runs can be probed."""
        answer = self.client.request(
            "POST", f"sessions/{self.id}/finish", json={"reason": {"type": "success"}, "detail": None}
        )
        while answer.status_code == 404 and self._created:
            body = {"model_id": self._created.pop(), "type": "unload_model"}
            self.client.request("POST", "unload_model", json=body)
        return answer

    def next_run(self) -> int:
        """A fresh ``model_seq_id``."""
        self._runs += 1
        return self._runs - 1

    def next_sampler(self) -> int:
        """A fresh ``sampling_session_seq_id``."""
        self._samplers += 1
        return self._samplers - 1

    def create_body(
        self, base_model: str, rank: int = 8, seed: int | None = 1, number: int | None = None, **lora: bool
    ) -> dict[str, Any]:
        """The body of a ``create_model``."""
        config: dict[str, Any] = {"rank": rank, "train_unembed": True, "train_mlp": True, "train_attn": True, **lora}
        if seed is not None:
            config["seed"] = seed
        return {
            "session_id": self.id,
            "model_seq_id": self.next_run() if number is None else number,
            "base_model": base_model,
            "lora_config": config,
            "optimizer_config": {"type": "adamw"},
            "type": "create_model",
        }

    def run(self, base_model: str, rank: int = 8, seed: int | None = 1, **lora: bool) -> Run:
        """A new LoRA run."""
        answer = self.client.promise("create_model", self.create_body(base_model, rank, seed, **lora)).result()
        self._created.append(answer["model_id"])
        return Run(self, answer["model_id"])

    def run_from(self, path: str, optimizer: bool) -> Run:
        """A new run from a checkpoint."""
        number = self.next_run()
        self.client.promise(
            "load_weights",
            {
                "session_id": self.id,
                "model_seq_id": number,
                "path": path,
                "optimizer": optimizer,
                "type": "load_weights",
            },
        ).result()
        return Run(self, f"{self.id}:train:{number}")

    def sampler_body(self, base_model: str | None = None, model_path: str | None = None) -> dict[str, Any]:
        """The body of a ``create_sampling_session``."""
        body: dict[str, Any] = {
            "session_id": self.id,
            "sampling_session_seq_id": self.next_sampler(),
            "type": "create_sampling_session",
        }
        return (
            body
            | ({"base_model": base_model} if base_model else {})
            | ({"model_path": model_path} if model_path else {})
        )

    def sampler(self, base_model: str | None = None, model_path: str | None = None) -> Sampler:
        """A sampler of a base model or of a sampler checkpoint."""
        answer = self.client.post("create_sampling_session", self.sampler_body(base_model, model_path))
        return Sampler(self.client, answer["sampling_session_id"])


class Run:
    """A training run; its operations take ``seq_id`` 1, 2, ... unless told otherwise."""

    def __init__(self, session: Session, model_id: str) -> None:
        self.session = session
        self.client = session.client
        self.id = model_id
        self.seq = 0

    def next_seq(self) -> int:
        """A fresh ``seq_id``."""
        self.seq += 1
        return self.seq

    def send_loss(
        self,
        data: list[wire.Example],
        loss_fn: str = "cross_entropy",
        config: dict[str, float | str] | None = None,
        forward_only: bool = False,
        seq: int | None = None,
    ) -> Promise:
        """Posts a forward_backward (or forward)."""
        seq = self.next_seq() if seq is None else seq
        return self.client.promise_loss(
            wire.forward_backward_request(self.id, seq, data, loss_fn, config, forward_only)
        )

    def loss(
        self, data: list[wire.Example], loss_fn: str = "cross_entropy", config: dict[str, float | str] | None = None
    ) -> wire.LossOutput:
        """One forward_backward, waited for."""
        output: wire.LossOutput = self.send_loss(data, loss_fn, config).result()
        return output

    def forward(self, data: list[wire.Example]) -> wire.LossOutput:
        """One forward of cross entropy, waited for."""
        output: wire.LossOutput = self.send_loss(data, forward_only=True).result()
        return output

    def send_step(self, seq: int | None = None, **adam: float) -> Promise:
        """Posts an optim_step of AdamW."""
        params = {
            "learning_rate": 1e-4,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-12,
            "weight_decay": 0.0,
            "grad_clip_norm": 0.0,
            **adam,
        }
        seq = self.next_seq() if seq is None else seq
        return self.client.promise(
            "optim_step", {"model_id": self.id, "seq_id": seq, "adam_params": params, "type": "optim_step"}
        )

    def step(self, **adam: float) -> dict[str, float]:
        """One optim_step, waited for; its metrics."""
        metrics: dict[str, float] = self.send_step(None, **adam).result().get("metrics") or {}
        return metrics

    def save(self, name: str, overwrite: bool = False, **options: Any) -> str:
        """A training checkpoint; its path."""
        body = {"model_id": self.id, "seq_id": self.next_seq(), "path": name, "overwrite": overwrite, **options}
        return str(self.client.promise("save_weights", {**body, "type": "save_weights"}).result()["path"])

    def save_for_sampler(self, name: str, **options: Any) -> str:
        """A named sampler checkpoint; its path."""
        body = {"model_id": self.id, "seq_id": self.next_seq(), "path": name, "kind": "snapshot", **options}
        promise = self.client.promise("save_weights_for_sampler", {**body, "type": "save_weights_for_sampler"})
        return str(promise.result()["path"])

    def snapshot(self) -> Sampler:
        """A sampler of the present weights."""
        body = {
            "model_id": self.id,
            "seq_id": self.next_seq(),
            "sampling_session_seq_id": self.session.next_sampler(),
            "kind": "snapshot",
            "type": "save_weights_for_sampler",
        }
        return Sampler(
            self.client, self.client.promise("save_weights_for_sampler", body).result()["sampling_session_id"]
        )

    def external(self, name: str) -> dict[str, bytes]:
        """Saves the weights in a portable form and fetches every file."""
        body = {"model_id": self.id, "seq_id": self.next_seq(), "path": name, "type": "save_weights_external"}
        path = self.client.promise("save_weights_external", body).result()["path"]
        checkpoint = path.removeprefix("tinker://").split("/", 1)[1]
        answer = self.client.get(f"training_runs/{self.id}/checkpoints/{checkpoint}/external_weights_urls")
        return {name: self.client.download(url) for name, url in answer["urls"].items()}


HUGE = 1e6
"""An eps that dwarfs every gradient: AdamW's first step is then ``-(rate / eps) * gradient``."""


class Sampler:
    """A sampling session; its requests take ``seq_id`` 0, 1, ... unless told otherwise."""

    def __init__(self, client: WireClient, sampler_id: str) -> None:
        self.client = client
        self.id = sampler_id
        self.seq = -1

    def body(
        self, tokens: list[int], num_samples: int = 1, params: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """The body of an ``asample``."""
        self.seq += 1
        return {
            "sampling_session_id": self.id,
            "seq_id": self.seq,
            "num_samples": num_samples,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
            "sampling_params": {"temperature": 1.0, "top_k": -1, "top_p": 1.0, **(params or {})},
            "prompt_logprobs": False,
            "topk_prompt_logprobs": 0,
            "topk_sample_logprobs": 0,
            "prompt_alt_tokens_k": 0,
            "record_stability_info": False,
            "type": "sample",
            **options,
        }

    def send(self, body: dict[str, Any]) -> Promise:
        """Posts an asample."""
        return self.client.promise("asample", body, "sample")

    def sample(
        self, tokens: list[int], num_samples: int = 1, params: dict[str, Any] | None = None, **options: Any
    ) -> wire.SampleOutput:
        """One asample, waited for."""
        output: wire.SampleOutput = self.send(self.body(tokens, num_samples, params, **options)).result()
        return output

    def score(self, tokens: list[int]) -> wire.Array:
        """Logprob of each prompt token, NaN at 0."""
        output = self.sample(tokens, params={"max_tokens": 1}, prompt_logprobs=True)
        if output.prompt_logprobs is None:
            raise Failed("the answer has no prompt_logprobs although they were asked for", "server")
        return np.asarray(output.prompt_logprobs)
