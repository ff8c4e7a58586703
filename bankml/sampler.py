"""From logits to a token, as llama-server b11192 does with the same seed: its chain, its windows, its draws.

The samplers themselves are compiled (`cpu/sampling.py`, run by `sampler_chain.py`); here is what lasts from token to
token, and the random numbers.
"""

import math
import os
import random
from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from bankml.dry import Dry, breakers
from bankml.errors import BankmlError, UsageError
from bankml.params import MAX_SEED, Params
from bankml.sampler_chain import Chain, TokenProbs, active, log_probs


class MersenneTwister:
    """std::mt19937 seeded with one 32-bit number."""

    def __init__(self, seed: int):
        state = [seed]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
        self._random = random.Random()
        self._random.setstate((3, (*state, 624), None))  # Python's own generator is the same one, seeded otherwise

    def uniform(self) -> float:
        """std::uniform_real_distribution<double>(0, 1): two outputs, the first one the low part."""
        low, high = self._random.getrandbits(32), self._random.getrandbits(32)
        drawn = (float(low) + float(high) * 2.0**32) / 2.0**64
        return drawn if drawn < 1.0 else math.nextafter(1.0, 0.0)

    def uniform_f32(self) -> float:
        """std::uniform_real_distribution<float>(0, 1): one output."""
        drawn = np.float32(self._random.getrandbits(32)) / np.float32(2**32)
        return float(min(drawn, np.float32(1 - 2**-24)))


class Sampler:
    """Draws tokens with one seed: `begin(prompt)`, then `sample` and `accept` in turn.

    `tokenizer` is needed for DRY, whose breakers are texts. `.seed` is the seed in use. Raises UsageError for DRY
    without a tokenizer.
    """

    def __init__(self, params: Params | None = None, tokenizer=None):
        self.params = params = Params() if params is None else params
        self.seed = int.from_bytes(os.urandom(4), "little") % (MAX_SEED + 1) if params.seed is None else params.seed
        self._chain: Chain | None = None  # made for the first row
        self._steps, self._heads = active(params), {}
        if "dry" in self._steps:
            if tokenizer is None:
                raise UsageError("DRY needs the model's tokenizer for its breakers: Sampler(params, tokenizer)")
            self._heads = breakers(tokenizer, tuple(params.dry_sequence_breakers))
        self.begin()

    def begin(self, prompt: Iterable[int] = ()):
        """Start an answer: the seed anew, and what was seen are the prompt's tokens, all of them."""
        self.rng, self._xtc = MersenneTwister(self.seed), MersenneTwister(self.seed)
        self._chance = self._xtc.uniform_f32()
        self.accepted: list[int] = []  # of the answer
        self._seen, self._counts = deque(), Counter()
        self._dry = Dry(self.params, self._heads) if "dry" in self._steps else None
        if self._dry or "penalties" in self._steps:
            for token in prompt:
                self._note(int(token))

    def accept(self, token: int):
        """Note a token of the answer, for samplers that look back."""
        self.accepted.append(token)
        self._note(token)

    def _note(self, token):
        if "penalties" in self._steps:
            self._seen.append(token)
            self._counts[token] += 1
            if len(self._seen) > self.params.repeat_last_n:
                oldest = self._seen.popleft()
                self._counts[oldest] -= 1
                if not self._counts[oldest]:
                    del self._counts[oldest]
        if self._dry:
            self._dry.accept(token)

    def sample(self, logits: np.ndarray) -> int:
        """The next token for float32 (n_vocab,) logits, which are left as they are.

        Raises BankmlError for logits that are not finite (-inf excepted).
        """
        row = self._biased(np.ascontiguousarray(logits, np.float32))
        if self._chain is None or self._chain.n != len(row):
            self._chain = Chain(self.params, len(row))
        losses = self._dry.losses() if self._dry else None
        token = self._chain.run(row, self.rng.uniform(), self._chance, self._counts, losses)
        if token < 0:
            raise BankmlError("the model gives logits that are not finite; its file is damaged or not what it says")
        if self._chain.used_chance:
            self._chance = self._xtc.uniform_f32()
        return token

    def _biased(self, row):
        """The row with what is added to single tokens."""
        if not (self.params.logit_bias or self.params.suppress_tokens):
            return row
        row = row.copy()
        for token, bias in (*self.params.logit_bias, *((token, -math.inf) for token in self.params.suppress_tokens)):
            if token < len(row):
                row[token] += np.float32(bias)
        return row

    def probs(self, logits: np.ndarray) -> TokenProbs:
        """What the server says of the token that `sample` has just drawn from these logits; `n_probs` others beside."""
        count = min(self.params.n_probs, len(logits))
        if self.params.post_sampling_probs:
            return self._chain.probs(count)
        return log_probs(np.ascontiguousarray(logits, np.float32), self._chain.token, count)
