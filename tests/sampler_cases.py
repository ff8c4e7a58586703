"""Logits and chain settings on which our sampler and the reference's must draw the same tokens."""

import itertools

import numpy as np

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 42}
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS = {
    "default": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.05},
    "seed 43": {"seed": 43},
    "largest seed": {"seed": 2**32 - 2},
    "nothing but the draw": {**OFF, "temperature": 1.0},
    "top-k 1": {"top_k": 1},
    "top-k 200": {"top_k": 200, "top_p": 1.0, "min_p": 0.0},
    "top-k beyond the vocabulary": {"top_k": 10**6, "min_p": 0.0, "temperature": 1.5},
    "top-p alone": {**OFF, "top_p": 0.9},
    "top-p alone, wide": {**OFF, "top_p": 0.999, "temperature": 2.0},
    "top-p 0": {**OFF, "top_p": 0.0},
    "min-p alone": {**OFF, "min_p": 0.02, "temperature": 1.2},
    "min-p 1": {**OFF, "min_p": 1.0},
    "top-p then min-p": {**OFF, "top_p": 0.99, "min_p": 0.001, "temperature": 3.0},
}
# name -> (n_vocab, spread of the logits, steps per unit they are rounded to, or 0); coarse steps make ties
LOGITS = {
    "tiny": (9, 2.0, 0),
    "small": (100, 3.0, 0),
    "middling": (900, 2.0, 0),
    "smollm2": (49_152, 3.0, 0),
    "flat": (4_099, 0.2, 0),
    "tied": (4_099, 2.0, 4),
    "much tied": (700, 1.0, 1),
    "all equal": (300, 0.0, 1),
    "tied few": (60, 2.0, 2),
}
DRAWS = 12


def cases():
    """(name, settings, logits name) of every combination."""
    for logits, (name, change) in itertools.product(LOGITS, SETTINGS.items()):
        yield f"{logits}: {name}", {**DEFAULTS, **change}, logits


def rows(name: str, draws: int = DRAWS):
    """`draws` rows of float32 (n_vocab,) logits."""
    n_vocab, spread, steps = LOGITS[name]
    rng = np.random.default_rng(len(name) * 1000 + n_vocab)
    for _ in range(draws):
        row = rng.normal(0, 1, n_vocab).astype(np.float32) * np.float32(spread)
        yield np.round(row * np.float32(steps)) / np.float32(steps) if steps else row
