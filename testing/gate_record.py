"""The gate's record, testing/results/VERSION.md, and the tables that docs/oracles.md and performance.md take from it.

python -m testing.gate_record      # writes the newest record's tables into the pages
"""

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bankml.oracle import library
from bankml.oracle.record import stamp as cpu_stamp
from bankml.version import __version__
from testing import gate_setup
from testing.stages.stage import Stage

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "testing" / "results"
BEGIN, END = "<!-- the gate's record begins -->\n", "<!-- the gate's record ends -->\n"
PACKAGES = ("numpy", "numba", "llvmlite", "tokenizers", "jinja2", "pyopencl")
SPEED_HEAD = (
    "Tokens per second, medians, both engines in turns; the read floor is measured just before each decoding row.\n"
)
SPEED_COLUMNS = ("model", "work", "tokens", "bankml", "reference", "ratio", "spread", "GB/s", "read floor", "logits")
SPEED = "speed"  # the fact that holds the bench's rows


def _git(*words) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commit() -> str:
    """The commit that is checked out, and whether files differ from it."""
    changed = " with uncommitted changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return (_git("rev-parse", "--short=12", "HEAD") or "no commit") + changed


# -- outcomes kept for --from -----------------------------------------------------------------------------------------


def _kept_path() -> Path:
    return library.home() / "gate" / f"{__version__}.json"


def keep(outcomes: dict):
    """Keep the outcomes so far, for `--from`."""
    path = _kept_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, json.dumps({"commit": commit(), "outcomes": outcomes}))


def kept() -> dict:
    """The outcomes of an earlier run at the same commit; none where files were changed."""
    try:
        held = json.loads(_kept_path().read_text())
    except (OSError, ValueError):
        return {}
    return held["outcomes"] if held["commit"] == commit() and " " not in held["commit"] else {}


def _write(path: Path, text: str):
    """The file whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text)
    os.replace(partial, path)


# -- the record -------------------------------------------------------------------------------------------------------


def write(path: Path | None, outcomes: dict, stages: Sequence[Stage], models: Sequence[Path] = ()) -> Path:
    """Write the record of these stages, and of the user's models; returns its path."""
    path = path or RESULTS / f"{__version__}.md"
    parts = [
        f"# bankml {__version__}: the gate's record\n\nWritten by `testing/gate`. Both sides of every count were "
        "computed in this run; rows and values are compared as bits.\n",
        _facts("Machine and versions", machine() | {"commit": commit(), "date": time.strftime("%Y-%m-%d")}),
        _stages(outcomes, stages),
        _speed(outcomes),
        _facts("Figures", _figures(outcomes, stages)),
        _facts("SHA-256 of the models", {model.name: library.sha256_of(model) for model in models}),
        _facts("SHA-256 of the reference", gate_setup.stamp()),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, "\n".join(part for part in parts if part))
    return path


def machine() -> dict:
    """What the record was made on."""
    from bankml.cpu.level import level

    cpu = cpu_stamp(library.load())
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / 2**20
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "CPU": cpu["cpu"]["model"],
        "cores": len(os.sched_getaffinity(0)),
        "level of the kernels": level(),
        "memory": f"{memory:.0f} GiB",
        "system": f"Linux {platform.release()}, {cpu['glibc']}",
        "Python": f"{platform.python_version()}; {packages}",
        "reference": f"{cpu['reference']}, {cpu['variant']} build",
    }


def _facts(title, facts) -> str:
    if not facts:
        return ""
    return f"## {title}\n\n" + "".join(f"- {name}: {value}\n" for name, value in facts.items())


def _stages(outcomes, stages) -> str:
    lines = []
    for stage in stages:
        done = outcomes[stage.name]
        count = f"{done['equal']:,} of {done['total']:,} {stage.unit}"
        lines.append(f"| {stage.name} | {stage.what} | {count} | {done['seconds']:.0f} s |")
    seconds = sum(outcomes[stage.name]["seconds"] for stage in stages)
    head = f"## Stages\n\n{_header(['stage', 'what is compared', 'equal', 'time'])}"
    return head + "\n".join(lines) + f"\n\n{seconds / 60:.0f} minutes in all, two stages at a time where they can.\n"


def _speed(outcomes) -> str:
    rows = [row for done in outcomes.values() for row in done["facts"].get(SPEED, ())]
    if not rows:
        return ""
    bits = {True: "equal", False: "DIFFERENT", None: "others by design"}
    lines = []
    for r in rows:
        memory = f"{r['gb_s']:.1f} | {r['floor_share']:.0%}" if r["gb_s"] else " | "
        time = ", ".join(f"{kind} {share:.1%}" for kind, share in r["budget"].items() if share >= 0.01)
        lines.append(
            f"| {r['model']} | {r['work']} | {r['n']} | {r['ours']:.1f} | {r['reference']:.1f} | {r['ratio']:.2f} "
            f"| {r['spread']:.0%} | {memory} | {bits[r['bits_equal']]} | {time} |\n"
        )
    return f"## Speed\n\n{SPEED_HEAD}\n{_header((*SPEED_COLUMNS, 'our time'))}{''.join(lines)}"


def _header(columns: Sequence[str]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (columns, ["---"] * len(columns)))


def _figures(outcomes, stages) -> dict:
    return {
        f"{stage.name}, {name}": f"{value:,}" if isinstance(value, int) else value
        for stage in stages
        for name, value in outcomes[stage.name]["facts"].items()
        if name != SPEED
    }


# -- the pages' tables ------------------------------------------------------------------------------------------------


def newest() -> Path | None:
    """The newest version's record, if there is one."""
    numbered = {tuple(map(int, re.findall(r"\d+", path.stem))): path for path in RESULTS.glob("[0-9]*.md")}
    return numbered[max(numbered)] if numbered else None


def table(record: Path | None, title: str) -> str:
    """What a page shows of a record: the table of a section, less its last column, and what it was made on."""
    if record is None:
        return "No record has been made yet.\n"
    text = record.read_text()
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.rsplit("|", 2)[0] + "|\n" for line in section.splitlines() if line.startswith("|")]
    told = dict(re.findall(r"^- (CPU|cores|commit|date): (.*)$", text, re.M))
    made = (
        f"Version {record.stem}, {told['date']}, commit {told['commit']}, on {told['cores']} cores of {told['CPU']}: "
    )
    link = f"[the record](../{record.relative_to(ROOT)})"
    return f"{made}{link}.\n\n{''.join(rows)}"


PAGES = {
    ROOT / "docs" / "oracles.md": "Stages",
    ROOT / "docs" / "performance.md": "Speed",
}  # page -> section of the record


def updated(page: Path) -> str:
    """A page's text with the newest record's table."""
    before, rest = page.read_text().split(BEGIN)
    return before + BEGIN + table(newest(), PAGES[page]) + END + rest.split(END)[1]


def update_docs():
    """Write the tables into the pages."""
    for page in PAGES:
        _write(page, updated(page))


if __name__ == "__main__":
    update_docs()
