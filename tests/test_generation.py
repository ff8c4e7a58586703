"""The generation loop with stand-ins for the model: whole characters, stop strings, limits, interruption."""

import random

import numpy as np
import pytest

from bankml.generation import Generation, TextStream
from bankml.sampler import Params, Sampler

END = 256


class Bytes:
    """A tokenizer of one token per byte; 256 ends the answer."""

    eog = frozenset([END])

    def decode(self, ids):
        return bytes(ids)


class Scripted:
    """Weights whose logits spell a given answer, whatever the prompt; `calls` tells what was run."""

    def __init__(self, answer: bytes, end=True):
        self.answer, self.calls = [*answer, *([END] if end else [])], []

    def prefill(self, caches, tokens, each=None, n_ubatch=512):
        self.calls.append(("prefill", list(tokens), n_ubatch))
        self.caches, self.start = caches, len(caches[0]) + len(tokens)
        caches[0].extend(tokens)
        return np.zeros(1, np.float32)

    def decode(self, caches, token):
        self.calls.append(("decode", token))
        caches[0].append(token)
        return np.zeros(1, np.float32)

    def logits(self, result_norm):
        row = np.zeros(257, np.float32)
        row[self.answer[len(self.caches[0]) - self.start]] = 1
        return row


def generation(answer, *, end=True, prompt=(1, 2, 3), n_ctx=10**6, **options):
    return Generation(
        Scripted(answer, end), Bytes(), [[]], list(prompt), Sampler(Params(temperature=0)), n_ctx=n_ctx, **options
    )


def pieces(made):
    return [step.text for step in made]


def test_characters_are_whole_whatever_the_tokens_cut():
    text = "é 你好 🚀 👩‍🚀."
    made = generation(text.encode())
    shown = pieces(made)
    assert "".join(shown) == text == made.text
    assert "\ufffd" not in "".join(shown)
    assert made.finish_reason == "stop" and made.tokens == list(text.encode())
    assert all(len(piece) <= 1 for piece in shown)


def test_broken_bytes_show_as_replacement_and_a_cut_character_at_the_end_is_dropped():
    made = generation(b"a\xff\xc3b\xe2\x82")
    assert "".join(pieces(made)) == made.text == "a\ufffd\ufffdb"
    assert generation("🚀".encode()[:3]).text == ""


def test_a_stop_string_across_tokens_leaks_nothing():
    made = generation(b"one two three four", stop=["ee fo", "never"])
    shown = pieces(made)
    assert "".join(shown) == made.text == "one two thr"
    assert made.finish_reason == "stop"
    assert made.tokens == list(b"one two three fo")


def test_the_earliest_of_several_stop_strings_counts():
    made = generation(b"abcdef", stop=["cde", "bc", "f"])
    assert "".join(pieces(made)) == "a"


def test_what_only_began_like_a_stop_string_comes_at_the_end():
    made = generation(b"so on</sto", stop=["</stop>"])
    steps = list(made)
    assert "".join(step.text for step in steps) == "so on</sto"
    assert steps[-1].token is None and steps[-1].text == "</sto"


def test_stop_strings_may_be_cut_inside_a_character():
    made = generation("x你好y".encode(), stop=["好"])
    assert "".join(pieces(made)) == "x你"


@pytest.mark.parametrize("seed", range(40))
def test_any_split_gives_the_text_before_the_first_stop_string(seed):
    rng = random.Random(seed)
    text = "".join(rng.choice("ab你é🚀") for _ in range(60))
    stop = ["".join(rng.choice("ab你é🚀") for _ in range(rng.randint(2, 4))) for _ in range(3)]
    found = [at for at in map(text.find, stop) if at >= 0]
    want = text[: min(found)] if found else text
    stream, data, shown = TextStream(stop), text.encode(), ""
    while data:
        n = rng.randint(1, 6)
        shown += stream.push(data[:n])
        data = data[n:]
        assert want.startswith(shown)
    assert shown + stream.finish() == want == stream.text
    assert stream.stopped == bool(found)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_bytes_join_to_what_all_of_them_give(seed):
    rng = random.Random(seed)
    data = bytes(rng.choice(b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80\xff") for _ in range(80))
    stream = TextStream()
    shown = "".join(stream.push(bytes([byte])) for byte in data) + stream.finish()
    whole = TextStream()
    assert shown == whole.push(data) == whole.text
    assert data.decode("utf-8", "replace").startswith(shown)


def test_limits():
    assert generation(b"abc", max_tokens=2).text == ""
    made = generation(b"abc", end=False, max_tokens=2)
    assert "".join(pieces(made)) == "ab" and made.finish_reason == "length"
    made = generation(b"abc", max_tokens=3)
    assert "".join(pieces(made)) == "abc" and made.finish_reason == "length"
    made = generation(b"abc", max_tokens=4)
    assert "".join(pieces(made)) == "abc" and made.finish_reason == "stop"
    made = generation(b"abc", max_tokens=0)
    assert pieces(made) == [] and made.finish_reason == "length" and made.weights.calls == []


def test_a_full_context_ends_the_answer():
    made = generation(b"abcdefgh", prompt=(1, 2, 3), n_ctx=5)
    assert "".join(pieces(made)) == "abc"  # two tokens fit after the prompt; the third needs no place
    assert made.finish_reason == "length"
    assert len(made.caches[0]) == 5


def test_the_model_is_asked_for_no_more_than_needed():
    made = generation(b"ab", prompt=(7, 8), n_ubatch=64)
    list(made)
    assert made.weights.calls == [("prefill", [7, 8], 64), ("decode", 97), ("decode", 98)]
    made = generation(b"ab", max_tokens=1)
    list(made)
    assert [call[0] for call in made.weights.calls] == ["prefill"]


@pytest.mark.parametrize("call", ["prefill", "decode", "logits"])
def test_an_interrupt_keeps_what_there_is(call, monkeypatch):
    made = generation("né".encode())
    original, count = getattr(Scripted, call), 0

    def interrupted(self, *arguments, **options):
        nonlocal count
        count += 1
        if count == (1 if call == "prefill" else 3):
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    monkeypatch.setattr(Scripted, call, interrupted)
    shown = []
    with pytest.raises(KeyboardInterrupt):
        for step in made:
            shown.append(step.text)
    assert made.finish_reason is None
    assert made.text == "".join(shown) == {"prefill": "", "decode": "né", "logits": "n"}[call]
    assert made.prompt_s >= 0 and made.decode_s >= 0
    elapsed = made.decode_s
    assert made.decode_s == elapsed  # the clock stands still


def test_times():
    made = generation(b"abc")
    assert made.prompt_s == made.decode_s == 0 and made.first_token_at is None
    list(made)
    assert made.prompt_s > 0 and made.decode_s > 0 and made.first_token_at is not None


def test_the_sampler_is_told_the_answer_and_not_the_end():
    made = generation(b"xyz")
    list(made)
    assert made.sampler.accepted == list(b"xyz")
