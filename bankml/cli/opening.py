"""What `generate` and `chat` share: from flags to an engine, in two steps, the quick one first; and text to stdout."""

import sys

from bankml.cli import card_words, flags
from bankml.cli.signals import tell_of_lost_data

CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def say(message):
    """One line on stderr."""
    print(f"bankml: {message}", file=sys.stderr, flush=True)


def put(text: str, on_terminal: bool):
    """Write and flush a part of an answer; on a terminal, a model's control characters do nothing."""
    shown = text.translate(CONTROL) if on_terminal else text
    sys.stdout.buffer.write(shown.encode())
    sys.stdout.buffer.flush()


def open_prompts(args):
    """The tokenizer, template and context of the model that is meant (`Prompts`), fetched first if need be."""
    from bankml import models
    from bankml.prompts import Prompts

    path = models.resolve(args.model) if args.model is not None else models.default_model()
    prompts = Prompts.open(path, args.ctx or flags.N_CTX)
    if args.ctx and args.ctx > prompts.n_ctx:
        say(f"--ctx {args.ctx} is beyond the {prompts.n_ctx} tokens the model was trained on; those are the context")
    return prompts


def open_engine(args, prompts, kind, *, cache_ram=None, lost=lambda: None):
    """The engine; lines on the cards where they are asked for. lost: what to call first where the file is cut."""
    from bankml.engine import Engine
    from bankml.forward import Weights

    path = prompts.header.path
    tell_of_lost_data(path, lost)
    weights = Weights.open(path, gpu=card_words.wanted(args), threads=args.threads)
    for line in card_words.joining(args, weights.card_notes):
        say(line)
    return Engine(weights, prompts, kind=kind, n_ubatch=args.ubatch, cache_ram=cache_ram)


def template(args) -> dict:
    """The variables of the chat template that the flags set."""
    return {"enable_thinking": False} if args.no_think else {}
