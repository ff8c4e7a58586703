"""One stage in a process of its own, as the gate starts it: its count as JSON into a file, or on stdout.

    python -m testing.stages "attention tiled" [--quick] [--folder F] [--model PATH] [--result FILE]

Exit code 2 where something is not equal.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from testing.stages.stage import Given
from testing.stages.table import BY_NAME, USERS_BY_NAME


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m testing.stages", description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="STAGE")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    stages = USERS_BY_NAME if given.model else BY_NAME
    if given.name not in stages:
        parser.error(f"there is no stage {given.name!r}; python -m testing.gate --list tells them")
    with tempfile.TemporaryDirectory(prefix="bankml-stage-") as own:
        start = time.perf_counter()
        count = stages[given.name].run(Given(given.folder or Path(own), Path(own), given.quick, given.model))
    told = json.dumps(asdict(count) | {"seconds": round(time.perf_counter() - start, 1)})
    if given.result:
        given.result.write_text(told)
    else:
        print(told)
    return 0 if count.same else 2


if __name__ == "__main__":
    sys.exit(main())
