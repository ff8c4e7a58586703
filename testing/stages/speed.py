"""The stages of speed, with the machine for themselves: both engines in turns, noise, and what serving costs.

Only the logits of the bench and the promise of testing/noise.py decide; other figures are told in the record.
"""

import json
import re

from bankml import shapes
from testing.stages import expected
from testing.stages.checks import command
from testing.stages.stage import Count, Given, Stage

NOISY_MODEL = "bonsai-1.7b:q1_0"
TRIES = 3  # of what other programs on the machine may spoil


def bench(given: Given) -> Count:
    """Every row of the table; those count whose logits are compared, which are others by design in an AVX-512 build."""
    rows = json.loads(command("testing/bench.py", "--json"))["rows"]
    equal = [row["bits_equal"] for row in rows if row["bits_equal"] is not None]
    first = next((f"{row['model']}, {row['work']} {row['n']}" for row in rows if row["bits_equal"] is False), "")
    return Count(sum(equal), len(equal), first).told(speed=rows)


def noise(given: Given) -> Count:
    """Decoding beside busy loops: with no thread count is it 1.3 times slower than with the best one."""
    path = given.own / "noise.gguf"
    shapes.write_model(path, *shapes.parse(NOISY_MODEL)[1:])
    best = Count()
    for _ in range(TRIES):
        said = command("testing/noise.py", str(path))
        ratios = {loops: float(ratio) for loops, ratio in re.findall(r"^ +(\d+)  .* (\d+\.\d+)$", said, re.M)}
        kept = sum(ratio <= 1.3 for ratio in ratios.values())
        told = {f"best thread count over worst beside {loops} loops": ratio for loops, ratio in ratios.items()}
        best = max(best, Count(kept, len(ratios), said[-300:], told), key=lambda count: count.equal)
        if best.same:
            break
    return best


def serving(given: Given) -> Count:
    """Decode speed and time to the first byte of a streamed answer, beside the engine's own."""
    said = command("testing/serve_cost.py", str(expected.model_file("smollm2-f16", given.folder)))
    figures = re.findall(r"^(\w+) +costs (.*?) of the decode speed$", said, re.M)
    figures += [("first byte", re.search(r"^first byte (.*)$", said, re.M)[1])]
    return Count(len(figures), len(figures)).told(**{f"cost, {name}": value for name, value in figures})


STAGES = (
    Stage("noise", "busy loops beside it: any thread count within 1.3 of the best", "loads", noise, 90, 3, True, False),
    Stage("serving", "a streamed answer beside the engine's own speed", "figures", serving, 90, 3, True, False),
    Stage("bench", "shipped library: logits of every timed run", "rows", bench, 1260, 25, True, False),
)
