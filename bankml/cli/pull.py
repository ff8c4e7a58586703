"""`bankml pull NAME`: fetch a known model by name."""

from bankml.cli import flags


def arguments(parser):
    """What the command takes."""
    parser.add_argument(
        "name", type=flags.text, metavar="NAME", help="smollm2 (SmolLM2-135M-Instruct, the default model)"
    )
    parser.add_argument(
        "--type", choices=("f16", "q2_0"), default="f16", help="the weight type to convert it to (default: f16)"
    )


def run(args) -> int:
    """Prints the path of the model on stdout."""
    from bankml.models import pull

    print(pull(args.name, args.type.upper()))
    return 0
