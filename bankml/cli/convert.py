"""`bankml convert IN OUT --type TYPE`: rewrite a model as F16, Q1_0 or Q2_0."""

from bankml.cli import flags


def arguments(parser):
    """What the command takes."""
    parser.add_argument(
        "source",
        type=flags.text,
        metavar="IN",
        help="a GGUF file of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q2_0 or Q1_0 weights",
    )
    parser.add_argument(
        "target", type=flags.text, metavar="OUT", help="the file to write; it appears, whole, at the end"
    )
    parser.add_argument(
        "--type", choices=("f16", "q1_0", "q2_0"), required=True, help="the type of every weight matrix"
    )


def run(args) -> int:
    """Writes OUT; what was done goes to stderr."""
    import sys
    from pathlib import Path

    from bankml.convert import convert
    from bankml.errors import UsageError
    from bankml.models import find

    if args.target.endswith("/"):
        raise UsageError(f"{args.target}: names a folder; name the file to write")
    source = Path(args.source)
    if not source.exists():
        source = find(args.source) or source
    matrices, size = convert(source, Path(args.target), args.type.upper())
    print(f"bankml: {args.target}: {matrices} matrices as {args.type.upper()}, {size / 1e6:.1f} MB", file=sys.stderr)
    return 0
