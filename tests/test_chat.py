"""Prompts against recordings of the reference server (testing/record_chat.py), and templates that mean harm."""

import gzip
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bankml.chat import Template, render, template_problems
from bankml.errors import BankmlError, Refused, UsageError
from bankml.gguf import read_header
from bankml.tokenizer import Tokenizer
from tests import vocab

GOLDEN = Path(__file__).parent / "golden"
HI = [{"role": "user", "content": "hi"}]


def golden(name):
    return json.loads(gzip.decompress((GOLDEN / name).read_bytes()))


PROMPTS, WORDS = golden("chat_prompts.json.gz"), golden("chat_words.json.gz")


def prompt_of(template, request) -> str | None:
    """Our prompt for a request of the recordings; None where it is turned down."""
    flag = request.get("add_generation_prompt", True)
    try:
        return template.render(request["messages"], flag, request.get("tools"), request.get("chat_template_kwargs"))
    except UsageError:
        return None


@pytest.fixture(scope="module", params=["smollm2", "qwen3", "none"])
def recorded(request):
    """(template, prompts)"""
    files = {"smollm2": vocab.smollm2_gguf, "qwen3": vocab.qwen3_gguf}
    source = read_header(files[request.param]()) if request.param in files else None
    return Template.of(source), PROMPTS["prompts"][request.param]


class TestRecorded:
    def test_prompts(self, recorded):
        template, prompts = recorded
        assert len(prompts) == 300
        wrong = [
            (request, want)
            for request, want in zip(PROMPTS["requests"], prompts, strict=True)
            if prompt_of(template, request) != want
        ]
        assert wrong == []

    @pytest.mark.parametrize("name", WORDS["templates"])
    def test_other_templates(self, name):
        record = WORDS["templates"][name]
        template = Template(record["template"], bos="<|im_start|>", eos="<|im_end|>")
        assert any(record["prompts"])
        for request, want in zip(WORDS["requests"], record["prompts"], strict=True):
            assert prompt_of(template, request) == want, request

    @pytest.mark.parametrize("text", [text for text, want in WORDS["expressions"].items() if want is not None])
    def test_expressions(self, text):
        template = Template(f"{{{{ {text} }}}}|{{{{ messages[0].content }}}}", bos="<|im_start|>", eos="<|im_end|>")
        assert prompt_of(template, WORDS["requests"][0]) == WORDS["expressions"][text]


