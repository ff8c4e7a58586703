"""Messages to a prompt, as the reference server's `/apply-template` makes it: the file's own Jinja template, or ChatML.

Around the template stand the reference's rules (llama.cpp b11192, `common/chat.cpp`): what a message may hold, text
parts joined by newlines, `developer` as `system`, tool arguments as objects, a last assistant message that is
continued, and what `enable_thinking` is where nobody sets it.
"""

import json
import re
import time
from functools import cached_property

from bankml.errors import Refused, UsageError

CHATML = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
KEY = "tokenizer.chat_template"

# Texts put into a template to see what it makes of them.
USER, ANSWER, THOUGHT, ARGUMENT = "U_ASKS a thing END_U", "A_SAYS a thing END_A", "T_THINKS a thing END_T", "ARGUMENT_V"
MARKER = r"(?:<[^>]*>|\[[^\]]*\])"


def render(messages, source=None, add_generation_prompt=True, tools=None, **kwargs) -> str:
    """The prompt for a list of messages.

    `source` is a `Template`, a GGUF `Header`, a template's text, or None for ChatML. `kwargs` are the template's own
    variables, such as `enable_thinking`. Raises UsageError for messages that cannot be rendered, Refused for a
    broken, hostile or too costly template.
    """
    template = source if isinstance(source, Template) else Template.of(source)
    return template.render(messages, add_generation_prompt, tools, kwargs)


def template_problems(text: str) -> list[str]:
    """What is wrong with a template, without running it: broken syntax, a reach for Python's inside."""
    from bankml.sandbox import problems

    return problems(text)


