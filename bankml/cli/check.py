"""`bankml oracle check`: the engine beside the reference, stage by stage, in one report."""

import json
import os
import sys
import time
from contextlib import ExitStack, contextmanager

from bankml.cli import oracle
from bankml.errors import BankmlError, Refused, UsageError

EVERY_S = 5.0
CARD_SHARE = "0.5"  # of every product, so that a card takes part even where it would not help


def run(args) -> int:
    """Compare all that is asked for; 0 if every row is equal, 2 if one is not."""
    from bankml.cli.signals import tell_of_lost_data

    tell_of_lost_data(args.model)
    stages, notes = compare_model(args)
    if args.json:
        print(json.dumps({"stages": [stage.as_dict() for stage in stages], "notes": notes}))
    else:
        _report(stages, notes)
    return 0 if all(stage.same for stage in stages) else 2


def compare_model(args, expected=None):
    """(stages, notes) of a check. expected: the file the reference reads, where it is not the same (for tests)."""
    from bankml.forward import Weights, llama_threads
    from bankml.oracle import library
    from bankml.oracle.words import compare_lists

    library.load()  # a missing reference is told before anything is read
    # The reference runs on one thread, and its split-KV attention is matched at that, unless the environment says more.
    threads = llama_threads() if os.environ.get("BANKML_LLAMA_THREADS") else 1
    with ExitStack() as open_ones:
        plain = open_ones.enter_context(Weights.open(args.model, gpu=False))
        engines, notes = {"cpu": plain}, []
        _check_memory(args.model, plain)
        if not args.no_gpu:
            with _share():
                carded = open_ones.enter_context(Weights.open(args.model, gpu=args.gpu))
            notes += carded.card_notes
            if carded.split is not None:
                engines["cpu and " + ", ".join(carded.devices[1:])] = carded
            elif args.gpu:
                raise Refused(*(notes or [f"no card {args.gpu} is used"]))
        for weights in engines.values():
            weights.llama_threads = threads
        stages = []
        for kind in _kinds(args, plain, notes):
            stages += _over_cache(args, expected or args.model, engines, kind, threads, notes, first=not stages)
            if not stages[0].same:
                break  # other headers make other shapes: nothing more can be compared
        for name, weights in engines.items():
            if report := weights.card_report():
                # The CPU takes over from a card that errs, so that no bit shows it: being dropped is a difference.
                dropped = ((["at work"], [card["dropped"] or "at work"]) for card in report["cards"])
                stages.append(compare_lists(name, "cards", dropped))
                notes += [f"{card['name']} computed {card['rows']} rows of products" for card in report["cards"]]
    return stages, notes


def _kinds(args, weights, notes):
    """The caches to compare over."""
    if args.cache_type:
        return [args.cache_type]
    if weights.shape.head_dim % 32:
        notes.append(f"q8_0 cache: not compared; heads of {weights.shape.head_dim} values have none")
        return ["f16"]
    return ["f16", "q8_0"]


def _check_memory(path, weights):
    """Refuse what would make the machine swap: both sides map the file, and the pages in use must stay."""
    from bankml.gpu.limiter import free_memory

    need = sum(os.path.getsize(part) for part in weights.header.paths)
    free = free_memory()
    if need > free:
        raise UsageError(
            f"{path}: {need / 2**30:.1f} GiB of weights do not fit into the {free / 2**30:.1f} GiB of memory that are "
            "free; bankml and the reference read them in turn"
        )


@contextmanager
def _share():
    """Let cards take a fixed part of each product while a model is opened, unless the environment names one."""
    name = "BANKML_GPU_SHARE"
    if os.environ.get(name):
        yield
        return
    before, os.environ[name] = os.environ.get(name), CARD_SHARE
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _over_cache(args, expected, engines, kind, threads, notes, first):
    """The stages over one cache; the header's and the words' with the first."""
    from bankml.kv_cache import KvType
    from bankml.oracle.model import ReferenceModel
    from bankml.oracle.words import compare_lists

    shape = next(iter(engines.values())).shape
    tokens, forced = oracle.chosen_tokens(shape.n_vocab, args.tokens, args.decode)
    context = len(tokens) + max(len(forced), args.greedy)
    if context > shape.n_ctx_train:
        raise UsageError(f"{context} tokens do not fit the model's context of {shape.n_ctx_train}")
    try:
        opened = ReferenceModel(expected, n_ctx=context, n_threads=threads, cache=kind)
    except BankmlError as error:
        notes.append(str(error))
        return [compare_lists("file", "header", [(["it does not load"], ["it plays"])])]
    stages = []
    with opened as model:
        if first:
            stages += words_stages(model, engines["cpu"], notes)
            if not stages[0].same:
                return stages
        runs = {f"{name}, {kind} cache": weights for name, weights in engines.items()}
        want = _telling(oracle.reference_stages(model, tokens, forced), kind, len(tokens) + len(forced))
        got = {name: oracle.engine_stages(weights, tokens, forced, kind=KvType(kind)) for name, weights in runs.items()}
        rows = _compare_all(want, got)
        model.forget()
        chain = reference_greedy(model, tokens, args.greedy)
        for name, weights in runs.items():
            stages += rows[name]
            if args.greedy:
                stages.append(_greedy_stage(name, chain, engine_greedy(weights, tokens, args.greedy, KvType(kind))))
    return stages


