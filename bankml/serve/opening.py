"""Opening the models that requests name."""

from bankml.engine import Engine
from bankml.forward import Outputs
from bankml.sampler import Sampler


def opener(**options):
    """path -> an engine, opened with these options and ready to answer at once."""

    def open_engine(path) -> Engine:
        engine = Engine.open(path, **options)
        warm(engine)
        return engine

    return open_engine


def warm(engine: Engine):
    """Compile, or load, all that the first answer needs, and read the weights once."""
    weights = engine.weights
    caches = weights.caches(engine.slot.caches[0].kind, n_ctx=256)
    rows = weights.prefill_with(caches, [0, 0], Outputs.LAST)
    sampler = Sampler(engine.params, engine.tokenizer)
    sampler.sample(weights.logits(rows[-1]))
    sampler.sample(weights.logits(weights.decode(caches, 0)))