class Template:
    """A chat template, with the texts of its file's start and end tokens."""

    def __init__(self, text=None, bos="", eos="", add_bos=False, add_eos=False):
        self.text = CHATML if text in (None, "", "chatml") else text
        self.bos, self.eos, self.add_bos, self.add_eos = bos, eos, add_bos, add_eos

    @classmethod
    def of(cls, source, with_tools=False) -> "Template":
        """From a header, a template's text or None. With tools, a file's template named `tool_use` comes first."""
        if source is None or isinstance(source, str):
            return cls(source)
        from bankml.vocabulary import end_texts

        kv, key = source.kv, KEY
        if with_tools and f"{KEY}.tool_use" in kv:
            key = f"{KEY}.tool_use"
        if key in kv and kv.kind(key) != "str":
            raise Refused(f"{key} is {kv.kind(key)}, not a string")
        return cls(kv.get(key), *end_texts(kv))

    def render(self, messages, add_generation_prompt=True, tools=None, kwargs=None) -> str:
        """See `render`."""
        from bankml.template_budget import budget

        messages = _parse_messages(messages)
        tools, kwargs = _parse_tools(tools), dict(kwargs or {})
        if isinstance(kwargs.get("enable_thinking"), str):
            raise UsageError('invalid type for "enable_thinking" (expected boolean, got string)')
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if last:
            if [message["role"] for message in messages[-2:]] == ["assistant"] * 2:
                raise UsageError("cannot have 2 or more assistant messages at the end of the list")
            if "tool_calls" in last:
                raise UsageError("cannot continue an assistant message that contains tool calls")
            messages = messages[:-1]
        with budget.rendering([self.text, messages, tools, kwargs]):
            messages = self._fitted(messages)
            kwargs = {"enable_thinking": self.thinks, "preserve_reasoning": True} | kwargs
            prompt = self._run(messages, add_generation_prompt and not last, tools, kwargs)
            if last and (last["content"] or "reasoning_content" in last or "name" in last or "tool_call_id" in last):
                prompt += self._opening(messages, tools, kwargs, last)
        return prompt

    def _run(self, messages, add_generation_prompt, tools=None, kwargs=None) -> str:
        from bankml import sandbox

        now = time.localtime()
        variables = {
            "messages": messages,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "datetime": time.strftime("%b %d %Y", now),
            "date_string": time.strftime("%d %b %Y", now),
        }
        variables |= {"tools": tools} if tools else {}
        variables |= kwargs or {}
        variables |= {"add_generation_prompt": True} if add_generation_prompt else {}
        text = sandbox.run(self.text, variables | _implied(variables))
        text = text.removeprefix(self.bos) if self.add_bos else text
        return text.removesuffix(self.eos) if self.add_eos else text

    def _try(self, messages, add_generation_prompt=False, tools=None, **kwargs) -> str | None:
        """A rendering that only looks what the template does; None where it fails."""
        try:
            return self._run(messages, add_generation_prompt, tools, kwargs)
        except UsageError:
            return None

    def _opening(self, messages, tools, kwargs, last) -> str:
        """How an answer that goes on with `last` begins: what the template puts before one, then the message itself."""
        without, opening = (self._run(messages, flag, tools, kwargs) for flag in (False, True))
        same = next((i for i, (a, b) in enumerate(zip(without, opening, strict=False)) if a != b), len(without))
        opening = opening[same:]
        content = _joined(last["content"], "\n\n")
        thought = last.get("reasoning_content", "")
        goes_on = bool(last["content"]) or not thought
        start, end = self._thinking
        if start:
            opening = opening.partition(start)[0] + start + thought + (end if goes_on else "")
        return opening + (content if goes_on else "")

    @property
    def thinks(self) -> bool:
        """Whether the template knows reasoning, which then is on by default."""
        return any(self._thinking)

    @cached_property
    def _thinking(self) -> tuple[str, str]:
        """What stands before and after the reasoning in an answer, white space included; empty where nothing is."""
        if all(tag in self.text for tag in ("<tool_call>", "<function=", "<parameter=")):
            return ("<think>\n", "\n</think>\n\n") if "<think>" in self.text else ("", "")
        start, end = self._seen_thinking()
        if not start and not end and "content.split('</think>')" in self.text and "reasoning_content" not in self.text:
            return "<think>", "</think>"
        return start, end

    def _seen_thinking(self) -> tuple[str, str]:
        """What shows of `_thinking` when the template is tried with and without reasoning."""
        user = {"role": "user", "content": USER}
        answer = {"role": "assistant", "content": ANSWER}
        shown = self._try([user, answer | {"reasoning_content": THOUGHT}], enable_thinking=True)
        if shown and THOUGHT in shown and self._try([user, answer], enable_thinking=True) is not None:
            if found := re.search(rf"({MARKER}\s*){THOUGHT}(\s*{MARKER}\s*)", shown):
                return found[1], found[2]
            if found := re.search(rf"{THOUGHT}\s*({MARKER}\s*)", shown):
                return "", found[1]
        off = self._try([user], True, enable_thinking=False)
        on = self._try([user], True, enable_thinking=True)
        if off is None or on is None or off == on:
            return "", ""
        if on.startswith(off):
            return (on[len(off) :], "") if on[len(off) :].strip() else ("", "")
        if off.startswith(on):
            end = off[len(on) :]
            found = re.search(rf"({MARKER})\s*$", on) if re.fullmatch(MARKER, end.strip()) else None
            return (found[1] if found else "", end) if end.strip() else ("", "")
        found = re.search(rf"({MARKER})\s*({MARKER})\s*$", off.rpartition(on[-64:])[2])
        return (found[1], found[2]) if found else ("", "")

    def _fitted(self, messages) -> list[dict]:
        """The messages in the forms that this template takes."""
        roles = {"developer": "system"} if "<|channel|>" not in self.text else {}
        fitted = [message | {"role": roles.get(message["role"], message["role"])} for message in messages]
        strings, parts = self._contents
        for message in fitted:
            content = message["content"]
            if isinstance(content, list) and not parts:
                message["content"] = _joined(content, "\n")
            elif isinstance(content, str) and parts and not strings:
                message["content"] = [{"type": "text", "text": content}]
            if "tool_calls" in message and self._object_arguments:
                message["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
        if fitted and fitted[0]["role"] == "system" and not self._takes_system:
            first, *fitted = fitted
            if fitted:
                texts = [_joined(message["content"], "\n") for message in (first, fitted[0])]
                fitted[0] = fitted[0] | {"content": "\n".join(texts)}
        return fitted

    @cached_property
    def _contents(self) -> tuple[bool, bool]:
        """Whether the template takes a message's content as a string, and as a list of parts."""
        string = self._try([{"role": "user", "content": USER}], True)
        parts = self._try([{"role": "user", "content": [{"type": "text", "text": USER}]}], True)
        return bool(string and USER in string), bool(parts and USER in parts and "'text'" not in parts)

    @cached_property
    def _takes_system(self) -> bool:
        messages = [{"role": "system", "content": ANSWER}, {"role": "user", "content": USER}]
        if self._contents == (False, True):
            messages = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]
        shown = self._try(messages, True)
        return bool(shown and ANSWER in shown)

    @cached_property
    def _object_arguments(self) -> bool:
        """Whether the template reads the arguments of a tool call as an object."""
        call = {"id": "call00001", "type": "function", "function": {"name": "tool1", "arguments": {"arg": ARGUMENT}}}
        schema = {"type": "object", "properties": {"arg": {"type": "string", "description": "d"}}, "required": ["arg"]}
        tool = {"type": "function", "function": {"name": "tool1", "description": "d", "parameters": schema}}
        user, answer = {"role": "user", "content": USER}, {"role": "assistant", "content": ANSWER}
        result = {"role": "tool", "content": ANSWER, "tool_call_id": "call00001"}
        messages = [user, {"role": "assistant", "content": "", "tool_calls": [call]}, result, answer, user]
        shown = self._try(messages, True, [tool])
        return bool(shown and ARGUMENT in shown)


