"""Record what the reference computes over q8_0 caches (tests/cache_runs.py): tests/golden/cache_q8_0.json.

    python -m testing.record_cache

A digest per stage of a run: each layer's rows, result_norm, the logits. No engine code takes part.
"""

import tempfile
from pathlib import Path

from bankml.oracle import library, record
from bankml.oracle.model import ReferenceModel
from tests import models
from tests.cache_runs import MODELS, RUNS
from tests.models import joined

ROOT = Path(__file__).resolve().parent.parent


def main():
    reference = library.load()
    recording = {"stamp": record.stamp(reference)}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            path = models.build(name, folder)
            with ReferenceModel(path, n_ctx=models.CONTEXT, cache="q8_0") as model:
                runs = {str(run): joined(models.reference_stages(model, name, run)) for run in RUNS}
            digests = {run: {stage: record.digest(rows) for stage, rows in got.items()} for run, got in runs.items()}
            recording[name] = {"model": models.sha256(path), **digests}
            print(name)
    record.write(ROOT / "tests" / "golden" / "cache_q8_0.json", recording)


if __name__ == "__main__":
    main()
