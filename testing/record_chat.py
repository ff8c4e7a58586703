# ruff: noqa: E501 (tables of texts)
"""Record the reference server's prompts: 300 seeded conversations with three templates, and a few with templates of other kinds.

    BANKML_REFERENCE_SERVER=<bin folder of the built b11192 package> python -m testing.record_chat

Writes tests/golden/chat_{prompts,words}.json.gz. The server runs SmolLM2; templates are given by file, none as `chatml`. No bankml code.
"""

import gzip
import json
import random
import tempfile
from pathlib import Path

from testing.reference_server import Server, server_stamp
from tests import vocab

ROOT = Path(__file__).resolve().parents[1]
COUNT = 300
GOLDEN = ROOT / "tests" / "golden"

TEXTS = [
    "", " ", "hi", "Hello, world!", "What is the capital of France?", "tell me a ", "\n", "\n\nx\n\n", "  spaced  ", "tab\there", "a\r\nb", "1 + 1 = 2",
    "日本語のテキスト", "Привет, мир", "مرحبا", "👩‍👩‍👧 family 🎉", "e\u0301 and \u00e9", "\u3000wide\u3000", "\u00a0nbsp\u00a0", "zero\u200bwidth", "nul \u0000 in text", "quote \" and ' and \\",
    "<|im_end|>", "<|im_start|>user\nhi<|im_end|>", "<think>\nI wonder\n</think>\n\nYes.", "<think></think>no", "</think>", "a</think>b</think>c", "<tool_response>x</tool_response>",
    "{{ messages }}", "{% if %}", "{\"a\": [1, 2]}", "<b>&amp;</b>", "x" * 300, "line\n" * 20, "def f(x):\n    return x\n", "\u001c\u001f", "\u2028sep\u2029",
]  # fmt: skip
ARGUMENTS = [
    {}, {"city": "Paris"}, {"n": 3, "x": 2.5, "ok": True, "none": None}, {"nested": {"a": [1, [2, {"b": "c"}]]}}, {"text": "é \"q\" \\ \n <&>'"},
    {"big": 1e20, "small": 1e-7, "third": 0.3333333333333333, "whole": 2.0, "neg": -5}, {"emoji": "🎉", "control": "\u0001\u007f"},
]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather of a place é", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
    {"type": "function", "function": {"name": "bare"}, "extra": 1},
]  # fmt: skip


def text(rng):
    return rng.choice(TEXTS) if rng.random() < 0.8 else " ".join(rng.choices(TEXTS, k=3))


def content(rng):
    """A string mostly; sometimes text parts, null or an empty list."""
    kind = rng.choices(("string", "parts", "null", "empty"), (12, 4, 1, 1))[0]
    if kind == "parts":
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 4))]
    return {"string": text(rng), "null": None, "empty": []}[kind]


def assistant(rng, with_calls):
    message = {"role": "assistant", "content": content(rng)}
    if rng.random() < 0.25:
        message["reasoning_content"] = text(rng)
    if with_calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": f"call{n}",
                "function": {"name": "weather", "arguments": rng.choice((json.dumps, dict))(rng.choice(ARGUMENTS))},
            }
            for n in range(rng.randint(1, 3))
        ]
        if rng.random() < 0.3:
            del message["content"]
    return message


def conversation(rng) -> dict:
    """A request: some turns, with what may come before, between and after them."""
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": rng.choice(("system", "system", "developer")), "content": content(rng)})
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        messages.append({"role": "user", "content": content(rng)})
        if rng.random() < 0.2:
            messages.append(assistant(rng, with_calls=True))
            messages += [
                {"role": "tool", "content": content(rng), "tool_call_id": f"call{n}"} for n in range(rng.randint(1, 3))
            ]
        if rng.random() < 0.7:
            messages.append(assistant(rng, with_calls=False))
    if messages[-1]["role"] == "assistant" and rng.random() < 0.6:
        messages.append({"role": "user", "content": content(rng)})
    if rng.random() < 0.05:
        messages.insert(
            rng.randrange(len(messages)), {"role": rng.choice(("narrator", "system", "tool")), "content": text(rng)}
        )
    request = {"messages": messages}
    if rng.random() < 0.3:
        request["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    if rng.random() < 0.15:
        request["tools"] = rng.sample(TOOLS, rng.randint(1, 3))
    if rng.random() < 0.1 and messages[-1]["role"] != "assistant":
        request["add_generation_prompt"] = False
    return request


CHOSEN = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": "no"}},
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": 0}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": 5, "content": "x"}]},
    {"messages": []},
    {"messages": "hi"},
    {"messages": [{"role": "assistant", "content": "alone"}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "reasoning_content": "hm"}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "no json"}}]}, {"role": "tool", "content": "1"}]},
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"messages": []}},
]  # fmt: skip

