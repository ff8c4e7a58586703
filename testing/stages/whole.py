"""The stages of whole models: every layer's rows, result_norm and logits of every run, by architecture and type."""

import numpy as np

from bankml.oracle import record
from testing.stages import engine, expected
from testing.stages.stage import Count, Given, Stage, stages
from tests import cache_runs, models

SEEDS_PROMPT = models.Run(28, "all")  # what the seed compares: rows of all layers, result_norm and logits
TIED = "qwen3-q1_0-large-vocab"
_USERS_RUNS = (SEEDS_PROMPT, models.Run(65, forced=4), models.Run(257, "none", 3, threads=2))


def compared(path, name, runs, *, kind="f16", n_ctx=models.CONTEXT, tokens=None) -> Count:
    """Both sides over `runs`; tokens(run): a run's prompt and forced tokens (those of the test model `name`)."""
    counts, digests = Count(), []
    with expected.reference_model(path, n_ctx=n_ctx, kind=kind) as model, engine.opened(path) as weights:
        for run in runs:
            asked = tokens(run) if tokens else run.tokens(name)
            want = models.joined(expected.run_stages(model, *asked, run))
            got = models.joined(engine.run_stages(weights, *asked, run, kind, n_ctx))
            counts += stages(f"{name}, {run}", want.items(), ((stage, got[stage]) for stage in want))
            digests.append(record.digest(want["logits"]))
    return counts.told(**{f"logits of {name}": record.digest(np.array(digests))})


def _shortened(runs, given: Given):
    return [run for run in runs if run.prompt <= 65] if given.quick else runs


def of_type(arch, kind):
    """The stage of an architecture and a type: its untied and its tied model."""

    def run(given: Given) -> Count:
        counts = Count()
        for name in (f"{arch}-{kind}-untied", f"{arch}-{kind}-tied"):
            runs = (SEEDS_PROMPT, *_shortened(models.runs(name), given))
            counts += compared(expected.model_file(name, given.folder), name, runs)
        return counts

    return run


def of_model(name, *more):
    """The stage of one model, with more runs than the tests'."""

    def run(given: Given) -> Count:
        runs = (SEEDS_PROMPT, *_shortened((*models.runs(name), *more), given))
        return compared(expected.model_file(name, given.folder), name, runs)

    return run


def over_q8_0(given: Given) -> Count:
    """The small models of three types over q8_0 caches, then SmolLM2."""
    counts = Count()
    for name in cache_runs.MODELS:
        slow = "q2_0" in name  # the reference takes seconds for long prompts of this type
        runs = [run for run in _shortened(cache_runs.RUNS, given) if not (slow and run.prompt > 600)]
        counts += compared(expected.model_file(name, given.folder), name, runs, kind="q8_0")
    real = "smollm2-f16"
    runs = (models.Run(2, "all"), models.Run(20, forced=4))
    return counts + compared(expected.model_file(real, given.folder), real, runs, kind="q8_0")


def of_users_model(given: Given) -> Count:
    """A user's own file: a prompt with every row out, tiled attention, then single tokens, split over two threads."""
    with engine.opened(given.model) as weights:
        n_vocab = weights.shape.n_vocab
    runs = _USERS_RUNS[:2] if given.quick else _USERS_RUNS

    def tokens(run):
        ids = models.prompt("a user's file", run.prompt + run.forced, n_vocab)
        return ids[: run.prompt], ids[run.prompt :]

    name = given.model.name
    counts = compared(given.model, name, runs, n_ctx=512, tokens=tokens)
    return counts + compared(given.model, name, runs[:1], kind="q8_0", n_ctx=512, tokens=tokens).told(**counts.facts)


ORACLE = "shipped library: layers, result_norm, logits of"
STAGES = (
    *(
        Stage(
            f"whole model: {arch} {kind}", f"{ORACLE} an untied and a tied model", "rows", of_type(arch, kind), 30, 1064
        )
        for arch in ("qwen3", "llama")
        for kind in ("q1_0", "q2_0", "f16")
    ),
    Stage(
        "tied embeddings",
        f"{ORACLE} a tied model of 151,669 tokens",
        "rows",
        of_model(TIED, models.Run(128, "all")),
        10,
        840,
    ),
    Stage("whole model: smollm2 f16", f"{ORACLE} SmolLM2-135M-Instruct", "rows", of_model("smollm2-f16"), 20, 800),
    Stage("whole model: smollm2 q2_0", f"{ORACLE} SmolLM2-135M-Instruct", "rows", of_model("smollm2-q2_0"), 30, 800),
    Stage("whole models over q8_0", f"{ORACLE} seven models with q8_0 caches", "rows", over_q8_0, 60, 1064),
)
USERS = (Stage("whole model", f"{ORACLE} the file", "rows", of_users_model, 300, alone=True),)
