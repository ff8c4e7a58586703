"""The generation loop with a stand-in for the model: whole characters, stop strings, limits, interruption."""

import functools

import pytest

from bankml.engine import Engine
from bankml.errors import UsageError
from bankml.params import Params
from bankml.prompts import Prompts
from tests import stand_in


class Scripted(stand_in.Weights):
    """Notes in `calls` what was run."""

    def __init__(self, answer: bytes, end=True):
        super().__init__(answer.decode("utf-8", "surrogateescape"))
        self.answer, self.calls = self.answer if end else [*answer], []

    def prefill_with(self, caches, tokens, outputs, each=None, n_ubatch=512):
        self.calls.append(("prefill_with", list(tokens), outputs.name))
        return super().prefill_with(caches, tokens, outputs, each, n_ubatch)

    def decode(self, caches, token):
        self.calls.append(("decode", token))
        super().decode(caches, token)


@functools.cache
def model(folder):
    return stand_in.write_model(folder / "bytes.gguf")


@pytest.fixture
def generation(tmp_path_factory):
    """generation(answer, ...): the answer in the making of a model that gives this one."""

    def make(answer, *, end=True, prompt=(1, 2, 3), n_ctx=512, n_ubatch=512, **options):
        prompts = Prompts.open(model(tmp_path_factory.getbasetemp()), n_ctx)
        engine = Engine(Scripted(answer, end), prompts, n_ubatch=n_ubatch, cache_ram=0)
        return engine.generate(list(prompt), Params(temperature=0), **options)

    return make


def pieces(made):
    return [step.text for step in made]


def test_characters_are_whole_whatever_the_tokens_cut(generation):
    text = "é 你好 🚀 👩‍🚀."
    made = generation(text.encode())
    shown = pieces(made)
    assert "".join(shown) == text == made.text
    assert "\ufffd" not in "".join(shown)
    assert made.finish_reason == "stop" and made.tokens == list(text.encode())
    assert all(len(piece) <= 1 for piece in shown)


def test_broken_bytes_show_as_replacement_and_a_cut_character_at_the_end_is_dropped(generation):
    made = generation(b"a\xff\xc3b\xe2\x82")
    assert "".join(pieces(made)) == made.text == "a\ufffd\ufffdb"
    assert generation("🚀".encode()[:3]).text == ""


def test_a_stop_string_across_tokens_leaks_nothing(generation):
    made = generation(b"one two three four", stop=["ee fo", "never"])
    shown = pieces(made)
    assert "".join(shown) == made.text == "one two thr"
    assert made.finish_reason == "stop"
    assert made.tokens == list(b"one two three fo")


def test_the_earliest_of_several_stop_strings_counts(generation):
    made = generation(b"abcdef", stop=["cde", "bc", "f"])
    assert "".join(pieces(made)) == "a"


def test_what_only_began_like_a_stop_string_comes_at_the_end(generation):
    made = generation(b"so on</sto", stop=["</stop>"])
    steps = list(made)
    assert "".join(step.text for step in steps) == "so on</sto"
    assert steps[-1].token is None and steps[-1].text == "</sto"


def test_stop_strings_may_be_cut_inside_a_character(generation):
    made = generation("x你好y".encode(), stop=["好"])
    assert "".join(pieces(made)) == "x你"


def test_limits(generation):
    assert generation(b"abc", max_tokens=2).text == ""
    made = generation(b"abc", end=False, max_tokens=2)
    assert "".join(pieces(made)) == "ab" and made.finish_reason == "length"
    made = generation(b"abc", max_tokens=3)
    assert "".join(pieces(made)) == "abc" and made.finish_reason == "length"
    made = generation(b"abc", max_tokens=4)
    assert "".join(pieces(made)) == "abc" and made.finish_reason == "stop"
    made = generation(b"abc", max_tokens=0)
    assert pieces(made) == [] and made.finish_reason == "length" and made.engine.weights.calls == []


def test_a_full_context_ends_the_answer(generation):
    """As in the server: one place less than the context has, and the last token needs none."""
    made = generation(b"abcdefgh", prompt=(1, 2, 3), n_ctx=6)
    assert "".join(pieces(made)) == "abc"
    assert made.finish_reason == "length"
    assert len(made.engine.slot) == 5
    made = generation(b"abcdefgh", prompt=(1, 2, 3), n_ctx=4)
    assert "".join(pieces(made)) == "a"
    with pytest.raises(UsageError, match="3 tokens, the context only 3"):
        generation(b"abcdefgh", prompt=(1, 2, 3), n_ctx=3)


def test_the_model_is_asked_for_no_more_than_needed(generation):
    made = generation(b"ab", prompt=(7, 8, 9), n_ubatch=2)
    list(made)
    assert made.engine.weights.calls == [
        ("prefill_with", [7, 8], "NONE"),
        ("prefill_with", [9], "LAST"),
        ("decode", 97),
        ("decode", 98),
    ]
    made = generation(b"ab", max_tokens=1)
    list(made)
    assert [call[0] for call in made.engine.weights.calls] == ["prefill_with"]


@pytest.mark.parametrize("call", ["prefill_with", "decode", "logits"])
def test_an_interrupt_keeps_what_there_is(call, monkeypatch, generation):
    made = generation("né".encode())
    original, count = getattr(Scripted, call), 0

    def interrupted(self, *arguments, **options):
        nonlocal count
        count += 1
        if count == (1 if call == "prefill_with" else 3):
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    monkeypatch.setattr(Scripted, call, interrupted)
    shown = []
    with pytest.raises(KeyboardInterrupt):
        for step in made:
            shown.append(step.text)
    assert made.finish_reason is None
    assert made.text == "".join(shown) == {"prefill_with": "", "decode": "né", "logits": "n"}[call]
    assert made.prompt_s >= 0 and made.decode_s >= 0
    elapsed = made.decode_s
    assert made.decode_s == elapsed  # the clock stands still


def test_times(generation):
    made = generation(b"abc")
    assert made.prompt_s == made.decode_s == 0 and made.first_token_at is None
    list(made)
    assert made.prompt_s > 0 and made.decode_s > 0 and made.first_token_at is not None


def test_counts_are_the_servers(generation):
    made = generation(b"abc")
    assert (made.cached, made.completion_tokens) == (None, 0)
    list(made)
    assert (len(made.prompt), made.cached, made.completion_tokens) == (3, 0, 4)  # the end token counts
    made = generation(b"abc", max_tokens=2)
    list(made)
    assert made.completion_tokens == 2
