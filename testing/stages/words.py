"""The stages of words: token ids, prompts by chat templates, and draws of the sampler, live on the reference."""

import itertools

import numpy as np

from bankml.chat import Template
from bankml.gguf import read_header
from bankml.oracle import library
from bankml.oracle.sampler import ReferenceSampler
from bankml.oracle.sampler import ReferenceVocab as SamplersVocab
from bankml.params import Params
from bankml.sampler import Sampler
from bankml.tokenizer import Tokenizer, _kinds
from testing import record_chat, record_tokens
from testing.reference_vocab import ReferenceVocab
from testing.stages.stage import Count, Given, Stage, items, total
from tests import sampler_cases, vocab
from tests.test_chat import prompt_of

KINDS = {"z": "L", "0": "N", "\t": "Z", "!": "O"}  # of our table -> of the recorder


def tokenizer(given: Given) -> Count:
    """2,000 texts with each vocabulary, every token's piece; small vocabularies; the kind of every code point."""
    if given.model:
        return _vocabulary(given.model.name, given.model, record_tokens.SPECIALS["qwen3"], 2, given)
    counts = _vocabulary("smollm2", vocab.smollm2_gguf(), record_tokens.SPECIALS["smollm2"], 1, given)
    counts += _vocabulary("qwen3", vocab.qwen3_gguf(), record_tokens.SPECIALS["qwen3"], 2, given)
    counts += total(_variant(name, want, given) for name, want in record_tokens.variants().items())
    return counts if given.quick else counts + _code_points()


def _vocabulary(name, path, specials, seed, given) -> Count:
    ours, theirs = Tokenizer.from_gguf(path), ReferenceVocab(path)
    counts = Count()
    for parse in (True, False):
        texts = record_tokens.texts_for(seed, specials)
        want = [theirs.tokenize(text, parse) for text in texts]
        counts += items(f"{name}, ids, parse_special={parse}", want, [ours.encode(text, parse) for text in texts])
        want = [theirs.piece(i, parse) for i in range(theirs.n_tokens)]
        counts += items(f"{name}, pieces, special={parse}", want, [ours.piece(i, parse) for i in range(ours.n_vocab)])
    want = [*(theirs.ends()[name] for name in ("bos", "eos", "add_bos")), theirs.eog()]
    bos, eos = (-1 if token is None else token for token in (ours.bos, ours.eos))
    return counts + items(f"{name}, ends", want, [bos, eos, ours.add_bos, sorted(ours.eog)])


def _variant(name, want, given) -> Count:
    ours = Tokenizer.from_gguf(vocab.write_gguf(given.own / "variant.gguf", want["kv"]))
    counts = items(f"{name}: ends", [want["eog"]], [sorted(ours.eog)])
    for special, pieces in zip((True, False), want["pieces"], strict=True):
        counts += items(f"{name}: pieces", pieces, [ours.piece(i, special).hex() for i in range(ours.n_vocab)])
    ways = list(itertools.product((True, False), (False, True)))
    for text, *ids in want["cases"]:
        counts += items(f"{name}: {text!r}", ids, [ours.encode(text, parse, add) for parse, add in ways])
    return counts


def _code_points() -> Count:
    """Letters, numbers and white space from U+0080 on, as the library splits at them."""
    runs, table = record_tokens.kind_runs(), _kinds()
    want = [kind for (start, kind), (end, _) in itertools.pairwise([*runs, [0x110000, ""]]) for _ in range(start, end)]
    return items("code points", want[0x80:], [KINDS[table[point]] for point in range(0x80, 0x110000)])


def chat_template(given: Given) -> Count:
    """300 conversations with each of three templates, 40 with templates of other kinds, one expression each."""
    requests = record_chat.all_requests()
    if given.model:
        template = Template.of(read_header(given.model))
        want = record_chat.replies(None, requests, given.model)
        return items(given.model.name, want, [prompt_of(template, request) for request in requests])
    counts, files = Count(), {"smollm2": vocab.smollm2_gguf, "qwen3": vocab.qwen3_gguf}
    for name, text in record_chat.own_templates().items():
        template = Template.of(read_header(files[name]()) if name in files else None)
        want = record_chat.replies(text, requests)
        counts += items(name, want, [prompt_of(template, request) for request in requests])
    others = {name: (text, record_chat.some_requests()) for name, text in record_chat.OTHER.items()}
    if not given.quick:
        others |= {text: (record_chat.alone(text), requests[:1]) for text in record_chat.EXPRESSIONS}
    for name, (text, some) in others.items():
        want = record_chat.replies(text, some)
        if want != [None]:  # an expression that the server's engine does not know
            template = Template(text, bos="<|im_start|>", eos="<|im_end|>")
            counts += items(name, want, [prompt_of(template, request) for request in some])
    return counts


def sampler(given: Given) -> Count:
    """Settings of the chain over nine kinds of logits, ties among them; the other samplers over what came before."""
    counts = Count()
    for name, settings, logits in sampler_cases.cases():
        draws = list(sampler_cases.rows(logits, 3 if given.quick else sampler_cases.DRAWS))
        with ReferenceSampler(library.load(), **settings) as chain:
            want = [chain.sample(row) for row in draws]
        ours = Sampler(Params(**settings))
        counts += items(name, want, [ours.sample(row) for row in draws])
    return counts + _variants(20 if given.quick else 40)


def _variants(draws) -> Count:
    path, counts = vocab.smollm2_gguf(), Count()
    tokenizer = Tokenizer.from_gguf(path)
    with SamplersVocab(library.load(), path) as reference_vocab:
        for (name, change), seed in itertools.product(sampler_cases.VARIANTS.items(), (1, 2)):
            settings = {**sampler_cases.DEFAULTS, **change}
            rows = list(sampler_cases.chatter(tokenizer.n_vocab, draws, seed, steps=4 * (seed - 1)))
            prompt, ours, got = [int(np.argmax(row)) for row in rows[:20]], Sampler(Params(**settings), tokenizer), []
            ours.begin(prompt)
            known = {"n_vocab": tokenizer.n_vocab, "vocab": reference_vocab}
            with ReferenceSampler(library.load(), **known, **settings) as chain:
                chain.accept(prompt)
                want = [chain.sample(row) for row in rows]
            for row, token in zip(rows, want, strict=True):
                got.append(ours.sample(row))
                ours.accept(token)
            counts += items(f"{name}, seed {seed}", want, got)
    return counts


TOKENIZER = Stage(
    "tokenizer",
    "shipped library: ids of 2,000 texts a vocabulary, pieces, code points",
    "texts and tokens",
    tokenizer,
    40,
    4000,
)
TEMPLATE = Stage(
    "chat template", "llama-server: /apply-template, three templates and others", "prompts", chat_template, 70, 900,
    server=True,
)  # fmt: skip
STAGES = (
    TOKENIZER,
    TEMPLATE,
    Stage("sampler", "shipped library: tokens of its chain of samplers", "draws", sampler, 10, 1000),
)
USERS = (TOKENIZER, TEMPLATE)
