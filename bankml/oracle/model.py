"""Whole models on the reference: logits, and every layer's rows as they pass, through llama.h."""

import ctypes
import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bankml.errors import BankmlError, UsageError
from bankml.oracle import bindings, library

CACHE_TYPES = {"f16": bindings.F16, "q8_0": bindings.Q8_0}
N_UBATCH = 512  # the reference's default micro-batch


@dataclass
class Run:
    """What one call left: `logits` float32 (outputs, vocabulary) and the `rows` watched, by tensor name.

    A watched tensor's rows are those of all micro-batches, in order. The last layer and result_norm carry output rows
    only, as the reference computes no others there.
    """

    logits: np.ndarray
    rows: dict[str, np.ndarray] = field(default_factory=dict)

    def layer(self, il: int) -> np.ndarray:
        """The output of layer `il`, float32 (rows, n_embd)."""
        return self.rows[f"l_out-{il}"]

    @property
    def result_norm(self) -> np.ndarray:
        """float32 (outputs, n_embd)"""
        return self.rows["result_norm"]

    def stages(self):
        """(name, rows) of the layers in order, result_norm, then the logits."""
        yield from self.rows.items()
        yield "logits", self.logits


class ReferenceModel:
    """A GGUF file loaded by the reference, with one sequence; use it in a `with` block.

    n_ctx: cells of the cache (the trained context if None). n_threads matters to the split-KV attention alone, and
    more threads than cores are very slow. cache: "f16" or "q8_0".
    """

    def __init__(self, path, *, n_ctx=None, n_threads=1, cache="f16", n_ubatch=N_UBATCH, variant=library.VARIANT):
        self.api = library.load(variant).api
        self.model = self.context = None
        path = Path(path)
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
        params = self.api.llama_model_default_params()
        self.model = self.api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise BankmlError(f"{path}: the reference does not load this model")
        self.n_layer = self.api.llama_model_n_layer(self.model)
        self.n_embd = self.api.llama_model_n_embd(self.model)
        self.n_vocab = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))
        self._callback = bindings.EVAL_CALLBACK(self._observe_safely)  # kept for as long as the context may call it
        self._watched, self._seen, self._nudge, self._raised = frozenset(), {}, None, None
        self.n_past = 0
        self._open(path, n_ctx, n_threads, cache, n_ubatch)

    def _open(self, path, n_ctx, n_threads, cache, n_ubatch):
        params = self.api.llama_context_default_params()
        params.n_ctx = n_ctx or self.api.llama_model_n_ctx_train(self.model)
        params.n_batch = max(params.n_ctx, n_ubatch)
        params.n_ubatch = n_ubatch
        params.n_outputs_max_per_seq = 0  # as many as there are tokens
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = CACHE_TYPES[cache]
        params.cb_eval = self._callback
        self.context = self.api.llama_init_from_model(self.model, params)
        if not self.context:
            self.close()
            raise BankmlError(f"{path}: the reference makes no context of {n_ctx} tokens for this model")
        self.n_ctx = self.api.llama_n_ctx(self.context)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Free the context and the model."""
        if self.context:
            self.api.llama_free(self.context)
        if self.model:
            self.api.llama_model_free(self.model)
        self.context = self.model = None

    def stages(self) -> list[str]:
        """The tensors watched by default: every layer's output, then result_norm."""
        return [*(f"l_out-{il}" for il in range(self.n_layer)), "result_norm"]

    def decode(self, tokens, outputs: str = "last", *, watch=None, nudge: str | None = None) -> Run:
        """One llama_decode of `tokens` at the next positions, in the reference's micro-batches.

        outputs: "none", "last" or "all". watch: tensor names (default: `stages()`); () watches nothing, and is faster.
        nudge: a tensor whose every value the reference then finds one ulp off (its lowest bit turned).
        """
        tokens = np.ascontiguousarray(tokens, np.int32)
        wanted = np.zeros(len(tokens), np.int8)
        if outputs != "none":
            wanted[-1 if outputs == "last" else 0 :] = 1
        names = self.stages() if watch is None else list(watch)
        self._watched, self._seen, self._nudge = frozenset(names), {name: [] for name in names}, nudge
        with self._interrupts_kept():
            status = self.api.llama_decode(self.context, self._batch(tokens, wanted))
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        if status:
            raise BankmlError(f"the reference's llama_decode of {len(tokens)} tokens failed with status {status}")
        self.n_past += len(tokens)
        rows = {name: _joined(parts) for name, parts in self._seen.items() if parts}
        return Run(self._logits(int(wanted.sum())), rows)

    def forget(self, keep: int = 0):
        """Keep the first `keep` positions of the sequence, drop the rest."""
        memory = self.api.llama_get_memory(self.context)
        if not self.api.llama_memory_seq_rm(memory, 0, keep, -1):
            raise BankmlError(f"the reference cannot cut its cache to {keep} positions")
        self.n_past = min(self.n_past, keep)

    def set_threads(self, n_threads: int):
        """Run from now on with so many threads."""
        self.api.llama_set_n_threads(self.context, n_threads, n_threads)

    def _batch(self, tokens, wanted):
        n = len(tokens)
        positions = np.arange(self.n_past, self.n_past + n, dtype=np.int32)
        one, zero = np.ones(n, np.int32), ctypes.c_int32(0)
        sequences = (ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.pointer(zero)] * n)
        self._arrays = tokens, wanted, positions, one, sequences  # alive until the next call

        def at(array, kind):
            return array.ctypes.data_as(ctypes.POINTER(kind))

        return bindings.Batch(
            n_tokens=n,
            token=at(tokens, ctypes.c_int32),
            pos=at(positions, ctypes.c_int32),
            n_seq_id=at(one, ctypes.c_int32),
            seq_id=sequences,
            logits=at(wanted, ctypes.c_int8),
        )

    def _logits(self, count):
        if not count:
            return np.empty((0, self.n_vocab), np.float32)
        out = np.empty((count, self.n_vocab), np.float32)
        ctypes.memmove(out.ctypes.data, self.api.llama_get_logits(self.context), out.nbytes)
        return out

    @contextmanager
    def _interrupts_kept(self):
        """Keep Ctrl-C for `decode` to raise: raised at a callback's edge, outside its `try`, it would be lost.

        SIGTERM too, where it has a handler.
        """
        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def keep(number, frame):
            self._raised = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)

        before = {number: handler for number, handler in before.items() if callable(handler)}
        try:
            for number in before:
                signal.signal(number, keep)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _observe_safely(self, tensor, ask, user_data):
        """`_observe`, from C, where nothing can be raised: an error (or Ctrl-C) ends the decode and is kept for it."""
        try:
            if self._raised is not None:
                return ask
            return self._observe(tensor, ask)
        except BaseException as error:
            self._raised = error
            return ask  # to be asked for and then cancelled, or to cancel at once

    def _observe(self, tensor, ask):
        """Called by the reference's scheduler for each node: first to ask, then with its values."""
        name = tensor.contents.name.decode()
        nudged = name == self._nudge
        if ask:
            return name in self._watched or nudged
        columns, *others = tensor.contents.ne
        rows = np.empty((int(np.prod(others)), columns), np.float32)
        self.api.ggml_backend_tensor_get(tensor, rows.ctypes.data, 0, rows.nbytes)
        if name in self._watched:
            self._seen[name].append(rows)
        if nudged:
            turned = rows.view(np.uint32) ^ 1
            self.api.ggml_backend_tensor_set(tensor, turned.ctypes.data, 0, turned.nbytes)
        return True


def _joined(parts):
    """The rows of all micro-batches; of nodes that share a name, those of the last one's width."""
    return np.concatenate([part for part in parts if part.shape[1] == parts[-1].shape[1]])
