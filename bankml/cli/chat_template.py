"""`bankml chat-template FILE < messages.json`: the prompt that a model's chat template makes."""

import json
import sys

from bankml.cli import flags, given
from bankml.errors import UsageError


def arguments(parser):
    """Declare the command's arguments."""
    parser.add_argument("file", type=flags.text, metavar="FILE", help="a GGUF model or vocabulary")


def run(args) -> int:
    """Read messages from stdin and write the prompt's bytes, with no newline added."""
    from bankml.chat import Template
    from bankml.gguf import read_header

    header = read_header(args.file)
    request = _request(given.stdin())
    template = Template.of(header, with_tools=bool(request.get("tools")))
    prompt = template.render(
        request["messages"],
        request.get("add_generation_prompt", True) is not False,
        request.get("tools"),
        request.get("chat_template_kwargs"),
    )
    sys.stdout.buffer.write(prompt.encode())
    return 0


def _request(raw: bytes) -> dict:
    """stdin as a request: a list is its messages."""
    try:
        request = json.loads(raw.decode("utf-8"))
        json.dumps(request, ensure_ascii=False).encode()  # half a surrogate pair is no character, and no JSON either
    except (ValueError, RecursionError) as error:
        raise UsageError(f"stdin is no JSON: {error}") from None
    if isinstance(request, list):
        request = {"messages": request}
    if not isinstance(request, dict) or "messages" not in request:
        raise UsageError("stdin must hold a JSON array of messages, or an object with 'messages'")
    if not isinstance(request.get("chat_template_kwargs") or {}, dict):
        raise UsageError("'chat_template_kwargs' must be an object")
    return request
