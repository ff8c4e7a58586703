"""The guard's verdicts: order of what it looks at, and chat templates."""

import time

import pytest

from bankml.errors import NeedMore, Refused
from bankml.guard import guard
from tests.gguf_writer import Q4_K, gguf, model


def judged(path, keys=(), **options):
    kv, tensors = model()
    path.write_bytes(gguf(kv | dict(keys), tensors))
    return guard(path, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


def test_play(path):
    verdict = judged(path)
    assert (verdict.verdict, verdict.reasons, verdict.notes) == ("play", [], [])
    assert verdict.types() == {"q1_0": 15, "f32": 9}
    assert verdict.check() is verdict and verdict.plan.arch == "qwen3" and verdict.header.path == path


def test_a_whole_file_of_an_unsupported_architecture_is_not_called_cut(path):
    verdict = judged(path, {"general.architecture": ("str", "mamba")})
    assert verdict.verdict == "refuse" and verdict.header is not None
    assert "unsupported architecture" in verdict.reasons[0] and str(path) in verdict.reasons[0]
    with pytest.raises(Refused, match="mamba"):
        verdict.check()


def test_a_cut_file_that_would_not_play_tells_both(path):
    kv, tensors = model()
    tensors[-1].type, tensors[-1].dims = Q4_K, (256, 1)
    path.write_bytes(gguf(kv, tensors)[:-1000])
    verdict = guard(path)
    assert verdict.verdict == "need_more" and "needs the file to have" in verdict.reasons[0]
    assert any("q4_K (type 12) is not supported" in reason for reason in verdict.reasons[1:])
    with pytest.raises(NeedMore, match="needs the file to have"):
        verdict.check()


GOOD = "{% for m in messages %}{{ m.role }}\n{{ m['content'] }}{% if loop.last %}{% break %}{% endif %}{% endfor %}"

INTERNALS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ (messages|attr('__class__')) }}",
    "{{ messages['__class__'] }}",
    "{% set x = '__builtins__' %}{{ raise_exception[x] }}",
]


def test_a_good_template(path):
    assert judged(path, {"tokenizer.chat_template": ("str", GOOD)}).verdict == "play"


@pytest.mark.parametrize("text", INTERNALS)
def test_a_template_that_reaches_for_internals(path, text):
    keys = {"tokenizer.chat_template": ("str", GOOD + text)}
    verdict = judged(path, keys)
    assert verdict.verdict == "refuse"
    assert "tokenizer.chat_template reaches for Python internals: __" in verdict.reasons[0]
    assert judged(path, keys, template=False).verdict == "play"


def test_a_second_template_is_looked_at_too(path):
    keys = {"tokenizer.chat_template": ("str", GOOD), "tokenizer.chat_template.tool_use": ("str", INTERNALS[0])}
    assert "tokenizer.chat_template.tool_use reaches for" in judged(path, keys).reasons[0]


@pytest.mark.parametrize("text", ["{% if %}", "{{ a", "{% for x in %}{% endfor %}", "{{ 'a' * }}", "((" * 20000])
def test_a_broken_template_is_only_noted(path, text):
    verdict = judged(path, {"tokenizer.chat_template": ("str", "{% if a %}" + text)})
    assert verdict.verdict == "play"
    (note,) = verdict.notes
    assert note.startswith("the chat template ") and note.endswith("; plain completion works")


def test_a_template_nested_too_deep(path):
    verdict = judged(path, {"tokenizer.chat_template": ("str", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")})
    assert verdict.verdict == "play" and "nested too deep" in verdict.notes[0]


def test_words_between_underscores_are_no_internals(path):
    verdict = judged(
        path, {"tokenizer.chat_template": ("str", GOOD + "__assistant__ {% generation %}{% endgeneration %}")}
    )
    assert (verdict.verdict, verdict.notes) == ("play", [])


def test_a_flood_of_templates(path):
    """200 templates of 64 KB: refused for their size, and quickly."""
    start = time.monotonic()
    verdict = judged(path, {f"tokenizer.chat_template.{i}": ("str", "{{a}}" * 13000) for i in range(200)})
    assert verdict.verdict == "refuse" and "the templates have 13000000 bytes" in verdict.reasons[0]
    assert time.monotonic() - start < 1
