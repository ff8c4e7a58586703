"""`bankml guard FILE`: play (exit 0), refuse (2) or need_more (3), with every reason."""

import json

from bankml.cli import flags
from bankml.guard import Verdict, guard


def arguments(parser):
    parser.add_argument("file", type=flags.text, metavar="FILE", help="a GGUF model; of a split one, its first part")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args) -> int:
    verdict = guard(args.file)
    if args.json:
        print(json.dumps(_report(verdict)))
        return {"play": 0, "refuse": 2, "need_more": 3}[verdict.verdict]
    print(verdict.verdict)
    for note in verdict.notes:
        print(f"note: {note}")
    verdict.check()
    return 0


def _report(verdict: Verdict) -> dict:
    """The `--json` object; what a broken header does not tell is null or empty."""
    header = verdict.header
    return {
        "verdict": verdict.verdict,
        "reasons": verdict.reasons,
        "notes": verdict.notes,
        "arch": header.arch if header else None,
        "types": verdict.types(),
        "tensors": len(header.tensors) if header else 0,
        "files": [str(path) for path in header.paths] if header else [],
        "bytes": sum(header.sizes) if header else 0,
    }
