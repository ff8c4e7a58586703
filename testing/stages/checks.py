"""The stages that check the oracles themselves, the fuzzers and the soak: commands of testing/ in processes."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from testing import mutation_table, mutations
from testing.stages.stage import Count, Given, Stage

FUZZ_S = 180  # seconds of each fuzzer
FUZZERS = sorted(path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.parent.glob("fuzz_*.py"))
SOAK = {False: ("--requests", "3000", "--minutes", "10"), True: ("--requests", "300", "--minutes", "1")}


def command(*words) -> str:
    """What a command of this Python prints; 1 and 2 are the exit codes of those that found something."""
    done = subprocess.run([sys.executable, *words], check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}")
    return done.stdout


def independence(given: Given) -> Count:
    """The tests that no module of an expected side imports engine code."""
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_imports.py", "-k", "oracle or expected")
    said = command(*words)
    passed = int(re.search(r"(\d+) passed", said)[1])
    return Count(passed, passed)


def caught_mutations(given: Given) -> Count:
    """Each mutation in a copy of the package; the stage of the gate that it names must find it, and pass untouched."""
    chosen = [mutation for mutation in mutation_table.MUTATIONS if mutation.quick or not given.quick]
    counts = Count()
    with tempfile.TemporaryDirectory() as folder:
        copy, untouched = mutations.Copy(folder), {}
        for mutation in chosen:
            stage = mutation_table.GATE[mutation.stage]
            if stage not in untouched:
                untouched[stage] = copy.run_gate(stage, given.folder)
            found = copy.run_gate(stage, given.folder, mutation)
            caught = (untouched[stage], found) == ("equal", "unequal")
            print(f"{mutation.name}: {stage} is {untouched[stage]} untouched, {found} with it", flush=True)
            counts += Count(int(caught), 1, "" if caught else f"{mutation.name}: {stage} is {found}")
    return counts


def fuzzed(name):
    """The stage of one fuzzer."""

    def run(given: Given) -> Count:
        said = command("-m", f"testing.fuzz_{name}", "--seconds", str(10 if given.quick else FUZZ_S), "--seed", "1")
        inputs, faults = map(int, re.findall(r"(\d+) inputs, (\d+) faults", said)[-1])
        return Count(inputs - faults, inputs, said.strip() if faults else "")

    return run


def soaked(given: Given) -> Count:
    """A server under load and abuse: every answer is the engine's, and memory, threads and files are given back."""
    said = command("-m", "testing.soak", *SOAK[given.quick])
    requests, faults = int(re.search(r"(\d+) requests in", said)[1]), re.findall(r"^FAULT (.*)", said, re.M)
    return Count(requests - len(faults), requests, "; ".join(faults)[:500]).told(seen=said.strip().splitlines()[0])


STAGES = (
    Stage("independence", "no expected side imports engine code", "modules", independence, 10),
    Stage("mutations", "one thing turned in a copy; its stage finds it", "mutations", caught_mutations, 400, 33),
    *(Stage(f"fuzz: {name}", "seeded inputs, no fault", "inputs", fuzzed(name), FUZZ_S + 10, 100) for name in FUZZERS),
    Stage("soak", "a server under load and abuse, each answer the engine's", "answers", soaked, 240, alone=True),
)
