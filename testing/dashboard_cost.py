"""What the dashboard costs: the same answer with it and without, in turns, on one engine at a pseudo-terminal.

    python testing/dashboard_cost.py [MODEL] [--rounds N] [--tokens N] [--size 200x50]

Prints tokens/s of both, the cost as a share, and the frames per second.
"""

import argparse
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
from dataclasses import replace

from bankml import models
from bankml.dashboard import Live
from bankml.engine import Engine

PROMPT = [{"role": "user", "content": "Tell me a long story about a bank in a small town."}]


def answer(engine, tokens, live):
    """(tokens/s of an answer, frames/s of its picture or None)."""
    text = [""]

    def look():
        return replace(engine.snapshot(), answer=text[0])

    generation = engine.generate(PROMPT, max_tokens=tokens, reuse="off")
    view = Live(look) if live else None
    if view is not None:
        view.start()
    try:
        for step in generation:
            text[0] += step.text
    finally:
        if view is not None:
            view.leave()
    seconds = generation.decode_s
    return (len(generation.tokens) - 1) / seconds, view and view.frames / (seconds + generation.prompt_s)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--size", default="200x50")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    reader = subprocess.Popen(["cat"], stdin=leader, stdout=subprocess.DEVNULL)  # in the terminal's place
    os.environ.setdefault("TERM", "xterm-256color")
    before, sys.stderr = sys.stderr, os.fdopen(follower, "w")
    path = models.resolve(args.model) if args.model else models.default_model()
    try:
        rates = measure(path, args)
    finally:
        sys.stderr = before
        reader.kill()
    plain, shown = (statistics.median(rates[live][1:]) for live in (False, True))
    pairs = statistics.median(1 - b / a for a, b in zip(rates[False][1:], rates[True][1:], strict=True))
    print(f"medians {plain:.2f} and {shown:.2f} tokens/s: {1 - shown / plain:.1%}; of pairs {pairs:.1%}")


def measure(path, args):
    """Rates without the dashboard and with it, in turns."""
    rates = {False: [], True: []}
    with Engine.open(path, gpu=False) as engine:
        for live in (False, True) * (args.rounds + 1):
            rate, frames = answer(engine, args.tokens, live)
            rates[live].append(rate)
            print(
                f"{'with' if live else 'without':<8} {rate:7.2f} tokens/s"
                + (f"  {frames:.1f} frames/s" if live else "")
            )
    return rates


if __name__ == "__main__":
    main()
