"""Fuzz the chat template: whatever a file holds and a caller sends, rendering ends soon, in a text or a sentence.

    python -m testing.fuzz_template --seconds 180 --seed 1

Templates are put together of statements, expressions, real templates' lines and broken ends; requests of messages of
every form. Allowed are a text, UsageError and Refused, within the budget's seconds; what a template says of itself
(`template_problems`) may raise nothing. ChatML is held equal to what it says, written out.
"""

import json
import random
import sys
import warnings

from bankml.chat import Template, template_problems
from bankml.errors import BankmlError
from tests import vocab

ATOMS = (
    *(
        "messages",
        "messages[0]",
        "messages[-1].content",
        "m.content",
        "m['role']",
        "tools",
        "bos_token",
        "ns.x",
        "loop.index0",
    ),
    *(
        "'a'",
        "''",
        "'</think>'",
        "0",
        "1",
        "-1",
        "10**3",
        "1.5",
        "none",
        "true",
        "[]",
        "[1, 'a']",
        "{'a': 1}",
        "undefined_name",
    ),
    *(
        "range(3)",
        "range(10**6)",
        "namespace(x=1)",
        "raise_exception('no')",
        "strftime_now('%Y')",
        "strftime_now('%')",
        "'%s'",
    ),
)
FILTERS = (
    *(
        "trim",
        "upper",
        "lower",
        "title",
        "capitalize",
        "length",
        "count",
        "first",
        "last",
        "list",
        "join(',')",
        "tojson",
        "safe",
    ),
    *(
        "tojson(indent=2)",
        "string",
        "int",
        "float",
        "default('d')",
        "map(attribute='role')",
        "selectattr('role')",
        "items",
        "abs",
    ),
    *(
        "reject('none')",
        "sort",
        "dictsort",
        "unique",
        "reverse",
        "replace('a', 'bb')",
        "indent(3)",
        "batch(2)",
        "round",
        "nope",
    ),
    *(
        "format(1)",
        "wordcount",
        "sum",
        "min",
        "max",
        "escape",
        "select('string')",
        "groupby('role')",
        "attr('role')",
        "center(9)",
    ),
)
METHODS = (
    *(
        "split('a')",
        "strip()",
        "lstrip('x')",
        "rstrip()",
        "upper()",
        "startswith('a')",
        "endswith('')",
        "get('role')",
        "items()",
    ),
    *(
        "keys()",
        "values()",
        "replace('', 'x')",
        "find('a')",
        "title()",
        "format(1)",
        "join(['a'])",
        "append(1)",
        "pop()",
        "zfill(9)",
    ),
    *(
        "__class__",
        "__init__.__globals__",
        "_x",
        "split('')",
        "rsplit('a', 1)",
        "count('')",
        "splitlines()",
        "encode()",
    ),
)
OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "~",
    "==",
    "!=",
    "<",
    ">=",
    "and",
    "or",
    "in",
    "not in",
    "is",
    "is not",
    "if",
)
TESTS = (
    "defined",
    "none",
    "string",
    "mapping",
    "iterable",
    "number",
    "undefined",
    "true",
    "odd",
    "divisibleby(0)",
    "nope",
)
BROKEN = (
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{% endfor %}",
    "{% else %}",
    "\\",
    "\0",
    "\ud800",
    "é",
    "{{ '",
    "\n\n  ",
)
ROLES = ("system", "user", "assistant", "tool", "developer", "", "x")


def expression(rng: random.Random, depth=0) -> str:
    """Some expression; it need not make sense."""
    kind = rng.randrange(9) if depth < 4 else 0
    if kind < 3:
        return rng.choice(ATOMS)
    inner = expression(rng, depth + 1)
    if kind == 3:
        return f"{inner}|{rng.choice(FILTERS)}"
    if kind == 4:
        return f"({inner}).{rng.choice(METHODS)}"
    if kind == 5:
        return f"({inner} is {rng.choice(('', 'not '))}{rng.choice(TESTS)})"
    other = expression(rng, depth + 1)
    if kind == 6:
        return f"({inner} {rng.choice(OPERATORS)} {other})"
    if kind == 7:
        return f"{inner}[{rng.choice(('', ':', other, '1:', '::-1', '::0', ':10**9'))}]"
    return rng.choice((f"[{inner}, {other}]", f"{{{inner}: {other}}}", f"({inner} if {other} else 1)", f"f({inner})"))


