"""Who runs next in the sampler: prompts that wait, prompts being read, samples that wait for a row, samples that run.

    request ──▶ Prompt (waiting) ──▶ Prompt (reading, chunk by chunk) ──▶ its samples (pending) ──▶ rows (running) ──▶ done

Memory is counted in tokens before it is taken. When a running sample outgrows its row and nothing fits, the youngest
sample goes back to the start of the line as a prompt of its own; nothing fails for lack of memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice

import numpy as np

from tinker_backend.runtime.kv_cache import KvBudget, PrefixCache, RowPool, Segment, capacity_for, new_kv
from tinker_backend.runtime.prompt_scores import PromptScores
from tinker_backend.runtime.roles import SamplePart, SampleRequest, SampleResult
from tinker_backend.runtime.sampler_version import SamplerVersion, WeightSet
from tinker_backend.runtime.stop_rules import StopRules
from tinker_backend.runtime.token_choice import ChoiceParams

_HEADROOM = 128
"""Tokens that a row can grow before it must move, when its final length is not known."""


@dataclass(eq=False)
class Job:
    """One request on its way: what it asked, and what its samples have produced."""

    request: SampleRequest
    version: SamplerVersion
    future: Future[SampleResult]
    seed: int
    params: ChoiceParams
    rules: StopRules
    scores: PromptScores
    samples: list[Sample] = field(default_factory=list)
    cache_hits: int = 0
    cancelled: bool = False
    listener: Callable[[SamplePart], None] | None = None
    """Gets every token as it is sampled."""

    @property
    def unfinished(self) -> int:
        return sum(1 for s in self.samples if s.stop_reason is None)


@dataclass(eq=False)
class Sample:
    """One continuation. ``cached`` tokens of prompt + ``tokens`` have keys and values in its row."""

    job: Job
    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[np.ndarray] = field(default_factory=list)
    top_logprobs: list[np.ndarray] = field(default_factory=list)
    stop_reason: str | None = None
    cached: int = 0
    pool: RowPool[Sample] | None = None

    @property
    def final_length(self) -> int:
        """Longest that prompt + continuation can become."""
        return len(self.job.request.tokens) + self.job.rules.max_tokens


@dataclass(eq=False)
class Prompt:
    """Tokens to be read into a segment, for all samples of a job, or again for one sample that lost its row."""

    job: Job
    tokens: np.ndarray
    samples: list[Sample]
    segment: Segment | None = None
    computed: int = 0
    borrowed: bool = False
    """The segment belongs to the prefix cache already."""

    @property
    def first_read(self) -> bool:
        """The samples have no token yet."""
        return not self.samples or not self.samples[0].tokens


@dataclass(frozen=True)
class ReadChunk:
    """Tokens ``start:stop`` of a prompt, to be run through the model now."""

    prompt: Prompt
    start: int
    stop: int


class Batcher:
    """Queues and memory of one sampler. It decides, the sampler computes."""

    def __init__(
        self, kv_tokens: int, max_batch_size: int, read_tokens: int, weight_sets: Callable[[], list[WeightSet]]
    ) -> None:
        self._weight_sets = weight_sets
        self.budget = KvBudget(kv_tokens)
        self.prefixes = PrefixCache(self.budget)
        self.max_batch_size = max_batch_size
        self.read_tokens = read_tokens
        self.waiting: deque[Prompt] = deque()
        self.reading: list[Prompt] = []
        self.ready: list[Prompt] = []
        self.pending: deque[tuple[Prompt, list[Sample]]] = deque()
        self.running = 0

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not (self.waiting or self.reading or self.ready or self.pending or self.running)

    # --- reading prompts

    def next_chunks(self) -> list[ReadChunk]:
        """Prompt chunks of one weight set to run now, within the token budget of one pass."""
        self._start_reading()
        chunks: list[ReadChunk] = []
        left = self.read_tokens
        for prompt in self.reading:
            if left <= 0:
                break
            if chunks and prompt.job.version.weight_set is not chunks[0].prompt.job.version.weight_set:
                continue
            stop = min(len(prompt.tokens), prompt.computed + left)
            chunks.append(ReadChunk(prompt, prompt.computed, stop))
            left -= stop - prompt.computed
        return chunks

    def _start_reading(self) -> None:
        under_way = sum(len(p.tokens) - p.computed for p in self.reading)
        beginnings = {(p.job.version.name, p.tokens[:64].tobytes()) for p in self.reading if p.first_read}
        passed: list[Prompt] = []
        while self.waiting and under_way < self.read_tokens:
            prompt = self.waiting[0]
            beginning = (prompt.job.version.name, prompt.tokens[:64].tobytes())
            alike = prompt.first_read and not prompt.job.scores.wanted and beginning in beginnings
            if alike and self.prefixes.find(prompt.job.version.name, prompt.tokens) is None:
                # Another prompt with this beginning is being read; after it this one is a cache hit.
                passed.append(self.waiting.popleft())
                continue
            if not self._open(prompt):
                break
            self.waiting.popleft()
            if prompt.computed == len(prompt.tokens):
                self.ready.append(prompt)
                continue
            self.reading.append(prompt)
            beginnings.add(beginning)
            under_way += len(prompt.tokens) - prompt.computed
        self.waiting.extendleft(reversed(passed))

    def _open(self, prompt: Prompt) -> bool:
        """Takes memory for a prompt and copies its known prefix; False when it must wait."""
        size, base = len(prompt.tokens), prompt.job.version.base
        found = None
        needed_row = prompt.job.scores.first_row if prompt.first_read and prompt.job.scores.wanted else size - 1
        if needed_row > 0:
            found = self.prefixes.find(prompt.job.version.name, prompt.tokens)
        if found is not None:
            if self._borrow(prompt, found[0], needed_row):
                return True
            found[0].users += 1
        row = capacity_for(min(size + 1, base.context), base.context)
        try:
            # Room for one row beside the segment: what is read can then also run.
            if not self.prefixes.make_room(size + row):
                return False
        finally:
            if found is not None:
                found[0].users -= 1
        self.budget.used += size
        kv = new_kv(base.architecture, None, size, base.dtype, base.device)
        prompt.segment = Segment(prompt.job.version.name, prompt.tokens, kv, users=1)
        prompt.computed = 0
        if found is not None:
            # The last token is always computed: its logits choose the next one.
            known = min(found[1], size - 1, needed_row)
            kv[:, :, :known] = found[0].kv[:, :, :known]
            prompt.computed = known
            if prompt.first_read:
                prompt.job.cache_hits = known
        return True

    def _borrow(self, prompt: Prompt, segment: Segment, needed_row: int) -> bool:
        """Uses a segment of exactly these tokens as it is, when nothing about the prompt must be computed again."""
        size = len(prompt.tokens)
        if len(segment.tokens) != size or segment.last_hidden is None or needed_row < size - 1:
            return False
        if not np.array_equal(segment.tokens, prompt.tokens):
            return False
        segment.users += 1
        prompt.segment, prompt.borrowed, prompt.computed = segment, True, size
        if prompt.first_read:
            prompt.job.cache_hits = size
        return True

    def take_ready(self) -> list[Prompt]:
        """Prompts that are known as a whole and only need their next token."""
        taken, self.ready = self.ready, []
        return taken

    def read(self, prompt: Prompt) -> None:
        """The prompt is in its segment; its unfinished samples wait for rows."""
        if prompt in self.reading:
            self.reading.remove(prompt)
        samples = [s for s in prompt.samples if s.stop_reason is None]
        if samples and not prompt.job.cancelled:
            self.pending.append((prompt, samples))
        else:
            self.close(prompt)

    def close(self, prompt: Prompt) -> None:
        """The segment of a prompt is needed no more, except as a prefix for others."""
        segment = prompt.segment
        if segment is None:
            return
        prompt.segment = None
        segment.users -= 1
        if prompt.borrowed:
            return
        if prompt.computed < len(prompt.tokens):
            self.budget.used -= len(segment.tokens)
        else:
            self.prefixes.keep(segment)

    # --- rows

    def admit(self) -> None:
        """Gives rows to pending samples while batch and memory allow."""
        if not self.pending or self.running >= self.max_batch_size:
            return
        for prompt, samples in [item for item in self.pending if item[0].job.cancelled]:
            self.pending.remove((prompt, samples))
            self.close(prompt)
        for prompt, samples, share in self._shares():
            before = len(samples)
            entered = self._admit_some(prompt, samples, share)
            if not samples:
                self.pending.remove((prompt, samples))
                self.close(prompt)
            if not entered or before - len(samples) < share:
                break  # no memory: who comes later must not take what this one waits for
        if self.pending and not self.running:
            self._untangle()

    def _shares(self) -> list[tuple[Prompt, list[Sample], int]]:
        """How many free rows each pending prompt gets: always the request with the fewest rows next, then the oldest.

        So a request with very many samples takes no more than its share while others wait.
        """
        free = self.max_batch_size - self.running
        rows = Counter(id(o.job) for s in self._weight_sets() for pool in s.pools.values() for o in pool.owners)
        oldest = list(islice(self.pending, 4 * self.max_batch_size))
        given = [0] * len(oldest)
        queue = [(rows[id(prompt.job)], place) for place, (prompt, _) in enumerate(oldest)]
        heapify(queue)
        while queue and free:
            held, place = queue[0]
            given[place] += 1
            free -= 1
            if given[place] < len(oldest[place][1]):
                heapreplace(queue, (held + 1, place))
            else:
                heappop(queue)
        return [(prompt, samples, given[i]) for i, (prompt, samples) in enumerate(oldest) if given[i]]

    def _admit_some(self, prompt: Prompt, samples: list[Sample], most: int | None = None) -> bool:
        weight_set, length = prompt.job.version.weight_set, len(prompt.tokens)
        capacity = self._capacity(samples[0], length)
        entering: list[Sample] = []
        free = self.max_batch_size - self.running
        while samples and len(entering) < (free if most is None else min(most, free)):
            if not self.prefixes.make_room(capacity):
                break
            self.budget.used += capacity
            entering.append(samples.pop(0))
        if not entering:
            return False
        pool = weight_set.pool(capacity)
        assert prompt.segment is not None
        pool.add(entering, prompt.segment.kv, length)
        for sample in entering:
            sample.pool, sample.cached = pool, length
        self.running += len(entering)
        return True

    def _capacity(self, sample: Sample, length: int) -> int:
        wanted = min(sample.final_length, length + _HEADROOM)
        return capacity_for(max(wanted, length + 1), sample.job.version.base.context)

    def _untangle(self) -> None:
        """Read prompts hold so much memory that no sample can run: the last ones are read again later."""
        while len(self.pending) > 1 and not self.running:
            prompt, samples = self.pending.pop()
            self._drop_segment(prompt)
            self.waiting.appendleft(Prompt(prompt.job, prompt.tokens, samples))
            first, first_samples = self.pending[0]
            if self._admit_some(first, first_samples) and not first_samples:
                self.pending.popleft()
                self.close(first)

    def _drop_segment(self, prompt: Prompt) -> None:
        if prompt.segment is not None and prompt.borrowed:
            self.close(prompt)
        elif prompt.segment is not None:
            self.budget.used -= len(prompt.segment.tokens)
            prompt.segment = None

    def ensure_space(self, weight_set: WeightSet) -> None:
        """Every running sample gets room for one more token: full rows move to larger ones, or make others wait."""
        for pool in list(weight_set.pools.values()):
            for sample in [s for s in pool.owners if s.cached >= pool.capacity]:
                if sample.pool is pool:
                    self._grow(sample)

    def _grow(self, sample: Sample) -> None:
        old = sample.pool
        assert old is not None
        capacity = self._capacity(sample, sample.cached)
        while not self.prefixes.make_room(capacity):
            youngest = self._youngest()
            self._set_back(youngest)
            if youngest is sample:
                return
        self.budget.used += capacity
        pool = sample.job.version.weight_set.pool(capacity)
        pool.add([sample], old.row(old.owners.index(sample)), sample.cached)
        self._leave_row(sample, old)
        sample.pool = pool

    def _youngest(self) -> Sample:
        running = [owner for s in self._weight_sets() for pool in s.pools.values() for owner in pool.owners]
        return min(running, key=lambda s: (len(s.tokens), s.index))

    def _set_back(self, sample: Sample) -> None:
        self.leave(sample, keep=False)
        request_tokens = np.asarray(sample.job.request.tokens, dtype=np.int64)
        tokens = np.concatenate([request_tokens, np.asarray(sample.tokens[:-1], dtype=np.int64)])
        self.waiting.appendleft(Prompt(sample.job, tokens, [sample]))

    def leave(self, sample: Sample, keep: bool) -> None:
        """A sample gives up its row; with ``keep`` its keys and values stay as a prefix for later prompts, if they fit."""
        pool = sample.pool
        if pool is None:
            return
        length = sample.cached
        if keep and self.prefixes.make_room(length):
            tokens = np.concatenate(
                [np.asarray(sample.job.request.tokens, dtype=np.int64), np.asarray(sample.tokens, dtype=np.int64)]
            )[:length]
            base = sample.job.version.base
            kv = new_kv(base.architecture, None, length, base.dtype, base.device)
            kv.copy_(pool.row(pool.owners.index(sample))[:, :, :length])
            self.budget.used += length
            self.prefixes.keep(Segment(sample.job.version.name, tokens, kv))
        self._leave_row(sample, pool)
        sample.pool = None
        self.running -= 1

    def _leave_row(self, sample: Sample, pool: RowPool[Sample]) -> None:
        self.budget.used -= pool.capacity
        pool.remove(pool.owners.index(sample), pool.owners[-1].cached)

    # --- leaving early

    def cancel(self, job: Job) -> None:
        """Takes a job out of every queue and row."""
        job.cancelled = True
        self.waiting = deque(p for p in self.waiting if p.job is not job)
        for queue in (self.reading, self.ready):
            for prompt in [p for p in queue if p.job is job]:
                queue.remove(prompt)
                self.close(prompt)
        for prompt, samples in [item for item in self.pending if item[0].job is job]:
            self.pending.remove((prompt, samples))
            self.close(prompt)
        for sample in job.samples:
            self.leave(sample, keep=False)
