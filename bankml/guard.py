"""The guard: may a model file be loaded? Judged by its structure, its data, `plan` and its chat template."""

import re
from collections import Counter
from dataclasses import dataclass, field

from bankml.errors import NeedMore, Refused
from bankml.gguf import Header, check_spans, printable, read_header
from bankml.plan import Plan, plan

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_CHECKED = 1 << 16  # characters; a longer template is not looked at for its syntax, which would take its time

# An attribute with two underscores is how a template leaves its sandbox, and nothing a prompt needs.
_INTERNAL = re.compile(r"__[A-Za-z0-9_]+__")


@dataclass
class Verdict:
    """`verdict` is "play", "refuse" or "need_more". `notes` are things to know that do not keep the file from playing.

    `header` is None where the file's structure is broken, `plan` where bankml cannot run it.
    """

    verdict: str
    reasons: list[str] = field(default_factory=list)
    header: Header | None = None
    plan: Plan | None = None
    notes: list[str] = field(default_factory=list)

    def types(self) -> dict[str, int]:
        """How many tensors there are of each type, by the type's name."""
        return dict(Counter(tensor.block.name for tensor in self.header.tensors.values())) if self.header else {}

    def check(self) -> "Verdict":
        """Itself if the file plays; otherwise raises Refused or NeedMore with the reasons."""
        if self.verdict == "refuse":
            raise Refused(*self.reasons)
        if self.verdict == "need_more":
            raise NeedMore("; ".join(self.reasons))
        return self


def guard(path, *, template: bool = True) -> Verdict:
    """Judge the model at `path` without reading a weight. Only a missing or unreadable file raises (UsageError).

    `template=False` leaves the chat template out: it is run in a sandbox, so that plain completion may go on.
    """
    try:
        header = read_header(path)
    except Refused as error:
        return Verdict("refuse", error.reasons)
    except NeedMore as error:
        return Verdict("need_more", [str(error)])
    reasons, planned = [], None
    try:
        planned = plan(header)
    except Refused as error:
        reasons = [f"{path}: {reason}" if i == 0 else reason for i, reason in enumerate(error.reasons)]
    notes = []
    if template:
        flagged, notes = check_template(header)
        reasons += flagged
    try:
        check_spans(header)
    except Refused as error:
        return Verdict("refuse", error.reasons + reasons, header, planned, notes)
    except NeedMore as error:
        return Verdict("need_more", [str(error), *reasons], header, planned, notes)
    return Verdict("refuse" if reasons else "play", reasons, header, planned, notes)


def check_template(header: Header) -> tuple[list[str], list[str]]:
    """What the guard says of the chat templates: (reasons to refuse, notes)."""
    reasons, notes = [], []
    for key in header.kv:
        if not key.startswith(TEMPLATE_KEY) or header.kv.kind(key) != "str":
            continue
        text = header.kv[key]
        if internal := _INTERNAL.search(text):
            reasons.append(f"{printable(key[:80])} reaches for Python internals: {printable(internal[0][:64])}")
        elif len(text) <= MAX_CHECKED and (error := _syntax_error(text)):
            notes.append(f"{printable(key[:80])} is broken, chat will not work: {error}")
    return reasons, notes


def _syntax_error(text: str) -> str | None:
    """What is wrong with a template, None if Jinja can read it (with the tags and filters a chat template may use)."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        environment.parse(text)
    except TemplateError as error:
        return printable(f"line {getattr(error, 'lineno', '?')}: {error.message}")
    except RecursionError:
        return "it is nested too deep"
    return None
