"""A screenshot of the dashboard for the docs: of a real answer, at a moment in the midst of it.

python testing/screenshot.py [MODEL] [--size 80x24] [--tokens N] [--out docs/dashboard-80x24.svg]
"""

import argparse
import io
import re
from dataclasses import replace
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

from bankml import models
from bankml.dashboard import render
from bankml.engine import Engine
from bankml.params import Params

ROOT = Path(__file__).resolve().parent.parent
PROMPT = (
    "Write a long story about a small bank by the sea, its three clerks, and the winter when the ships stayed away."
)
FONTS = '"DejaVu Sans Mono", Menlo, Consolas, ui-monospace'  # nothing is fetched from elsewhere


def picture(path, seed, tokens, width, height):
    """The view after so many tokens; it looks now and then before, as the dashboard does."""
    with Engine.open(path, gpu=False) as engine:
        list(engine.generate([{"role": "user", "content": PROMPT}], max_tokens=8))  # kernels compiled
        text, messages = "", [{"role": "user", "content": PROMPT}]
        with engine.generate(messages, Params(seed=seed), max_tokens=4000, reuse="off") as generation:
            for step in generation:
                text += step.text
                if len(generation.tokens) == tokens:
                    return render(replace(engine.snapshot(), answer=text), width, height)
                if len(generation.tokens) % 20 == 1:
                    engine.snapshot()
    raise SystemExit(f"the answer has only {len(generation.tokens)} tokens")


def main():
    """Write the SVG file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--size", default="80x24")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    path = models.resolve(args.model) if args.model else models.default_model()
    console = Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True)
    console.print(picture(path, args.seed, args.tokens, width, height), end="")
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code", FONTS.replace('"', "'"))
    svg = console.export_svg(title="bankml generate --live", code_format=form, unique_id="dashboard")
    out = Path(args.out) if args.out else ROOT / "docs" / f"dashboard-{args.size}.svg"
    out.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(out)


if __name__ == "__main__":
    main()
