"""Write the table of verified drivers in docs/gpu.md anew, from what `bankml gpu --verify --json` printed.

bankml gpu --verify --json > testing/results/gpu/NAME.json
python testing/write_gpu_table.py
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "gpu.md", ROOT / "testing" / "results" / "gpu"
HEAD = "| device | type | driver | date | passed with | checks | `a*b+c` / `fma()` / `mad()` | denormals |\n"
RULE = "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
BEGIN, END = "<!-- verified: testing/write_gpu_table.py -->\n", "<!-- end of verified -->\n"


def row(said: dict, device: dict) -> str:
    """A line of the table: said is of "verified", device of "devices"."""
    habits, checks = said["habits"], said["checks"]
    result = said["build"] if said["passed"] else f"refused: {said['reason']}"
    read = " / ".join(habits.get(name, "?") for name in ("a*b+c", "fma()", "mad()"))
    driver = f"{device['platform']}, {said['driver']}"
    passed = f"{sum(check['ok'] for check in checks)} of {len(checks)}"
    cells = (said["name"], device["type"], driver, said["date"], result, passed, read, habits.get("denormals", "?"))
    return f"| {' | '.join(cells)} |\n"


def table() -> str:
    """Real cards first, then by name."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        report = json.loads(path.read_text())
        for said in report["verified"]:
            device = report["devices"][said["index"]]
            rows.append((device["type"] == "CPU", said["name"], row(said, device)))
    return HEAD + RULE + "".join(line for _, _, line in sorted(rows))


def updated(page: str) -> str:
    """The page with the table as the results have it."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
