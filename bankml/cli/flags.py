"""Flags that commands share, and the checks on their values."""

import argparse
import math
import re

from bankml.errors import Refused, UsageError
from bankml.params import CHAIN, MAX_COUNT, MAX_FLOAT, MAX_SEED, RANGES, Params, sampler_name

N_CTX, N_UBATCH, MAX_UBATCH, MAX_THREADS, MAX_CTX = 4096, 512, 4096, 64, 2**24


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


def _bias(text):
    """An argparse type: llama.cpp's TOKEN(+/-)BIAS."""
    found = re.fullmatch(r"([0-9]{1,10})([+-](?:[0-9]+\.?[0-9]*|\.[0-9]+|inf))", text, re.ASCII)
    bias = float(found[2]) if found else math.nan
    if not bias <= MAX_FLOAT:
        raise argparse.ArgumentTypeError(f"{text!r}; it takes a token and a number such as 15043+1 or 15043-inf")
    return int(found[1]), bias


_FRACTION = number(float, 0, 1, "a number from 0 to 1")
_NUMBER = number(float, -MAX_FLOAT, MAX_FLOAT, "a number")
_WHOLE = number(int, 0, MAX_COUNT, f"a whole number from 0 to {MAX_COUNT}")
_SEED = number(int, 0, MAX_SEED, f"a whole number from 0 to {MAX_SEED}")
_PENALTY = number(float, *RANGES["repeat_penalty"])
_BASE = number(float, *RANGES["dry_base"])

# flag -> (field of Params, type, metavar, what it does); the defaults are told by the fields
SAMPLING = {
    "--temp": (
        "temperature",
        number(float, -1e6, 1e6, "a number"),
        "T",
        "temperature; 0 always takes the likeliest token",
    ),
    "--top-k": ("top_k", _WHOLE, "K", "draw from the K likeliest tokens; 0: from all"),
    "--top-p": ("top_p", _FRACTION, "P", "draw from the likeliest tokens that make up P; 1: all"),
    "--min-p": ("min_p", _FRACTION, "P", "drop tokens less likely than P times the likeliest; 0: none"),
    "--seed": ("seed", _SEED, "S", "seed of the draw"),
    "--repeat-penalty": ("repeat_penalty", _PENALTY, "X", "divide the logits of tokens seen lately by X; 1: off"),
    "--presence-penalty": ("presence_penalty", _NUMBER, "X", "take X from the logits of tokens seen lately; 0: off"),
    "--frequency-penalty": ("frequency_penalty", _NUMBER, "X", "take X for each time a token was seen lately; 0: off"),
    "--repeat-last-n": ("repeat_last_n", _WHOLE, "N", "how many tokens these three look back, into the prompt too"),
    "--dry-multiplier": ("dry_multiplier", _NUMBER, "X", "DRY: how much a token that goes on repeating loses; 0: off"),
    "--dry-base": ("dry_base", _BASE, "X", "DRY: growth of the loss with each token of the repetition"),
    "--dry-allowed-length": ("dry_allowed_length", _WHOLE, "N", "DRY: repetitions shorter than N are free"),
    "--dry-penalty-last-n": ("dry_penalty_last_n", _WHOLE, "N", "DRY: how many tokens it looks back"),
    "--top-n-sigma": (
        "top_n_sigma",
        _NUMBER,
        "X",
        "drop logits more than X standard deviations below the top; 0: none",
    ),
    "--typical-p": ("typical_p", _FRACTION, "P", "draw from the most typical tokens that make up P; 1: all"),
    "--xtc-probability": ("xtc_probability", _FRACTION, "P", "how often XTC drops the likeliest tokens; 0: never"),
    "--xtc-threshold": ("xtc_threshold", _FRACTION, "P", "XTC: all tokens of at least P but the last of them go"),
    "--dynatemp-range": ("dynatemp_range", _NUMBER, "T", "let the temperature move by T with the entropy; 0: off"),
    "--dynatemp-exponent": ("dynatemp_exponent", _NUMBER, "X", "how the entropy maps to that temperature"),
}


