"""Write the help texts of docs/cli.md anew: every block that begins with `$ bankml ... --help`.

    python testing/write_cli_docs.py [--check]

With --check nothing is written, and the exit code is 1 if the file is out of date.
"""

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bankml.cli.main import parser  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"
BLOCK = re.compile(r"```text\n\$ bankml( [a-z -]+?)? --help\n.*?```", re.DOTALL)
WIDTH = "96"


def help_of(*words: str) -> str:
    """What `bankml WORDS --help` prints, for a terminal of a fixed width."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), WIDTH
    try:
        found = parser()
        for word in words:
            actions = [action for action in found._actions if isinstance(action, argparse._SubParsersAction)]
            found = actions[0].choices[word]
        return found.format_help().rstrip()
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def updated(page: str) -> str:
    """The page with every help text as it is now."""

    def block(match):
        words = (match[1] or "").split()
        return f"```text\n$ {' '.join(['bankml', *words, '--help'])}\n{help_of(*words)}\n```"

    return BLOCK.sub(block, page)


def main():
    page = PAGE.read_text()
    if "--check" not in sys.argv:
        PAGE.write_text(updated(page))
    elif updated(page) != page:
        sys.exit(f"{PAGE} is out of date: run python testing/write_cli_docs.py")


if __name__ == "__main__":
    main()
