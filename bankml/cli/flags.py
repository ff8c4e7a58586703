"""Flags that commands share, and the checks on their values."""

import argparse
import math

N_CTX, N_UBATCH, MAX_UBATCH, MAX_THREADS, MAX_CTX = 4096, 512, 4096, 64, 2**24
MAX_SEED = 2**32 - 2


def number(kind, low, high, what):
    """An argparse type: a number from `low` to `high`."""

    def parse(text):
        try:  # Python also reads 1_0, white space around, and other scripts' digits
            value = math.nan if "_" in text or not text.isascii() or text != text.strip() else kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; it takes {what}")
        return value

    return parse


def text(value):
    """An argparse type: a text that is not empty."""
    if not value:
        raise argparse.ArgumentTypeError("it takes a text that is not empty")
    return value


def sampling(parser):
    """How tokens are drawn: --temp, --top-k, --top-p, --min-p, --seed."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--temp",
        type=number(float, -1e6, 1e6, "a number"),
        default=0.0,
        metavar="T",
        help="temperature; 0 always takes the likeliest token (default: 0)",
    )
    group.add_argument(
        "--top-k",
        type=number(int, 0, 2**31 - 1, f"a whole number from 0 to {2**31 - 1}"),
        default=40,
        metavar="K",
        help="draw from the K likeliest tokens; 0: from all (default: 40)",
    )
    fraction = "a number from 0 to 1"
    group.add_argument(
        "--top-p",
        type=number(float, 0, 1, fraction),
        default=0.95,
        metavar="P",
        help="draw from the likeliest tokens that make up P; 1: all (default: 0.95)",
    )
    group.add_argument(
        "--min-p",
        type=number(float, 0, 1, fraction),
        default=0.05,
        metavar="P",
        help="drop tokens less likely than P times the likeliest; 0: none (default: 0.05)",
    )
    group.add_argument(
        "--seed",
        type=number(int, 0, MAX_SEED, f"a whole number from 0 to {MAX_SEED}"),
        metavar="S",
        help="seed of the draw (default: a random one, reported)",
    )


def machine(parser):
    """What it runs on: --ctx, --ubatch, --threads, --gpu, --no-gpu."""
    parser.values_after_equals = (*parser.values_after_equals, "--gpu")
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--ctx",
        type=number(int, 1, MAX_CTX, f"a whole number from 1 to {MAX_CTX}"),
        metavar="N",
        help=f"context in tokens (default: {N_CTX}, or the model's if that is less)",
    )
    group.add_argument(
        "--ubatch",
        type=number(int, 1, MAX_UBATCH, f"a whole number from 1 to {MAX_UBATCH}"),
        default=N_UBATCH,
        metavar="N",
        help=f"prompt tokens per micro-batch (default: {N_UBATCH})",
    )
    group.add_argument(
        "--threads",
        type=number(int, 1, MAX_THREADS, f"a whole number from 1 to {MAX_THREADS}"),
        metavar="N",
        help="CPU threads (default: BANKML_THREADS, or all cores)",
    )
    gpu = group.add_mutually_exclusive_group()
    gpu.add_argument(
        "--gpu",
        nargs="?",
        const="auto",
        metavar="WHICH",
        help="use a card and say which; --gpu=WHICH names devices by index or name",
    )
    gpu.add_argument("--no-gpu", action="store_true", help="use no card")
