"""The speed table of docs/performance.md: both engines on every model, in one run, bits compared.

    python testing/bench.py [--json] [--only bonsai-1.7b:q1_0,...] [--longest 512] [--rounds 3]

Bonsai-shaped models are made on the spot with random weights; SmolLM2 is the real one, converted. F16 is timed against
the reference's AVX-512 build as well, where the CPU has it: its F16 bits are others than the haswell build's by design.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bankml import benchmark, models, shapes
from bankml.convert import convert
from bankml.cpu.level import cpu_flags
from bankml.errors import BankmlError

# name -> (prompt lengths, cells before decoding); the reference's Q2_0 prompts are slow, and their rate is flat
LONG, SHORT, CELLS = (32, 128, 512, 2048), (32, 128), (32, 512, 2048)
MODELS = {
    "bonsai-1.7b:q1_0": (LONG, CELLS),
    "bonsai-8b:q1_0": (LONG, CELLS),
    "bonsai-1.7b:q2_0": (SHORT, CELLS),
    "smollm2:f16": (LONG, CELLS),
    "smollm2:q2_0": (SHORT, CELLS),
}
AVX512, AVX512_WORK = (
    "zen4",
    {("prompt", 512), ("decode", 32)},
)  # the build for AVX-512 with BF16, and what is timed against it


def model(name: str, folder: Path) -> Path:
    """The file of a row of the table, made if need be."""
    base, kind = name.split(":")
    if base != "smollm2":
        path = folder / f"{base}-{kind}.gguf"
        shapes.write_model(path, *shapes.parse(name)[1:])
        return path
    path = models.default_model()
    if kind == "f16":
        return path
    target = folder / f"{base}-{kind}.gguf"
    convert(path, target, kind.upper())
    return target


def measured(name, path, prompts, cells, args) -> list[benchmark.Row]:
    """The rows of one model."""
    rows = []
    with benchmark.Bench(
        name, path, threads=args.threads, rounds=args.rounds, variant=args.variant, n_ctx=2304
    ) as bench:
        for n in sorted({*prompts, *cells}):
            if n > args.longest:
                continue
            if n in prompts:
                benchmark.say(f"{name}: prompt of {n}")
                rows.append(bench.prompt(n))
            if n in cells:
                benchmark.say(f"{name}: decode after {n}")
                rows.append(bench.decode(n, tried=(2, 1) if n == 32 else (2,)))
    return rows


def beside_avx512(name, args) -> list[benchmark.Row]:
    """Rows against the reference's AVX-512 build, in a process of its own: a library is loaded for good."""
    command = [sys.executable, __file__, "--json", "--only", name, "--variant", AVX512, "--longest", "512"]
    command += ["--threads", str(args.threads), "--rounds", str(args.rounds)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    rows = [benchmark.Row(**row) for row in json.loads(done.stdout)["rows"]]
    kept = [row for row in rows if (row.work, row.n) in AVX512_WORK]
    return [replace(row, model=f"{name} / {AVX512}", bits_equal=None) for row in kept]


def main() -> int:
    """Print the table (or JSON); exit 2 if any logits differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", default="haswell")
    parser.add_argument("--longest", type=int, default=2048, help="leave out what is longer")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bankml-bench-") as folder:
        for name in args.only.split(","):
            prompts, cells = MODELS[name]
            benchmark.say(f"{name}: making the model")
            path = model(name, Path(folder))
            rows += measured(name, path, prompts, cells, args)
            if name == "smollm2:f16" and args.variant == "haswell" and "avx512_bf16" in cpu_flags():
                rows += beside_avx512(name, args)
            if path.parent == Path(folder):
                path.unlink()
    print(json.dumps(benchmark.as_json(rows)) if args.json else benchmark.table(rows))
    return 2 if any(row.bits_equal is False for row in rows) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the temporary folder goes, too
    try:
        sys.exit(main())
    except BankmlError as error:
        sys.exit(f"bench: {error}")
