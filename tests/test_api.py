"""`bankml.load`: the examples of docs/api.md, and the habits of llama-cpp-python's users."""

import doctest
from pathlib import Path

import numpy as np
import pytest

import bankml
from bankml.convert import convert
from tests import conversations, vocab

PAGE = Path(__file__).parent.parent / "docs" / "api.md"


@pytest.fixture(scope="module")
def smollm2():
    return vocab.cached("SmolLM2-135M-Instruct.F16.gguf", lambda made: convert(vocab.smollm2_gguf(), made, "F16"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with bankml.load(conversations.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), 512, False) as model:
        yield model


def test_the_examples_of_the_page(smollm2, tmp_path, monkeypatch):
    home = tmp_path / "home" / "models"
    home.mkdir(parents=True)
    (home / "SmolLM2-135M-Instruct-F16.gguf").symlink_to(smollm2)
    monkeypatch.setenv("BANKML_HOME", str(home.parent))
    monkeypatch.setenv("BANKML_GPU", "off")
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, globs={})
    assert failed == 0 and tried > 25


def test_a_text_has_the_shape_of_llama_cpp_python(tiny):
    answer = tiny("abc", max_tokens=4, temperature=0)
    assert {"id", "object", "created", "model", "choices", "usage"} == set(answer)
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert (choice["index"], choice["text"], choice["finish_reason"]) == (0, answer.text, "length")
    assert len(answer.tokens) == 4 and answer["usage"]["completion_tokens"] == 4
    echoed = tiny("abc", max_tokens=4, temperature=0, echo=True)
    assert echoed.text == "abc" + answer.text
    assert (
        "".join(chunk.text for chunk in tiny("abc", max_tokens=4, temperature=0, echo=True, stream=True)) == echoed.text
    )


def test_a_chat_has_the_shape_of_llama_cpp_python(tiny):
    messages = [{"role": "user", "content": "abc"}]
    answer = tiny.chat(messages, max_tokens=5, temperature=0)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": answer.text}
    chunks = list(tiny.create_chat_completion(messages, max_tokens=5, temperature=0, stream=True))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1].finish_reason == "length"
    assert "".join(chunk.text for chunk in chunks) == answer.text
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_a_stream_left_early_gives_the_engine_back(tiny):
    for chunk in tiny("abc", stream=True, temperature=0):
        if chunk.text:
            break
    stream = tiny("abc", stream=True, temperature=0)
    next(stream), next(stream)
    with pytest.raises(bankml.UsageError, match="under way"):
        tiny("abc", max_tokens=1)
    stream.close()
    assert tiny("abc", max_tokens=1, temperature=0).finish_reason == "length"


def test_limits_and_what_is_wrong(tiny):
    assert tiny("abc", max_tokens=0).text == ""
    assert tiny("abc", max_tokens=-1, temperature=0, seed=1)["usage"]["total_tokens"] <= 512
    for wrong in ({"top_p": 2}, {"seed": -1}, {"reuse": "some"}):
        with pytest.raises(bankml.UsageError):
            tiny("abc", **wrong)
    with pytest.raises(TypeError):
        tiny("abc", tempratur=1)
    for prompt in ("", [], "x" * 512, [999], ["x"], [{"role": "user"}], [1, {"role": "user", "content": "x"}]):
        with pytest.raises(bankml.UsageError):
            tiny(prompt)
    with pytest.raises(bankml.UsageError, match="none"):
        bankml.load("none-of-that-name")


def test_a_bias_forces_a_token(tiny):
    for bias in ({65: 1000.0}, [(65, 1000.0)]):
        assert tiny("abc", max_tokens=3, logit_bias=bias).text == "AAA"


def test_logits_are_those_of_an_uncached_run(tiny):
    """Whatever lies in the slot; and rows of all positions end with the last one's (Q1_0 has one product path)."""
    prompt = list(b"what follows this and that, and goes on for long enough to have sixty-four tokens or more")
    with bankml.Weights.open(tiny.header.path, gpu=False) as weights:
        want = weights.logits(weights.prefill(weights.caches(n_ctx=512), prompt))
    tiny(prompt[:20], max_tokens=30)
    assert np.array_equal(tiny.logits(prompt).view("u4"), want.view("u4"))
    assert np.array_equal(tiny.logits(prompt).view("u4"), want.view("u4"))
    rows = tiny.logits(prompt, all=True)
    assert rows.shape == (len(prompt), 258) and np.array_equal(rows[-1].view("u4"), want.view("u4"))


def test_tokens(tiny):
    assert tiny.tokenize("a<|im_end|>") == list(b"a<|im_end|>")
    assert tiny.tokenize(b"a<|im_end|>", special=True) == [97, 257]
    assert tiny.detokenize([97, 257]) == b"a"
    assert tiny.detokenize([97, 257], special=True) == b"a<|im_end|>"


def test_the_package_says_that_it_is_typed():
    assert Path(bankml.__file__).with_name("py.typed").exists()