def sampling(parser):
    """How tokens are drawn: --temp, --top-k and so on; `params` makes the sampler's parameters of what was given."""
    group = parser.add_argument_group(
        "sampling",
        "What is not given is as the model file recommends (general.sampling.*), else as told here.",
    )
    for flag, (field, kind, metavar, what) in SAMPLING.items():
        told = {"temperature": 0, "seed": "a random one, reported"}.get(field, getattr(Params, field))
        told = f"{told:g}" if isinstance(told, float) else told
        group.add_argument(flag, type=kind, dest=field, metavar=metavar, help=f"{what} (default: {told})")
    group.add_argument(
        "--dry-sequence-breaker",
        type=text,
        action="append",
        metavar="S",
        help='DRY: no repetition reaches over S; replaces the new line, colon, quote and star; "none": there are none',
    )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="TOKEN+X",
        help="add X to a token's logit (TOKEN-X: take it away; may be given more than once)",
    )
    group.add_argument("--samplers", type=_chain, metavar="LIST", help=f"the chain (default: {';'.join(CHAIN)})")


def _chain(text):
    """An argparse type: names of samplers with ";" between them."""
    try:
        return tuple(sampler_name(name) for name in text.split(";") if name)
    except (UsageError, Refused) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def params(args, kv, **more) -> Params:
    """The sampler's parameters: the flags given, over what the file with this `Header.kv` recommends; greedy without.

    `more` fields go over all of it. Raises Refused for a file whose recommendations bankml cannot follow.
    """
    given = {field: getattr(args, field) for field, *_ in SAMPLING.values()} | {"samplers": args.samplers}
    given = {field: value for field, value in given.items() if value is not None}
    if args.dry_sequence_breaker:
        given["dry_sequence_breakers"] = tuple(word for word in args.dry_sequence_breaker if word != "none")
    if args.logit_bias:
        given["logit_bias"] = tuple(args.logit_bias)
    return Params.from_gguf(kv, **{"temperature": 0.0} | given | more)


def model(parser):
    """Which model: -m."""
    parser.add_argument(
        "-m",
        "--model",
        type=text,
        metavar="MODEL",
        help="a GGUF file or a model's name (default: SmolLM2, fetched once)",
    )


def length(parser):
    """How long an answer may be: --max."""
    parser.add_argument(
        "--max", type=_WHOLE, metavar="N", help="stop after N tokens (default: when the context is full)"
    )


def asking(group):
    """How the question is put, and where the answer ends: --system, --no-think, --stop."""
    group.add_argument("--system", metavar="S", help="a system message in front of the prompt")
    group.add_argument("--no-think", action="store_true", help="ask the template for an answer without thinking")
    group.add_argument(
        "--stop",
        type=text,
        action="append",
        default=[],
        metavar="S",
        help="end the answer before this text (may be given more than once)",
    )


def live(parser):
    """--live."""
    parser.add_argument(
        "--live",
        action="store_true",
        help="show what it does and at what speed while it runs, on stderr; plain lines where that is no terminal",
    )


def cache_type(parser):
    """How K and V are kept: --cache-type."""
    parser.add_argument(
        "--cache-type",
        choices=("f16", "q8_0"),
        metavar="TYPE",
        help="how K and V are cached, f16 or q8_0, about half the size (default: BANKML_CACHE_TYPE, or f16)",
    )


def machine(parser):
    """What it runs on: --ctx, --cache-type, --ubatch, --threads, --gpu, --no-gpu."""
    parser.values_after_equals = (*parser.values_after_equals, "--gpu")
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--ctx",
        type=number(int, 1, MAX_CTX, f"a whole number from 1 to {MAX_CTX}"),
        metavar="N",
        help=f"context in tokens (default: {N_CTX}, or the model's if that is less)",
    )
    cache_type(group)
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