def _implied(variables) -> dict:
    """Variables that follow from others: templates have several names for one thing."""
    implied = {}
    if isinstance(keep := variables.get("preserve_reasoning"), bool):
        implied |= {"preserve_thinking": keep} | dict.fromkeys(
            ("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep
        )
    if isinstance(effort := variables.get("reasoning_effort"), str) and effort:
        implied |= {"reasoning_strength": effort}
    return implied


def _joined(content, between) -> str:
    """Text parts as one text; nothing stands between empty text and what follows it."""
    if isinstance(content, str):
        return content
    text = ""
    for part in content:
        text += (between if text else "") + part["text"]
    return text


def _with_object(call) -> dict:
    """A tool call whose arguments are an object."""
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the arguments of a tool call are no JSON: {error}") from None
    return call | {"function": call["function"] | {"arguments": arguments}}


def _parse_messages(messages) -> list[dict]:
    if not isinstance(messages, list):
        raise UsageError("'messages' must be an array")
    return [_parse_message(message, f"message {i}") for i, message in enumerate(messages)]


def _parse_message(message, where) -> dict:
    """One message with the keys that count, `content` always among them: a string, or a list of text parts."""
    if not isinstance(message, dict):
        raise UsageError(f"{where} must be an object")
    role = message.get("role")
    if not isinstance(role, str):
        raise UsageError(f"{where} needs a 'role', a string")
    if "content" not in message and not (role == "assistant" and "tool_calls" in message):
        raise UsageError(f"{where} ({role}) must contain 'content'")
    parsed = {"role": role, "content": _parse_content(message.get("content"), where)}
    for key in ("reasoning_content", "name", "tool_call_id"):
        value = message.get(key, "")
        if not isinstance(value, str):
            raise UsageError(f"{where}: '{key}' must be a string")
        parsed |= {key: value} if value else {}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, (list, str)):
            raise UsageError(f"{where}: 'tool_calls' must be an array")
        parsed["tool_calls"] = [_parse_call(call, where) for call in calls]
    return parsed


def _parse_content(content, where) -> str | list[dict]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UsageError(f"{where}: 'content' must be a string or an array")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise UsageError(f"{where} has a part of type {kind!r}; bankml takes text only, no images, audio or video")
        if not isinstance(part.get("text"), str):
            raise UsageError(f"{where} has a text part without 'text'")
    return [{"type": "text", "text": part["text"]} for part in content] or ""


def _parse_call(call, where) -> dict:
    function = call.get("function") if isinstance(call, dict) and call.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or "arguments" not in function:
        raise UsageError(f"{where}: a tool call needs type 'function' and a function with name and arguments")
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    parsed = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return parsed | ({"id": call["id"]} if isinstance(call.get("id"), str) and call["id"] else {})


def _parse_tools(tools) -> list[dict]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise UsageError("'tools' must be an array")
    parsed = []
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"tool {i} needs type 'function' and a function with a name")
        kept = {"name": function["name"], "description": function.get("description", "")}
        parsed.append({"type": "function", "function": kept | {"parameters": function.get("parameters", {})}})
    return parsed