class TestUserReports:
    """shared cases G1 and G2, F4's last line."""

    def test_parts_are_joined_by_newlines(self):
        parts = [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]
        assert "user\ntell me a \nriddle<|im_end|>" in render([{"role": "user", "content": parts}])

    def test_null_is_empty(self):
        assert render([{"role": "user", "content": None}]).startswith("<|im_start|>user\n<|im_end|>\n")

    @pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "odd"])
    def test_other_parts_are_named(self, kind):
        with pytest.raises(UsageError, match=f"message 0 has a part of type '{kind}'"):
            render([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "x"}}]}])

    def test_thinking_switch(self):
        template = Template(vocab.qwen3_template())
        plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert render(HI, template) == plain
        assert render(HI, template, enable_thinking=True) == plain
        assert render(HI, template, enable_thinking=False) == plain + "<think>\n\n</think>\n\n"

    def test_no_template_is_chatml(self, tmp_path):
        kv = vocab.vocab_kv(vocab.byte_characters(), [1] * 256, [], "qwen2")
        header = read_header(vocab.write_gguf(tmp_path / "no-template.gguf", kv))
        assert render(HI, header) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    def test_one_start_token(self, tmp_path):
        """A template that prints the start token, in a file that asks for one: there is one."""
        kv = vocab.vocab_kv(
            [*vocab.byte_characters(), "<s>"], [1] * 256 + [vocab.CONTROL], [], "qwen2", eos=256, bos=256, add_bos=True
        )
        kv["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0].content }}"
        header = read_header(vocab.write_gguf(tmp_path / "start.gguf", kv))
        ids = Tokenizer.from_gguf(header).encode(render(HI, header), add_special=True)
        assert ids == [256, *b"hi"]


OUTPUT = "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}"
LOOP = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"


def grow(first, step):
    """A template that does one step 99 times."""
    text = "{% set ns = namespace(x=FIRST) %}{% for i in range(99) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
    return text.replace("FIRST", first).replace("STEP", step)


HOSTILE = {
    "reach, attribute": ("{{ ''.__class__.__mro__ }}", "reaches for '__class__'"),
    "reach, item": ("{{ ''['__class__'] }}", "reaches for '__class__'"),
    "reach, built": ("{{ ''['__cla' ~ 'ss__'] }}", "reaches for '__class__'"),
    "reach, function": ("{{ range.__globals__ }}", "reaches for '__globals__'"),
    "reach, method": ("{{ 'a'.upper.__self__ }}", "reaches for '__self__'"),
    "reach, namespace": ("{{ namespace.__init__.__globals__ }}", "reaches for '__init__'"),
    "reach, undefined": ("{{ cycler.__init__ }}", "reaches for '__init__'"),
    "reach, filter": ("{{ ''|attr('__class__') }}", "No filter named 'attr'"),
    "reach, map": ("{{ messages|map(attribute='__class__')|list|tojson }}", None),
    "reach, loop": ("{% for x in [1] %}{{ loop._iterable }}{% endfor %}", "reaches for '_iterable'"),
    "format": ("{{ '{0.__class__}'.format(1) }}", "simple {} places only"),
    "include": ("{% include '/etc/passwd' %}", "statement 'include'"),
    "import": ("{% import 'os' as os %}", "statement 'import'"),
    "endless": (LOOP, "takes more than 3 seconds"),
    "endless in a macro": ("{% macro f() %}" + LOOP + "{% endmacro %}{{ f() }}", "takes more than 3 seconds"),
    "endless by recursion": ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
    "recursive loop": ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "uses a recursive loop"),
    "times": ("{{ 'x' * 10**9 }}", "too large a value"),
    "times, reversed": ("{{ 1000000000 * 'x' }}", "too large a value"),
    "power": ("{{ 10 ** 10000000000 }}", "too large a number"),
    "big numbers": (grow("3", "ns.x * ns.x"), "too large a number"),
    "doubled text": (grow("'x'", "ns.x + ns.x"), "too large a value"),
    "doubled by ~": (grow("'x'", "ns.x ~ ns.x"), "too large a value"),
    "doubled list": (grow("[1]", "ns.x + ns.x"), "too large a value"),
    "shared list": (grow("[1]", "[ns.x, ns.x]"), "too large a value"),
    "shared object": (grow("{}", "{'a': ns.x, 'b': ns.x}"), "too large a value"),
    "hoard": (grow("[]", "ns.x + ['x' * 1000000 ~ i]"), "too large a value"),
    "range": ("{{ range(10**12)|list|length }}", "too large a value"),
    "replace": ("{{ ('x' * 100000).replace('x', 'y' * 100000) }}", "too large a value"),
    "join": ("{{ range(100000)|join('y' * 100000) }}", "too large a value"),
    "indent": ("{{ 'a\nb'|indent(10**9) }}", "too large a value"),
    "tojson": ("{{ [[1]]|tojson(indent=10**9) }}", "too large a value"),
    "output": (OUTPUT, "too large a value"),
    "output in a block": ("{% set y %}" + OUTPUT + "{% endset %}", "too large a value"),
    "length": ("x" * 300000, "has 300000 characters"),
    "syntax": ("{% for %}", "is broken"),
    "nested source": ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested too deeply"),
    "unknown tag": ("{% trans %}x{% endtrans %}", "is broken"),
}  # fmt: skip


