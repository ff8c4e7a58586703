"""Record the tokens the reference's sampler chain draws for tests/sampler_cases.py: tests/golden/sampler.json.

    python testing/record_sampler.py

No engine code takes part.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bankml.oracle import library, record  # noqa: E402
from bankml.oracle.sampler import ReferenceSampler  # noqa: E402
from tests import sampler_cases  # noqa: E402


def drawn(reference) -> dict:
    """Case name -> [digest of the logits, tokens drawn]."""
    tokens = {}
    for name, settings, logits in sampler_cases.cases():
        rows = list(sampler_cases.rows(logits))
        with ReferenceSampler(reference, **settings) as sampler:
            tokens[name] = [record.digest(*rows), [sampler.sample(row) for row in rows]]
    return tokens


def main():
    reference = library.load()
    recording = {"stamp": record.stamp(reference), "cases": drawn(reference)}
    record.write(ROOT / "tests" / "golden" / "sampler.json", recording)
    print(f"{len(recording['cases'])} cases recorded")


if __name__ == "__main__":
    main()