def template(rng: random.Random, depth=0) -> str:
    """A few statements and texts."""
    parts = []
    for _ in range(rng.randrange(1, 4)):
        kind, e = rng.randrange(9), expression(rng)
        body = template(rng, depth + 1) if depth < 3 else "x"
        dash, end = rng.choice(("", "-")), rng.choice(("", "-"))
        parts.append(
            (
                f"{{{{{dash} {e} {end}}}}}",
                f"{{%{dash} for m in {e} {end}%}}{body}{{% endfor %}}",
                f"{{%{dash} if {e} {end}%}}{body}{{% else %}}y{{% endif %}}",
                f"{{% set ns = namespace(x={e}) %}}{{% set ns.x = {expression(rng)} %}}",
                f"{{% macro f(a, b={e}) %}}{body}{{% endmacro %}}{{{{ f({expression(rng)}) }}}}",
                f"{{% set v %}}{body}{{% endset %}}{{{{ v }}}}",
                rng.choice(BROKEN) if rng.random() < 0.3 else "text \n",
                f"{{% generation %}}{body}{{% endgeneration %}}",
                f"{{% filter {rng.choice(FILTERS)} %}}{body}{{% endfilter %}}",
            )[kind]
        )
    return "".join(parts)


def value(rng: random.Random, depth=0):
    """Some JSON."""
    texts = ("", "hi", "a</think>b", "é\n🎉", "<|im_end|>", "{{ 1 }}", "\0", " x ")
    kind = rng.randrange(8) if depth < 3 else rng.randrange(4)
    if kind < 3:
        return rng.choice(texts)
    if kind == 3:
        return rng.choice((None, True, 0, -5, 1.5, 1e300, 10**30, [], {}))
    if kind < 6:
        return {rng.choice(("type", "text", "a", "function")): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(3))]


def message(rng: random.Random):
    """A message, mostly of a form that is allowed."""
    if rng.random() < 0.03:
        return value(rng)
    made = {"role": rng.choice(ROLES), "content": value(rng) if rng.random() < 0.15 else rng.choice(("hi", "", "a\nb"))}
    if rng.random() < 0.2:
        made["content"] = [{"type": "text", "text": rng.choice(("one", ""))} for _ in range(rng.randrange(3))]
    for key in ("reasoning_content", "name", "tool_call_id"):
        if rng.random() < 0.1:
            made[key] = value(rng) if rng.random() < 0.2 else "t"
    if rng.random() < 0.1:
        function = {"name": "f", "arguments": rng.choice(("{}", '{"a": 1}', "not JSON", "[" * 3000, value(rng)))}
        made["tool_calls"] = rng.choice(([{"type": "function", "function": function}], value(rng)))
    return made


def generate(rng: random.Random) -> bytes:
    """A request with its template, as JSON."""
    kinds = (vocab.qwen3_template, lambda: "", lambda: template(rng), lambda: template(rng), lambda: template(rng))
    text = rng.choice(kinds)()
    if text and rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((*BROKEN, text[at + rng.randrange(20) :]))
    request = {
        "template": text,
        "messages": [message(rng) for _ in range(rng.randrange(4))],
        "begin": rng.random() < 0.5,
    }
    request["tools"] = rng.choice((None, None, [], value(rng), [{"type": "function", "function": {"name": "f"}}]))
    request["kwargs"] = rng.choice((None, {}, {"enable_thinking": rng.choice((True, False, "x"))}, {"a": value(rng)}))
    return json.dumps(request).encode()


def run(case: bytes):
    """Render a request; ChatML, where there is no template, must be what it says."""
    try:
        request = json.loads(case)
        parts = [request[key] for key in ("template", "messages", "begin", "tools", "kwargs")]
    except (ValueError, TypeError, KeyError):
        return  # a shortened input that is no request any more
    text, messages, begin, tools, kwargs = parts
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for problem in template_problems(text):
            assert problem, "a problem without words"
        try:
            prompt = Template(text).render(messages, begin, tools, kwargs)
        except BankmlError as error:
            prompt = error
    assert not warned, f"a warning: {warned[0].message}"
    if isinstance(prompt, BankmlError):
        assert str(prompt), "an error without words"
        return
    assert isinstance(prompt, str)
    plain = all(isinstance(m.get("content"), str) and m["role"] not in ("developer", "assistant") for m in messages)
    if text == "" and plain and not tools:
        want = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        assert prompt == want + ("<|im_start|>assistant\n" if begin else ""), "ChatML is not ChatML"


if __name__ == "__main__":
    from testing.fuzzing import command

    sys.exit(command("template", generate, run))
