"""`bankml tokenize FILE < text`: the ids of the text on stdin, as one JSON object."""

import json

from bankml.cli import flags, given


def arguments(parser):
    """Declare the command's arguments."""
    parser.add_argument("file", type=flags.text, metavar="FILE", help="a GGUF model or vocabulary")
    parser.add_argument("--no-special", action="store_true", help="take control tokens in the text as plain text")


def run(args) -> int:
    """Read all of stdin, as bytes, and print `{"tokens": [...]}`."""
    from bankml.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(args.file)
    print(json.dumps({"tokens": tokenizer.encode(given.stdin(), parse_special=not args.no_special)}))
    return 0
