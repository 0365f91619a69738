"""The two samplers of the cluster engine behind one face: torch on a thread of this process, or vLLM replicas."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from tinker_backend.runtime.ray.vllm_sampler import VllmSampler
from tinker_backend.runtime.roles import RuntimeFault, SamplePart, SampleRequest, SampleResult
from tinker_backend.runtime.torch_sampler import TorchSampler

Reply = Callable[[SampleResult | RuntimeFault], None]
Listener = Callable[[SamplePart], None]


class ClusterSampler(Protocol):
    """What the cluster engine asks of a sampler; any thread may call."""

    def check_base(self, base_model: str) -> None:
        """Raises RuntimeFault (user) when the base model is not served."""
        ...

    def load(self, version: str, path: str | None, full: bool) -> None: ...

    def receiver(self) -> VllmSampler | None:
        """The sampler that takes all weights over a channel; None where they come as files."""
        ...

    def drop(self, version: str) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def sample(self, request: SampleRequest, reply: Reply, part: Listener | None) -> None: ...

    def scoring_weights(self, request: SampleRequest) -> tuple[bool, str | None]:
        """Whether the trainer must score the prompt, and with which sampler folder (None: the base)."""
        ...

    def names(self) -> list[str]: ...

    def running(self) -> int: ...


class LocalSampler:
    """The torch sampler on a thread of its own."""

    def __init__(self, sampler: TorchSampler, base_model: str) -> None:
        self.sampler, self.base_model = sampler, base_model
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                # With nothing to sample the thread sleeps until a command comes.
                command = self._commands.get(block=self.sampler.idle)
            except queue.Empty:
                self.sampler.step()
                continue
            if command is None:
                return
            command()

    def _do(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()

        def command() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._commands.put(command)
        return done.result()

    def close(self) -> None:
        """Ends the thread."""
        self._commands.put(None)

    def check_base(self, base_model: str) -> None:
        """Raises RuntimeFault (user) when the base model is not served."""
        _check_base(base_model, set(self.sampler.models))

    def load(self, version: str, path: str | None, full: bool) -> None:
        """Makes a folder known under a new name."""
        self._do(lambda: self.sampler.load(version, self.base_model, path))

    def receiver(self) -> VllmSampler | None:
        """This one reads files."""
        return None

    def drop(self, version: str) -> None:
        """Forgets a version."""
        self._do(lambda: self.sampler.drop(version))

    def cancel(self, request_id: str) -> None:
        """Stops a request."""
        self._do(lambda: self.sampler.cancel(request_id))

    def sample(self, request: SampleRequest, reply: Reply, part: Listener | None) -> None:
        """Queues a request."""

        def settled(future: Future[SampleResult]) -> None:
            error = future.exception()
            if error is None:
                reply(future.result())
            else:
                reply(error if isinstance(error, RuntimeFault) else RuntimeFault(str(error)))

        def begin() -> None:
            try:
                self.sampler.sample(request, part).add_done_callback(settled)
            except RuntimeFault as fault:
                reply(fault)
            except Exception as error:
                reply(RuntimeFault(f"sample: {type(error).__name__}: {error}"))

        self._commands.put(begin)

    def scoring_weights(self, request: SampleRequest) -> tuple[bool, str | None]:
        """This sampler scores every prompt itself."""
        return False, None

    def names(self) -> list[str]:
        """Versions."""
        return sorted(self.sampler.versions)

    def running(self) -> int:
        """Samples under way."""
        return self.sampler.batcher.running


class RemoteSampler:
    """vLLM replicas, with prompt scores from the trainer where vLLM's are wrong or missing."""

    def __init__(self, sampler: VllmSampler, names: set[str], has_trainer: bool, broadcast: bool = False) -> None:
        self.sampler, self._names, self._has_trainer = sampler, names, has_trainer
        self._broadcast = broadcast

    def check_base(self, base_model: str) -> None:
        """Raises RuntimeFault (user) when the base model is not served."""
        _check_base(base_model, self._names)

    def load(self, version: str, path: str | None, full: bool) -> None:
        """Makes a folder known under a new name on every replica."""
        self.sampler.load(version, path, full)

    def receiver(self) -> VllmSampler | None:
        """The replicas, where ``weight_transfer`` is broadcast."""
        return self.sampler if self._broadcast else None

    def drop(self, version: str) -> None:
        """Forgets a version."""
        self.sampler.drop(version)

    def cancel(self, request_id: str) -> None:
        """Stops a request."""
        self.sampler.cancel(request_id)

    def sample(self, request: SampleRequest, reply: Reply, part: Listener | None) -> None:
        """Sends a request to a replica; its tokens come with the result, not before it."""
        self.sampler.sample(request, reply)

    def scoring_weights(self, request: SampleRequest) -> tuple[bool, str | None]:
        """vLLM leaves an adapter of the output projection out of prompt logprobs, and has no chosen targets.

        Raises RuntimeFault (user) when there is no trainer that could score them.
        """
        asks = request.prompt_logprobs or request.topk_prompt_logprobs > 0
        special = request.target_prompt_logprobs is not None or request.prompt_alt_tokens_k > 0
        version = self.sampler.versions.get(request.sampler)
        if version is None or not (asks or special):
            return False, None
        adapted = version.path is not None and not version.full
        if version.full or not (special or adapted):
            if special:
                raise RuntimeFault(
                    "target_prompt_logprobs and prompt_alt_tokens_k are not possible for a model whose weights are all its "
                    "own on the vllm strategy; ask for prompt_logprobs or topk_prompt_logprobs",
                    "user",
                )
            return False, None
        if not self._has_trainer:
            raise RuntimeFault(
                "prompt logprobs of a tuned model, target_prompt_logprobs and prompt_alt_tokens_k need a trainer beside "
                "the vllm strategy; add actor_train to engine.yaml",
                "user",
            )
        return True, version.path

    def names(self) -> list[str]:
        """Versions."""
        return sorted(self.sampler.versions)

    def running(self) -> int:
        """Samples under way."""
        return self.sampler.running


def _check_base(base_model: str, served: set[str]) -> None:
    if base_model not in served:
        raise RuntimeFault(f"base_model {base_model!r} is not served; served: {', '.join(sorted(served))}", "user")
