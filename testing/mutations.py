"""Can every oracle fail? One thing at a time is turned in a copy of the package; the stage named for it must notice.

    python -m testing.mutations [NAME ...] [--quick]

Each mutation replaces one text of one file. Its stage, tests that compare with recorded bits of the reference, must
fail, and by a comparison: kernels that no longer compile catch nothing. First every stage must pass untouched. In the
gate, the gate's own stage must find it too, live (mutation_table.py has them all).
All run at the avx2 level, so that they say the same on every machine. Exit code 1 if one is not caught.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from testing.mutation_table import MUTATIONS, STAGES, Mutation

ROOT = Path(__file__).parent.parent
COPIED = ("bankml", "kernels.cl", "tests", "testing", "docs", "pyproject.toml", "README.md")
COMPARISON = re.compile(r"assert|AssertionError|Failed: |DID NOT RAISE")


def _environment(folder, home) -> dict[str, str]:
    """The variables of a process over the copy in `folder`, kernels cached in `home`; pytest cuts at the width."""
    settled = {"BANKML_CPU": "avx2", "BANKML_HOME": home, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
    return os.environ | settled | {"PYTHONPATH": str(folder)}


class Copy:
    """A copy of the package in `folder`, in which one text at a time is turned; its stages run there."""

    def __init__(self, folder):
        self.folder = Path(folder)
        for name in COPIED:
            source, target = ROOT / name, self.folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)

    @contextmanager
    def turned(self, mutation: Mutation | None):
        """The copy with a mutation, within a `with` block; untouched for None."""
        if mutation is None:
            yield
            return
        path = self.folder / mutation.file
        text = path.read_text()
        if text.count(mutation.before) != 1:
            raise LookupError(
                f"{mutation.name}: its text stands {text.count(mutation.before)} times in {mutation.file}"
            )
        try:
            path.write_text(text.replace(mutation.before, mutation.after))
            yield
        finally:
            path.write_text(text)

    def run(self, stage: str, mutation: Mutation | None = None) -> tuple[int, list[str]]:
        """Run a stage, with the mutation if there is one: pytest's exit code, and the reason of each failure."""
        with self.turned(mutation):
            return self._pytest(stage)

    def run_gate(self, stage: str, models: Path, mutation: Mutation | None = None) -> str:
        """Run a stage of the gate, quick, over models made in a folder: "equal", "unequal", or how else it ended."""
        with self.turned(mutation), tempfile.TemporaryDirectory() as home:
            result = Path(home) / "result.json"
            command = [sys.executable, "-m", "testing.stages", stage, "--quick", "--folder", models, "--result", result]
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=_environment(self.folder, home),
                check=False,
                capture_output=True,
                text=True,
            )
            if not result.exists():
                return f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
            count = json.loads(result.read_text())
            return "equal" if count["equal"] == count["total"] else "unequal"

    def _pytest(self, stage):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "--tb=short", "-p", "no:cacheprovider"]
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                [*command, *STAGES[stage]],
                cwd=self.folder,
                env=_environment(self.folder, home),
                check=False,
                capture_output=True,
                text=True,
            )
        reasons = [line.partition(" - ")[2] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
        return done.returncode, reasons

    def caught(self, mutation: Mutation) -> str:
        """An empty text if the mutation's stage fails by a comparison, else what happened."""
        code, reasons = self.run(mutation.stage, mutation)
        if code != 1:
            return f"the stage {mutation.stage!r} ended with pytest's exit code {code}"
        others = [reason for reason in reasons if not COMPARISON.match(reason)]
        return f"the stage {mutation.stage!r} failed by {others[0]!r}, no comparison" if others or not reasons else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutations whose name contains one of these; all if none is given")
    parser.add_argument("--quick", action="store_true", help="only those that CI runs")
    given = parser.parse_args()
    chosen = [m for m in MUTATIONS if m.quick or not given.quick]
    if given.names:
        chosen = [m for m in chosen if any(name in m.name for name in given.names)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(folder)
        for stage in dict.fromkeys(mutation.stage for mutation in chosen):
            code, reasons = copy.run(stage)
            if code:
                print(f"the stage {stage!r} does not pass untouched: exit code {code} {reasons[:1]}")
                missed += 1
        for mutation in chosen:
            begun, complaint = time.monotonic(), copy.caught(mutation)
            missed += bool(complaint)
            print(
                f"{mutation.name:<50} {complaint or 'caught by ' + mutation.stage} ({time.monotonic() - begun:.0f} s)"
            )
    print(f"{len(chosen)} mutations, {missed} complaints")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
