"""The guard: may a model file be loaded? Judged by its structure, its data, `plan` and its chat template."""

import re
from collections import Counter
from dataclasses import dataclass, field

from bankml.errors import NeedMore, Refused
from bankml.gguf import Header, check_spans, printable, read_header
from bankml.plan import Plan, plan

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_CHECKED = 1 << 16  # bytes; a longer template is not looked at for its syntax, which would take its time
MAX_TEMPLATES = 1 << 22  # bytes of all templates

# How a template leaves a sandbox: the attributes that lead from any object to Python's own. No prompt needs one.
_INTERNAL = re.compile(
    r"__(?:class|globals|builtins|subclasses|mro|bases?|init|new|import|dict|code|closure|func|self|module|wrapped|"
    r"getattr|getattribute|getitem|call|reduce|reduce_ex|loader|spec|init_subclass|subclasshook)__"
)


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
    keys = [key for key in header.kv if key.startswith(TEMPLATE_KEY) and header.kv.kind(key) == "str"]
    total = sum(header.kv.nbytes(key) for key in keys)
    if total > MAX_TEMPLATES:
        return [f"{TEMPLATE_KEY}: the templates have {total} bytes; {MAX_TEMPLATES} is the most"], []
    reasons, notes = [], []
    for key in keys:
        text = header.kv[key]
        if internal := _INTERNAL.search(text):
            reasons.append(f"{printable(key[:80])} reaches for Python internals: {internal[0]}")
        elif key == TEMPLATE_KEY and len(text) <= MAX_CHECKED:
            notes += _broken(text)
    return reasons, notes


def _broken(text: str) -> list[str]:
    """A note for each thing that keeps the template from being run; plain completion does not need it."""
    from bankml.chat import template_problems

    return [f"{printable(problem)}; plain completion works" for problem in template_problems(text)]