class TestHostile:
    """shared case G4."""

    @pytest.mark.parametrize("name", HOSTILE)
    def test_is_turned_down(self, name):
        text, reason = HOSTILE[name]
        start = time.perf_counter()
        if reason is None:
            assert "class" not in render(HI, text)
        else:
            with pytest.raises(BankmlError, match="chat template") as caught:
                render(HI, text)
            assert reason in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
        assert time.perf_counter() - start < 5

    def test_in_a_thread(self):
        """No signals: a server renders in threads, and others go on meanwhile."""
        errors, start = [], time.perf_counter()

        def work():
            try:
                render(HI, LOOP)
            except Refused as error:
                errors.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(2)]
        [thread.start() for thread in threads]
        assert render(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        [thread.join() for thread in threads]
        assert len(errors) == 2
        assert time.perf_counter() - start < 5

    def test_what_python_would_warn_of_is_quiet(self):
        """Found by testing/fuzz_template.py: compiling it gave a SyntaxWarning on stderr."""
        assert render(HI, "{{ 1[0] }}{{ true['x'] }}seen") == "seen"

    def test_a_template_may_raise(self):
        with pytest.raises(UsageError, match="the chat template says: roles must alternate"):
            render(HI, "{{ raise_exception('roles\nmust alternate') }}")

    def test_generation_tag(self):
        """SmolLM3's tag marks what to train on; it means nothing here."""
        assert (
            render(HI, "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}") == "hi"
        )

    def test_problems(self):
        assert template_problems(vocab.qwen3_template()) == []
        assert template_problems("{{ ''.__class__ }}") == ["the chat template reaches for '__class__'"]
        assert template_problems("{{ ''['__globals__'] }}") == ["the chat template reaches for '__globals__'"]
        assert template_problems("{% include 'x' %}") == ["the chat template uses the statement 'include'"]
        assert "is broken" in template_problems("{% for")[0]
        assert template_problems(LOOP) == []  # found out when it runs


class TestMessages:
    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ("hi", "'messages' must be an array"),
            (["hi"], "message 0 must be an object"),
            ([{"content": "x"}], "message 0 needs a 'role'"),
            ([{"role": 5, "content": "x"}], "message 0 needs a 'role'"),
            ([*HI, {"role": "user"}], r"message 1 \(user\) must contain 'content'"),
            ([{"role": "assistant"}], r"message 0 \(assistant\) must contain 'content'"),
            ([{"role": "user", "content": 5}], "'content' must be a string or an array"),
            ([{"role": "user", "content": [{"type": "text"}]}], "a text part without 'text'"),
            ([{"role": "user", "content": ["x"]}], "a part of type None"),
            (
                [*HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
                "2 or more assistant",
            ),
            ([{"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}], "a tool call needs"),
            ([{"role": "assistant", "content": "", "tool_calls": "x"}], "a tool call needs"),
            ([{"role": "assistant", "content": "", "tool_calls": 5}], "'tool_calls' must be an array"),
            ([{"role": "user", "content": "x", "name": 5}], "'name' must be a string"),
        ],
    )
    def test_usage_errors(self, messages, reason):
        with pytest.raises(UsageError, match=reason):
            render(messages)

    def test_thinking_must_be_a_switch(self):
        with pytest.raises(UsageError, match="enable_thinking"):
            render(HI, enable_thinking="no")


def file(path, template):
    """A GGUF with a template."""
    kv = vocab.vocab_kv(vocab.byte_characters(), [1] * 256, [], "qwen2")
    return vocab.write_gguf(path, kv | {"tokenizer.chat_template": template})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return file(tmp_path_factory.mktemp("chat") / "model.gguf", vocab.qwen3_template())


class TestCommand:
    @staticmethod
    def run(path, request):
        raw = request if isinstance(request, bytes) else json.dumps(request).encode()
        command = [sys.executable, "-m", "bankml", "chat-template", str(path)]
        return subprocess.run(command, input=raw, capture_output=True, check=False)

    def test_prints_the_prompt_and_nothing_else(self, model):
        want = "<|im_start|>user\nhi é<|im_end|>\n<|im_start|>assistant\n".encode()
        messages = [{"role": "user", "content": "hi é"}]
        for request in (messages, {"messages": messages}, {"messages": messages, "chat_template_kwargs": None}):
            done = self.run(model, request)
            assert (done.returncode, done.stdout, done.stderr) == (0, want, b"")
        done = self.run(model, {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}})
        assert done.stdout == want + b"<think>\n\n</think>\n\n"

    @pytest.mark.parametrize(
        ("request_", "said"),
        [
            (b"", "stdin is no JSON"),
            (b"{", "stdin is no JSON"),
            (b"\xff", "stdin is no JSON"),
            (b"[" * 100000, "stdin is no JSON"),
            (b"5", "stdin must hold"),
            (b"{}", "stdin must hold"),
            ({"messages": 5}, "'messages' must be an array"),
            ({"messages": HI, "chat_template_kwargs": [1]}, "'chat_template_kwargs' must be an object"),
            ({"messages": HI, "tools": 5}, "'tools' must be an array"),
            ({"messages": HI, "tools": [5]}, "tool 0 needs"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
        ],
    )
    def test_bad_input(self, model, request_, said):
        done = self.run(model, request_)
        assert done.returncode == 1
        assert done.stdout == b""
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr.decode()

    @pytest.mark.parametrize("name", ["reach, attribute", "endless", "times", "hoard", "output", "syntax"])
    def test_hostile_file(self, tmp_path, name):
        """Exit 2 in one line, within 5 seconds and 300 MB."""
        path, start = file(tmp_path / "hostile.gguf", HOSTILE[name][0]), time.perf_counter()
        code = (  # the peak is the process's own; getrusage would tell its parent's
            "import re, sys; from bankml.cli.main import main; code = main(['chat-template', sys.argv[1]]); "
            "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]); sys.exit(code)"
        )
        command = [sys.executable, "-W", "ignore", "-c", code, path]
        done = subprocess.run(command, input=json.dumps(HI).encode(), capture_output=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert HOSTILE[name][1] in done.stderr.decode()
        assert int(done.stdout) < 300_000  # kilobytes
        assert time.perf_counter() - start < 5

    def test_template_of_another_type(self, tmp_path):
        done = self.run(file(tmp_path / "number.gguf", 5), HI)
        assert done.returncode == 2
        assert b"tokenizer.chat_template is u32, not a string" in done.stderr
