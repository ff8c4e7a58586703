"""What is run over q8_0 caches: models of tests/models.py with heads of 64 and 128 values, in three weight types."""

from tests.models import Run

MODELS = (
    "qwen3-q1_0-untied",  # heads of 128 values, four to a KV head
    "qwen3-q2_0-untied",  # 128, one
    "qwen3-f16-untied",  # 128, two
    "llama-q1_0-untied",  # 64, two
    "llama-q2_0-tied",  # 64, three
    "llama-f16-tied",  # 64, three
)
RUNS = (
    *(Run(count) for count in (1, 2, 65, 512)),
    *(Run(count, "all") for count in (1, 20, 64, 513)),
    Run(240, forced=30),
    Run(495, forced=30),
    Run(1100, "none", 2, 2),  # one row over 1,280 padded cells: an f16 cache would be split over two threads
)