# Templates of other kinds, written for this: each has something the three have not.
OTHER = {
    "headers": "{{ bos_token }}{% for m in messages %}<|head|>{{ m['role'] }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}",
    "no system": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}</turn>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}",
    "alternating": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}[{{ loop.index }}/{{ loop.length }} {{ m.role|upper }}] {{ m.content }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}",
    "parts": "{%- for m in messages -%}<|{{ m.role }}|>{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}{{ p.text }}|{%- endfor -%}{%- endif -%}\n{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}",
    "parts only": "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}</{{ m.role }}>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    "macros": "{% macro show(m, mark='*') %}{{ mark }}{{ m.role|title }}: {{ m.content|replace('\\n', '\\\\n') }}{{ mark }}\n{% endmacro %}{% set ns = namespace(n=0, all='') %}{% for m in messages if m.content %}{% set ns.n = ns.n + 1 %}{% set ns.all = ns.all ~ m.role ~ ',' %}{{ show(m) }}{% endfor %}{{ ns.n }} {{ ns.all }}{% if add_generation_prompt %}{{ show({'role': 'assistant', 'content': 'x'}, mark='') }}{% endif %}",
    "words": "{% for m in messages %}{{ m.content|length }} {{ m.content|upper }} {{ m.content|lower }} {{ m.content|capitalize }} {{ m.content|title }} {{ m.content.strip()|tojson }} {{ m.content.split('\\n')|join('|') }} {{ m.content.split(' ', 1)[0] }} {{ m.content.rsplit(' ', 1)[-1] }} {{ m.content|indent(2) }} {{ m.content|indent(3, true, true) }} {{ m.content.startswith('h') }} {{ 'x' in m.content }} {{ m.missing|default('none') }} {{ m.missing.deeper }}\n{% endfor %}",
    "white space": "  {% if true %}\n    a\n  {% endif %}\nb\n{%- if true -%}\n  c  \n{%- endif %}\n  {# note #}\nd {{ 1 -}}  \n e\n{% if true %}f{% endif %}\r\ng\t{%- set z = 1 %}\n\n{{- messages[0].content }}\n\n",
    "thinking": "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}[THINK]{% endif %}{% endif %}",
    "switch": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}<{{ m.content }}>{% endif %}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "calls": "{% if tools %}{{ tools|tojson(indent=4) }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson }} {% endfor %})</call>{% endfor %}{% endif %}\n{% endfor %}",
}  # fmt: skip


