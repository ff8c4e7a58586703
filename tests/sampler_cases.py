"""Logits and chain settings on which our sampler and the reference's must draw the same tokens."""

import itertools
import math

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
# The chain's other samplers; what is not said is as in DEFAULTS
VARIANTS = {
    "repeat": {"repeat_penalty": 1.3},
    "repeat below one": {"repeat_penalty": 0.8, "repeat_last_n": 5},
    "presence": {"presence_penalty": 1.5, "repeat_last_n": 8},
    "frequency": {"frequency_penalty": 0.7, "repeat_last_n": 200},
    "all penalties, whole vocabulary": {
        **OFF, "repeat_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.25, "temperature": 1.1,
    },
    "penalties off by their window": {"repeat_penalty": 1.3, "repeat_last_n": 0},
    "dry": {"dry_multiplier": 0.8},
    "dry, wide": {"dry_multiplier": 2.0, "dry_base": 1.2, "dry_allowed_length": 0, "dry_penalty_last_n": 300},
    "dry, no breakers": {"dry_multiplier": 1.5, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    "dry, long breakers": {
        "dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_sequence_breakers": ("ing the", " and\n", "e", " world "),
    },
    "dry, base one": {"dry_multiplier": 0.5, "dry_base": 1.0, "dry_allowed_length": 1},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "top-n-sigma alone": {**OFF, "top_n_sigma": 2.5, "temperature": 1.3},
    "typical": {"typical_p": 0.6},
    "typical alone": {**OFF, "typical_p": 0.9, "temperature": 1.2},
    "typical after top-n-sigma": {"top_n_sigma": 0.5, "typical_p": 0.5},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "xtc always": {**OFF, "top_k": 10, "xtc_probability": 1.0, "xtc_threshold": 0.02, "temperature": 1.5},
    "xtc alone": {**OFF, "xtc_probability": 0.7, "xtc_threshold": 0.001},
    "greedy with xtc": {"temperature": 0.0, "xtc_probability": 0.5, "xtc_threshold": 0.02},
    "dynamic temperature": {"dynatemp_range": 0.5},
    "dynamic temperature from 0": {"temperature": 0.3, "dynatemp_range": 0.7, "dynatemp_exponent": 2.5, "min_p": 0.0},
    "dynamic temperature alone": {**OFF, "dynatemp_range": 0.4, "dynatemp_exponent": 0.5},
    "min-keep": {"min_keep": 5, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.2, "xtc_probability": 0.5},
    "min-keep, unsorted": {"min_keep": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.8, "typical_p": 0.7},
    "logit bias": {"logit_bias": ((1, 4.0), (2, -3.0), (1, 0.5), (7, -math.inf), (8, 6.0)), "top_k": 5},
    "all of it": {
        "repeat_penalty": 1.1, "presence_penalty": 0.1, "dry_multiplier": 0.5, "top_n_sigma": 3.0, "typical_p": 0.95,
        "xtc_probability": 0.2, "dynatemp_range": 0.2, "logit_bias": ((3, 1.0),),
    },
    "another order": {
        "samplers": ("temperature", "top_k", "penalties", "dry", "top_p", "xtc"),
        "top_k": 60, "presence_penalty": 0.8, "dry_multiplier": 0.9, "dry_allowed_length": 1, "xtc_probability": 0.4,
    },
    "min-p first": {"samplers": ("min_p", "typ_p", "top_k"), "typical_p": 0.8, "min_p": 0.02},
    "top-k alone in the chain": {"samplers": ("top_k",)},
    "no top-p in the chain": {"samplers": ("top_k", "min_p", "temperature"), "top_p": 0.3},
    "no min-p in the chain": {"samplers": ("top_k", "top_p", "temperature"), "min_p": 0.9, "temperature": 1.5},
    "nothing": {"samplers": ()},
}  # fmt: skip
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


def chatter(n_vocab: int, draws: int, seed: int, steps: int = 0):
    """Logits that keep coming back to a few tokens, so that what looks back has something to see."""
    rng = np.random.default_rng(seed)
    few = rng.permutation(min(n_vocab, 3000))[:12]
    for _ in range(draws):
        row = rng.normal(0, 1, n_vocab).astype(np.float32)
        row[few] += rng.normal(6, 1, len(few)).astype(np.float32)
        yield np.round(row * np.float32(steps)) / np.float32(steps) if steps else row


def rows(name: str, draws: int = DRAWS):
    """`draws` rows of float32 (n_vocab,) logits."""
    n_vocab, spread, steps = LOGITS[name]
    rng = np.random.default_rng(len(name) * 1000 + n_vocab)
    for _ in range(draws):
        row = rng.normal(0, 1, n_vocab).astype(np.float32) * np.float32(spread)
        yield np.round(row * np.float32(steps)) / np.float32(steps) if steps else row