def _compare_all(want, got):
    """Run name -> stages: every run of `got` beside one run of the reference, which is computed once."""
    from bankml.oracle.compare import Stage, add_rows

    stages = {name: {} for name in got}
    for stage_name, rows in want:
        for run_name, side in got.items():
            have_name, have = next(side)
            if have_name != stage_name:
                raise ValueError(f"the runs differ in their stages: {stage_name} against {have_name}")
            add_rows(stages[run_name].setdefault(stage_name, Stage(stage_name, run=run_name)), rows, have)
    return {name: list(found.values()) for name, found in stages.items()}


def words_stages(model, weights, notes):
    """The stages that need no weights: the header's numbers, token ids of a sample, the bytes of every token."""
    from bankml.oracle.words import ReferenceWords, compare_lists
    from bankml.tokenizer import Tokenizer

    reference, shape = ReferenceWords(model), weights.shape
    try:
        tokenizer = Tokenizer.from_gguf(weights.header)
    except Refused as error:
        tokenizer = None
        notes.append(f"words: not compared; {error}")
    have = {
        "layers": shape.n_layer,
        "embedding length": shape.n_embd,
        "heads": shape.n_head,
        "key and value heads": shape.n_head_kv,
        "trained context": shape.n_ctx_train,
        "vocabulary": shape.n_vocab,
    }
    if tokenizer:  # a file that names no such token leaves the library with GPT-2's, which nothing then uses
        named = {"begin token": ("bos_token_id", tokenizer.bos), "end token": ("eos_token_id", tokenizer.eos)}
        have |= {name: token for name, (key, token) in named.items() if f"tokenizer.ggml.{key}" in weights.header.kv}
        have["begin token is added"] = int(tokenizer.add_bos)
    want = reference.facts(tokenizer is not None)
    stages = [compare_lists("file", "header", (([name, want[name]], [name, have[name]]) for name in have))]
    if tokenizer:
        texts = reference.texts()
        stages.append(
            compare_lists("file", "token ids", ((reference.tokenize(text), tokenizer.encode(text)) for text in texts))
        )
        ids = range(min(reference.n_tokens, tokenizer.n_vocab))
        pieces = ((reference.piece(token), tokenizer.piece(token, special=True)) for token in ids)
        stages.append(compare_lists("file", "pieces", pieces))
        notes.append(
            "chat template: not compared here; the library has no Jinja (tests/test_chat.py has llama-server's)"
        )
    return stages


def reference_greedy(model, tokens, count):
    """The reference's likeliest token after `tokens`, again and again: `count` ids."""
    chain, last = [], tokens
    for _ in range(count):
        chain.append(int(model.decode(last, watch=()).logits[-1].argmax()))
        last = [chain[-1]]
    return chain


def engine_greedy(weights, tokens, count, kind):
    """The same as `bankml generate` draws them."""
    from bankml.params import Params
    from bankml.sampler import Sampler

    sampler = Sampler(Params(temperature=0.0))
    caches = weights.caches(kind, n_ctx=len(tokens) + count)
    chain, row = [], None
    for _ in range(count):
        row = weights.decode(caches, chain[-1]) if chain else weights.prefill(caches, tokens)
        chain.append(int(sampler.sample(weights.logits(row))))
        sampler.accept(chain[-1])
    return chain


def _greedy_stage(run_name, want, have):
    from bankml.oracle.words import compare_lists

    return compare_lists(run_name, "greedy tokens", (([a], [b]) for a, b in zip(want, have, strict=True)))


def _telling(stages, kind, context):
    """Pass `stages` on, saying on stderr how far the comparison is: in place on a terminal, else every few seconds."""
    done, spoke, shown = 0, time.monotonic(), sys.stderr.isatty()
    try:
        for name, rows in stages:
            if shown or time.monotonic() - spoke > EVERY_S:
                spoke, text = time.monotonic(), f"{kind} cache, {name}: {done} of {context} tokens compared"
                print(f"\r{text}\x1b[K" if shown else text, end="" if shown else "\n", file=sys.stderr, flush=True)
            yield name, rows
            done += len(rows) if name == "logits" else 0
    finally:  # after Ctrl-C too
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report(stages, notes):
    for run_name, name, equal, total in _lines(stages):
        print(f"{run_name}: {name}: {equal} of {total} equal")
    for note in notes:
        print(f"note: {note}")
    differing = [stage for stage in stages if not stage.same]
    if not differing:
        print("everything compared has the reference's bits")
    for stage in {stage.run: stage for stage in reversed(differing)}.values():
        at = stage.first_difference
        print(
            f"first difference ({stage.run}): {stage.name}, row {at.row}, column {at.column}: "
            f"{at.got}, where the reference has {at.expected}"
        )


def _lines(stages):
    """(run, name, equal, total) for each line: the layers of a run that are equal are one line."""
    lines = {}
    for stage in stages:
        name = "layers" if stage.same and stage.name.startswith("l_out-") else stage.name
        equal, total = lines.get((stage.run, name), (0, 0))
        lines[stage.run, name] = equal + stage.equal, total + stage.total
    return [(*key, *counts) for key, counts in lines.items()]
