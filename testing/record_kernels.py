"""Record what the reference answers to every kernel and operation case of tests/inputs.py: tests/golden/kernels.json.

    python testing/record_kernels.py

The cases' inputs come from tests/inputs.py, the outputs from the shipped library; no engine code takes part.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bankml.oracle import library, record  # noqa: E402
from tests import inputs  # noqa: E402


def main():
    reference = library.load()
    cases = {
        str(case): [inputs.input_digest(case), record.digest(inputs.expected(case))] for case in inputs.all_cases()
    }
    record.write(ROOT / "tests" / "golden" / "kernels.json", {"stamp": record.stamp(reference), "cases": cases})
    print(f"{len(cases)} cases recorded")


if __name__ == "__main__":
    main()
