"""Record what the reference answers to every kernel and operation case of tests/inputs.py: tests/golden/kernels.json.

    python -m testing.record_kernels

The cases' inputs come from tests/inputs.py, the outputs from the shipped library; no engine code takes part.
"""

from pathlib import Path

from bankml.oracle import library, record
from tests import inputs

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "kernels.json"


def main():
    reference = library.load()
    cases = {
        str(case): [inputs.input_digest(case), record.digest(inputs.expected(case))] for case in inputs.all_cases()
    }
    record.write(GOLDEN, {"stamp": record.stamp(reference), "cases": cases})
    print(f"{len(cases)} cases recorded")


if __name__ == "__main__":
    main()
