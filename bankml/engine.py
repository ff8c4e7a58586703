"""The engine: a model with one slot that answers one caller at a time, and keeps what the next prompt may begin with.

Which tokens are computed again, what is put aside in the host prompt cache, and where the context ends, is as in
llama-server b11192 with one slot.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bankml import environment, slot_file
from bankml.errors import UsageError
from bankml.exact import exact_prefix
from bankml.files import sha256
from bankml.forward import N_UBATCH, Weights
from bankml.generation import Cancelled, Generation, Step
from bankml.kv_cache import KvType, padded
from bankml.meter import Meter
from bankml.params import Params
from bankml.prompt_cache import PromptCache, common, gives_up, state_bytes
from bankml.prompts import Prompt, Prompts
from bankml.sampler import Sampler
from bankml.slot import Slot
from bankml.slot_file import Stored
from bankml.snapshot import Snapshot

__all__ = ["Engine", "Generation", "Step"]

N_CTX = 4096
REUSES = ("prefix", "exact", "off")
WAIT_S = 0.05  # how often one who waits for the slot looks whether it was cancelled


class Engine:
    """An opened model. `open` makes one; `generate` asks it; `close`, or the end of a `with` block, lets it go.

    Attributes: `weights`, `tokenizer`, `header`, `n_ctx`, `slot`, `prompt_cache` (None if switched off), `name`, and
    `params`, the sampling that the model file recommends.
    """

    def __init__(self, weights, prompts: Prompts, *, kind=None, n_ubatch=N_UBATCH, cache_ram=None):
        kind = KvType.from_environment() if kind is None else kind
        limit = environment.cache_ram() if cache_ram is None else cache_ram
        self.weights, self.prompts, self.header = weights, prompts, prompts.header
        self.tokenizer, self.n_ctx, self.n_ubatch = prompts.tokenizer, prompts.n_ctx, n_ubatch
        self.name = Path(self.header.path).stem
        self.params = Params.from_gguf(self.header.kv)
        self.slot = Slot(weights, weights.caches(kind, n_ctx=self.n_ctx))
        self.prompt_cache = PromptCache(limit, padded(self.n_ctx)) if limit else None
        self._lock, self._owner, self.waiting = threading.Lock(), None, 0
        self.meter = Meter(self.name, weights, self.slot.caches)

    @classmethod
    def open(cls, path, n_ctx: int = N_CTX, gpu=None, *, threads=None, kind=None, n_ubatch=N_UBATCH, cache_ram=None):
        """Open the model at `path`. Raises UsageError, Refused or NeedMore with the reason.

        n_ctx: cells for prompt and answer together; the model's trained context bounds it. gpu, threads: see
        `Weights.open`. kind: the `KvType`, default `BANKML_CACHE_TYPE`. cache_ram: MiB for the host prompt cache, 0 for
        none, -1 without limit; default `BANKML_CACHE_RAM`.
        """
        prompts = Prompts.open(path, n_ctx)
        weights = Weights.open(path, gpu=gpu, threads=threads)
        try:
            return cls(weights, prompts, kind=kind, n_ubatch=n_ubatch, cache_ram=cache_ram)
        except BaseException:
            weights.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Wait for an answer under way, then end the threads and unmap the file."""
        with self._turn():
            self.weights.close()

    def generate(
        self, prompt: Prompt, params: Params | None = None, *, max_tokens=None, stop=(), reuse="prefix", template=None
    ) -> Generation:
        """An answer to a text, to tokens, or to a list of messages: an iterator of steps, which runs as it is iterated.

        params: default `self.params`. max_tokens: None or below 0 means until the context is full. stop: a text, or
        several, before which the answer ends. reuse: "prefix" takes over the longest beginning the slot has, as
        llama-server does; "exact" only what an uncached run would compute to the same bits; "off" nothing. template:
        for messages, a mapping of the chat template's variables, `tools` among them. Another caller's answer is waited
        for. Raises UsageError for a prompt that is empty or too long.
        """
        if reuse not in REUSES:
            raise UsageError(f"reuse is {reuse!r}; it takes one of {', '.join(REUSES)}")
        tokens = self.prompts.tokens(prompt, template)
        sampler = Sampler(self.params if params is None else params, self.tokenizer)
        sampler.begin(tokens)
        return Generation(self, tokens, sampler, max_tokens=max_tokens, stop=stop, reuse=reuse)

    def next_logits(self, tokens: list[int]) -> np.ndarray:
        """The logits after a prompt, float32 (n_vocab,), with the bits of an uncached run."""
        with self._turn():
            return self.weights.logits(self._prefill(Generation(self, tokens, None, reuse="exact")))

    def save(self, path) -> Stored:
        """Store the slot in a file, which appears whole or not at all; `restore` goes on from it, in any process."""
        with self._turn():
            self.slot.settle()
            return slot_file.write(path, self.slot, self.model_sha256)

    def restore(self, path) -> Stored:
        """Hold what a file holds. Raises UsageError or Refused, and the slot stays as it is, where it does not fit."""
        with self._turn():
            state, stored = slot_file.read(path, self.slot, self.model_sha256, self.n_ctx, self.tokenizer.n_vocab)
            self.slot.load(state)
            return stored

    def erase(self) -> int:
        """Forget what the slot holds; how many tokens that was."""
        with self._turn():
            held = len(self.slot)
            self.slot.keep(0)
            return held

    @cached_property
    def model_sha256(self) -> str:
        """The SHA-256 of the model's file, or of all its parts one after the other."""
        return sha256(self.header.paths)

    def snapshot(self) -> Snapshot:
        """What is measured of the engine now; for any thread, at any time."""
        measured, kept = self.meter.snapshot(), self.prompt_cache
        if kept is not None and measured.prompt_cache is not None:
            measured = replace(
                measured, prompt_cache=replace(measured.prompt_cache, entries=len(kept.entries), bytes=kept.bytes)
            )
        return replace(measured, queue=self.waiting)

    def answer(self, generation: Generation) -> Iterator[int]:
        """Run a generation: its tokens, until one ends the answer, it is cancelled, or there is no room for another."""
        with self._turn(generation) as granted:
            generation.started_at = time.monotonic()
            result_norm = self._prefill(generation) if granted else None
            while True:
                if generation.cancelled:
                    generation.finish_reason = "cancelled"
                    return
                token = self._draw(generation, self.weights.logits(result_norm))
                generation.completion_tokens += 1
                if generation.first_token_at is None:
                    generation.first_token_at = time.monotonic()
                if token in self.tokenizer.eog:
                    generation.finish_reason = "stop"
                    return
                generation.sampler.accept(token)
                self.meter.token()
                yield token
                if generation.completion_tokens == generation.max_tokens or len(self.slot) + 1 >= self.n_ctx:
                    generation.finish_reason = "length"
                    return
                if not generation.cancelled:
                    result_norm = self.slot.decode(token)

    def _draw(self, generation, logits) -> int:
        """The next token, its probabilities noted where they are asked for."""
        with self.meter.spending("sampling"):
            token = generation.sampler.sample(logits)
            if generation.sampler.params.n_probs > 0:
                generation.probs.append(generation.sampler.probs(logits))
        return token

    def _prefill(self, generation) -> np.ndarray | None:
        """Compute what the slot lacks of the prompt; result_norm of its last token, None where it was cancelled."""
        prompt, result_norm = generation.prompt, None
        self.meter.begin(len(prompt), generation.max_tokens)
        generation.cached = at = self._take_over(np.array(prompt, np.int32), generation.reuse)
        self.meter.took_over(at)
        self.weights.between_layers = generation.check
        try:
            while at < len(prompt):
                generation.check()
                # In an exact run the micro-batches end where those of an uncached run do.
                end = at + self.n_ubatch - (at % self.n_ubatch if generation.reuse == "exact" else 0)
                result_norm = self.slot.prefill(prompt[at:end], last=end >= len(prompt))
                at = len(self.slot)
        except Cancelled:
            return None
        finally:
            self.weights.between_layers = None
        return result_norm

    def _take_over(self, prompt: np.ndarray, reuse: str) -> int:
        """Make the slot hold as much of the prompt's beginning as there is to take over; how many tokens that is."""
        slot, cache = self.slot, self.prompt_cache
        slot.settle()
        held = np.array(slot.tokens, np.int32)
        if cache is not None and gives_up(held, prompt):
            if len(held):
                cache.save(held, state_bytes(len(held), slot.caches), slot.state)
            if state := cache.take(prompt, held):
                slot.load(state)
                held = state.tokens
            cache.trim()
        same = common(held, prompt) if reuse != "off" else 0
        if reuse == "exact":
            same = exact_prefix(same, slot.paths, len(prompt), self.n_ubatch, slot.path)
        cached = min(same, len(prompt) - 1)
        slot.keep(cached)
        return cached

    @contextmanager
    def _turn(self, generation: Generation | None = None):
        """The slot, for one thread at a time; yields False where the generation was cancelled while it waited.

        Raises UsageError where the wait would last for ever: this thread has an answer under way itself.
        """
        if self._owner == threading.get_ident():
            raise UsageError("an answer is under way in this thread; finish or close() it before the next call")
        self.waiting += 1
        try:
            granted = self._lock.acquire(blocking=False)
            while not granted and not (generation and generation.cancelled):
                granted = self._lock.acquire(timeout=WAIT_S)
        finally:
            self.waiting -= 1
        if not granted:
            yield False
            return
        self._owner = threading.get_ident()
        try:
            yield True
        finally:
            self.meter.end()
            self._owner = None
            self._lock.release()
