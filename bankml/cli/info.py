"""`bankml info FILE`: what a model file says of itself, whether bankml runs it or not."""

import json
import math

from bankml.cli import flags
from bankml.errors import NeedMore, Refused
from bankml.gguf import Header, check_spans, printable
from bankml.guard import TEMPLATE_KEY, Verdict, guard

# What is printed of the hyper-parameters: a title, and the keys after the architecture's name.
KEYS = {
    "layers": "block_count",
    "width": "embedding_length",
    "feed-forward": "feed_forward_length",
    "heads": "attention.head_count",
    "kv heads": "attention.head_count_kv",
    "head width": "attention.key_length",
    "context": "context_length",
    "rope base": "rope.freq_base",
    "rope scaling": "rope.scaling.type",
    "rope factor": "rope.scaling.factor",
    "rope context": "rope.scaling.original_context_length",
}


def arguments(parser):
    parser.add_argument("file", type=flags.text, metavar="FILE", help="a GGUF model; of a split one, its first part")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args) -> int:
    verdict = guard(args.file)
    facts = summary((verdict if verdict.header else verdict.check()).header, verdict)
    if args.json:
        print(json.dumps(facts))
        return 0
    for title, value in facts.items():
        if value not in (None, [], ""):
            print(f"{title.replace('_', ' ') + ':':<16}{_line(value)}")
    return 0


def _line(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return "; ".join(value) if isinstance(value, list) else str(value)


def summary(header: Header, verdict: Verdict) -> dict:
    """Facts by title, in the order they are printed; None where the file does not say."""
    kv, arch = header.kv, header.arch or ""

    def value(key):
        found = kv.get(key)
        if isinstance(found, str):
            return printable(found[:200])
        if isinstance(found, float) and not math.isfinite(found):
            return str(found)  # JSON has no such number
        return found if found is None or isinstance(found, int | float) else f"{len(found)} values"

    return {
        "name": value("general.name"),
        "arch": value("general.architecture"),
        "gguf": header.version,
        "files": [str(path) for path in header.paths],
        "bytes": sum(header.sizes),
        "data": _data(header),
        "tensors": verdict.types() or None,
        "weights": sum(tensor.rows * (tensor.dims[0] if tensor.dims else 1) for tensor in header.tensors.values()),
        **{title.replace(" ", "_").replace("-", "_"): value(f"{arch}.{key}") for title, key in KEYS.items()},
        "tokenizer": value("tokenizer.ggml.model"),
        "pre_tokenizer": value("tokenizer.ggml.pre"),
        "vocabulary": len(kv["tokenizer.ggml.tokens"]) if kv.kind("tokenizer.ggml.tokens") == "arr[str]" else None,
        "chat_template": f"{len(kv[TEMPLATE_KEY])} characters" if kv.kind(TEMPLATE_KEY) == "str" else "none: ChatML",
        "verdict": verdict.verdict,
        "reasons": verdict.reasons,
        "notes": verdict.notes,
    }


def _data(header: Header) -> str:
    try:
        check_spans(header)
    except (NeedMore, Refused):
        return "incomplete"
    return "complete"