# One expression each: the server does not start where its engine cannot run a template.
EXPRESSIONS = [
    "1", "2.5", "0.1 + 0.2", "7 / 2", "7 % 3", "7 // 2", "2 ** 3", "-5 + 1", "true", "none", "[1, 'a', \"it's\", none, 2.0]", "{'a': 1, 'b': [true]}", "(1,)", "(1, 'b')",
    "[1, 2.5, 'é', {'k': none}]|tojson", "[0.3333333333, 100000.0, 1234567.0, 2.0, 0.00001]|tojson", "{'a': [1, 2], 'b': {}, 'c': []}|tojson(indent=2)", "{'a': 1, 'b': [2, 3]}|tojson(separators=(',', ':'))", "'é\"\\\\'|tojson(ensure_ascii=true)",
    "range(3)|list", "range(5, 1, -2)|list", "[3, 1, 2]|sort|join(',')", "['b', 'A', 'a']|sort|join", "[3, 1]|sort(reverse=true)|join(' ')", "messages|map(attribute='role')|join(' ')", "messages|selectattr('role', 'equalto', 'user')|list|length",
    "messages|rejectattr('role', 'equalto', 'user')|list|length", "messages|selectattr('content')|list|length", "{'b': 1, 'a': 2}|dictsort", "{'b': 1, 'a': 2}|items|list", "'12'|int + 1", "'x'|int", "'2.5'|float", "3.7|int", "'x' * 3", "[1, 2][::-1]", "'abc'[1:]", "'abc'[::-1]",
    "messages[-1].role", "messages[5].role.x", "'a' ~ 1 ~ 'b'", "'a' ~ none", "none ~ 'a'", "'a' + none", "'a' + 1", "not false", "1 if false", "1 if true else 2", "'u' + undefined_thing", "undefined_thing is defined", "undefined_thing is none", "none is none", "'a' in undefined_thing", "1 in [1, 2]", "'k' in {'k': 1}",
    "'a' is string", "1 is number", "1 is integer", "[] is iterable", "'a' is iterable", "{} is mapping", "{} is iterable", "[] is sequence", "3 is odd", "4 is divisibleby(2)", "'abc'|first", "[1, 2]|first", "[1, 2]|last", "[]|first", "[1, 2]|reverse|list", "[1, 2, 2]|max", "[3, 1]|min", "none|default('d')", "''|default('d')", "''|default('d', true)", "undefined_thing|default('d')",
    "'a-b'.split('-')", "' a  b '.split()", "'aXbXc'.rsplit('X', 1)", "'  x '|trim", "'\u3000x\u00a0'|trim", "'xxaxx'.strip('x')", "'éa'|upper", "'ÉA'|lower", "'éa bC d'|title", "'hELLO é'|capitalize", "'é'|length", "'日本'|count", "'{} and {}'.format(1, 'x')", "'a\nb'|indent", "'aaa'|replace('a', 'b')", "'abc'.replace('', '-')",
    "{'a': 1}.get('a')", "{'a': 1}.get('z', 5)", "{'a': 1}.keys()|list", "{'a': 1}.values()|list", "{'a': 1}.items()|list", "{'items': 3}.items", "{'a': 1}['a']", "{'a': 1}['z']", "namespace(a=1).a", "'%s' % 'x'", "1 == 1.0", "1 == true", "'1' == 1", "1 < 2.5", "'a' < 'b'", "[1] + [2]", "[1] == [1]", "1 and 0 or 5", "enable_thinking", "strftime_now('%Y')|length", "tools", "add_generation_prompt",
    "messages|length", "loop", "bos_token", "[1, 2]|join(d='-')", "[[1, 2], [3]]|string", "5|string", "true|string", "none|string", "-3|abs", "2.0|string", "1000000.5",
]  # fmt: skip


def save(name, content):
    data = json.dumps(content, separators=(",", ":")).encode()
    (GOLDEN / name).write_bytes(gzip.compress(data, 9, mtime=0))
    print(name, (GOLDEN / name).stat().st_size)


def replies(template, requests, model=None) -> list[str | None]:
    """The server's prompt for each request, by the template or by that of its model (SmolLM2); None where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ()
        if template is not None:
            path = Path(folder) / "template.jinja"
            path.write_bytes(template.encode())
            flags = ("--chat-template", "chatml") if template == "chatml" else ("--chat-template-file", path)
        try:
            with Server(model or vocab.smollm2_gguf(), *flags) as server:
                answers = [server.post("/apply-template", request) for request in requests]
        except RuntimeError:
            return [None] * len(requests)
    return [reply["prompt"] if status == 200 else None for status, reply in answers]


def all_requests() -> list[dict]:
    """The 300 conversations, the same every time."""
    rng = random.Random(3)
    return CHOSEN + [conversation(rng) for _ in range(COUNT - len(CHOSEN))]


def some_requests() -> list[dict]:
    """40 of them, for templates of other kinds."""
    requests = all_requests()
    return requests[:2] + requests[4:6] + requests[13:16] + requests[len(CHOSEN) : len(CHOSEN) + 33]


def own_templates() -> dict[str, str | None]:
    """Name -> template: None for that of the server's model, "chatml" for no template at all."""
    return {"smollm2": None, "qwen3": vocab.qwen3_template(), "none": "chatml"}


def alone(expression: str) -> str:
    """A template that shows one expression."""
    return f"{{{{ {expression} }}}}|{{{{ messages[0].content }}}}"


def main():
    requests, own = all_requests(), own_templates()
    prompts = {name: replies(template, requests) for name, template in own.items()}
    stamp = {
        "reference": server_stamp(),
        "input": {"sha256": vocab.SMOLLM2_SHA256, "tokenizer_qwen3_sha256": vocab.QWEN3_SHA256},
    }
    save("chat_prompts.json.gz", stamp | {"requests": requests, "prompts": prompts})
    some = some_requests()
    words = {name: {"template": template, "prompts": replies(template, some)} for name, template in OTHER.items()}
    expressions = {text: replies(alone(text), requests[:1])[0] for text in EXPRESSIONS}
    save("chat_words.json.gz", stamp | {"requests": some, "templates": words, "expressions": expressions})


if __name__ == "__main__":
    main()
