"""The stages against llama-server b11192: its tokens, answers and conversations, on real and on random models."""

from testing import record_conversations
from testing.reference_server import Server
from testing.stages import engine, expected
from testing.stages.stage import Count, Given, Stage, answer, items, total
from tests import continuations, conversations

GREEDY, SEEDED = {"temperature": 0.0}, {"temperature": 0.8, "seed": 42}
N_CTX = 2048  # of the continuations
LIVE_CTX = 4096


def _asked(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


QUESTIONS = (
    "What is the capital of France?",
    "Explain in one sentence why the sky is blue.",
    "Write a haiku about winter.",
    "List three prime numbers.",
)
SHORT = [*map(_asked, QUESTIONS), "Once upon a time", "def fibonacci(n):\n"]
ENDINGS = ("Then he", "At the end of it", "12, 13, 14,", "\n\n* one\n* two\n*", 'She said: "', "The question is")
LONG = [continuations.LONG + ending for ending in ENDINGS]  # more than 256 cells, so that decoding is split


def _models(given: Given):
    """(name, path) of the models that continue: the user's own, or the four of tests/continuations.py."""
    if given.model:
        yield given.model.name, given.model
        return
    for name in continuations.MODELS[::3] if given.quick else continuations.MODELS:
        yield name, expected.model_file(name, given.folder)


def _continued(given: Given, asks) -> Count:
    """Both sides asked to continue each (text, count, settings)."""
    counts = Count()
    for name, path in _models(given):
        wanted = list(asks(name))
        want = expected.continued(path, wanted, n_ctx=N_CTX)
        with engine.Continuing(path, llama_threads=expected.SERVER_THREADS, n_ctx=N_CTX) as model:
            for ask, answered in zip(wanted, want, strict=True):
                counts += answer(f"{name}, {ask[0][:40]!r}, {ask[2]}", answered, model.drawn(*ask))
    return counts


def greedy_short(given: Given) -> Count:
    """Six prompts, 28 tokens each."""
    return _continued(given, lambda name: [(text, 28, GREEDY) for text in SHORT])


def greedy_long(given: Given) -> Count:
    """Six prompts of more than 300 tokens."""
    return _continued(given, lambda name: [(text, 24, GREEDY) for text in LONG])


def greedy_deep(given: Given) -> Count:
    """600 tokens without an end."""
    count = 100 if given.quick else 600
    return _continued(given, lambda name: [(SHORT[0], count, GREEDY | {"ignore_eos": True})])


def seeded(given: Given) -> Count:
    """40 settings of the chain for each model; the chain's other samplers on one of them."""

    def asks(name):
        grid = list(continuations.grid())
        for prompt, settings in grid[::4] if given.quick else grid:
            yield continuations.PROMPTS[prompt], continuations.N_TOKENS, settings
        if name == continuations.VARIANT_MODEL and not given.quick:
            for settings in continuations.VARIANTS.values():
                for prompt in continuations.VARIANT_PROMPTS:
                    text = continuations.PROMPTS[prompt]
                    yield text, continuations.N_VARIANT_TOKENS, continuations.DEFAULTS | settings

    return _continued(given, asks)


PASSAGE = (
    "The ferry leaves the old harbour at six, passes the lighthouse at seven, and reaches the far island by noon; in "
    "winter it waits for the mail, and in summer for the people who bring their bicycles. "
)
LIVE = (  # the users' messages, the most tokens of each answer, the sampling
    (["What is the capital of France?"], 32, GREEDY),
    (["Tell me a story about a fox."], 48, SEEDED),
    ([PASSAGE * 60 + "When does the ferry reach the island?"], 40, GREEDY),
    (["Tell me a very long story about a bank."], 320, GREEDY | {"ignore_eos": True}),
    (["Name a colour.", "And another one?"], 32, SEEDED),
)


def _held(ask) -> list:
    """Every turn of LIVE, as ask(messages, most, sampling) answers it; see `expected.chatting`."""
    turns = []
    for says, most, sampling in LIVE:
        messages = []
        for text in says:
            messages.append({"role": "user", "content": text})
            turns.append(ask(messages, most, sampling))
            messages.append({"role": "assistant", "content": turns[-1][0]})
    return turns


def q8_0_live(given: Given) -> Count:
    """Six answers over q8_0 caches: greedy, seeded, a long prompt, a long answer, two turns."""
    if given.model:
        named = [(given.model.name, given.model)]
    else:
        names = ("smollm2-f16",) if given.quick else ("smollm2-f16", "smollm2-q2_0")
        named = [(name, expected.model_file(name, given.folder)) for name in names]
    counts = Count()
    for name, path in named:
        with expected.chatting(path, LIVE_CTX, "q8_0") as ask:
            want = _held(ask)
        with engine.chatting(path, LIVE_CTX, "q8_0", expected.SERVER_THREADS) as ask:
            got = _held(ask)
        counts += items(name, want, got).told(tokens=sum(turn[3] for turn in want))
        counts = counts.told(**{f"longest prompt of {name}": max(turn[2] for turn in want)})
    return counts


def held_conversations(given: Given) -> Count:
    """Conversations alone and interleaved in one slot, with prompt caches of several sizes, to the context's end."""
    counts, paths = Count(), {"smollm2": expected.model_file("smollm2-f16", given.folder)}
    paths["tiny"] = conversations.write_tiny(given.own / "tiny.gguf")
    settings = [setting for setting in conversations.SETTINGS if setting.model == "tiny" or not given.quick]
    for setting in settings[::2] if given.quick else settings:
        flags = record_conversations.flags(setting)
        with Server(paths[setting.model], *flags) as server:
            want = record_conversations.held(server, setting)
        got = engine.conversations(paths[setting.model], setting, expected.SERVER_THREADS)
        counts += total(items(f"{setting}, talk {i}", *sides) for i, sides in enumerate(zip(want, got, strict=True)))
        tokens_of = sum(turn.get("completion_tokens", 0) for talk in want for turn in talk)
        counts = counts.told(tokens=counts.facts.get("tokens", 0) + tokens_of)
    return counts


SERVER = "llama-server, two threads"
CONTINUED = (
    Stage("greedy short", f"{SERVER}: 6 prompts on each model", "tokens", greedy_short, 20, 164, True, server=True),
    Stage("greedy long", f"{SERVER}: 6 prompts over 300 tokens", "tokens", greedy_long, 90, 140, True, server=True),
    Stage("greedy deep", f"{SERVER}: 600 tokens of each model", "tokens", greedy_deep, 60, 600, True, server=True),
    Stage("seeded", f"{SERVER}: 40 settings on each model; variants", "tokens", seeded, 180, 1175, True, server=True),
    Stage("q8_0 live", f"{SERVER}, q8_0 caches: 6 answers a model", "answers", q8_0_live, 150, 6, True, server=True),
)
STAGES = (
    *CONTINUED,
    Stage(
        "conversations",
        f"{SERVER}: text, counts and reuse, turn by turn",
        "turns",
        held_conversations,
        60,
        100,
        alone=True,
        server=True,
    ),
)
USERS = CONTINUED
