"""Records what the reference's llama_model_quantize (pure, allow_requantize) writes: tests/golden/convert_files.json.

Run `python -m testing.record_convert`; it needs the reference library and SmolLM2's model. No engine code is used.
"""

import ctypes
import hashlib
import tempfile
from pathlib import Path

from bankml.oracle import library, record
from tests.conversion_models import CASES, TARGETS, case, split_case
from tests.vocab import smollm2_gguf

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "convert_files.json"


def reference_convert(source, target, kind) -> bool:
    """Let the reference convert; False if it would not."""
    api = library.load().api
    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.pure, params.allow_requantize = TARGETS[kind], 1, True, True
    return api.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params)) == 0


def sha256(path):
    """SHA-256 of a file, in hex; None if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def outcomes(source, folder):
    """The hashes of a model file and of what each target makes of it; None where the reference refuses."""
    made = {}
    for kind in TARGETS:
        target = folder / f"out-{kind}.gguf"
        made[kind] = sha256(target) if reference_convert(source, target, kind) else None
        target.unlink(missing_ok=True)
    return {"input": sha256(source), **made}


def main():
    """Write the recording."""
    cases = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in.gguf"
        for each in CASES:
            source.write_bytes(case(each))
            cases[each] = outcomes(source, folder)
        parts = [folder / f"in-{i:05}-of-00002.gguf" for i in (1, 2)]
        for part, raw in zip(parts, split_case(), strict=True):
            part.write_bytes(raw)
        cases["split"] = outcomes(parts[0], folder)
        cases["smollm2"] = outcomes(smollm2_gguf(), folder)
    record.write(GOLDEN, {"stamp": record.stamp(library.load()), "cases": cases})


if __name__ == "__main__":
    main()
