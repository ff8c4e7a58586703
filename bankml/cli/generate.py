"""`bankml generate`: answer one prompt. stdout carries the answer alone; everything else goes to stderr."""

import json
import os
import secrets
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

from bankml import environment
from bankml.cli import card_words, flags, given
from bankml.cli.opening import open_engine, open_prompts, put, say, template
from bankml.cli.signals import Interrupts
from bankml.errors import UsageError
from bankml.snapshot import LOADING, Snapshot

NO_VIEW = SimpleNamespace(leave=lambda: None)  # in the place of a live view, where none was asked for

NOTES = """\
The prompt goes through the model's chat template as a user message. Without
PROMPT it is read from -f FILE (less one newline at its end, as llama.cpp does)
or from stdin, all of it. It is taken as it is: a backslash is a backslash.
Ctrl-C keeps what was generated, and exits with 130.
"""


def arguments(parser):
    """What the command takes."""
    parser.epilog = NOTES
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; '-' is all of stdin")
    flags.model(parser)
    parser.add_argument("-f", "--file", type=flags.text, metavar="FILE", help="read the prompt from FILE")
    flags.length(parser)
    flags.sampling(parser)
    group = parser.add_argument_group("prompt")
    group.add_argument("--raw", action="store_true", help="take the prompt as it is, without the chat template")
    flags.asking(group)
    flags.machine(parser)
    flags.live(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object when the answer is complete")


def run(args) -> int:
    """Answer; 0, or 130 (143) after Ctrl-C (SIGTERM) with what was generated kept and the statistics told."""
    if args.raw and (args.system is not None or args.no_think):
        raise UsageError("--raw takes the prompt as it is; --system and --no-think go with a chat template")
    environment.check()
    card_words.wanted(args)
    with Interrupts() as interrupts:
        answer = Answer(args, interrupts)
        try:
            answer.load()
            answer.write()
        except KeyboardInterrupt:
            interrupts.ignore()
            answer.break_off()
        else:
            interrupts.ignore()
        finally:
            answer.view.leave()
        answer.end()
        return interrupts.exit_code if answer.interrupted else 0


class Answer:
    """One run of the command: loads, writes the answer as it comes, and tells how it went."""

    def __init__(self, args, interrupts):
        self.args, self.interrupts = args, interrupts
        self.started, self.loaded_at = process_started(), None
        self.seed = secrets.randbelow(flags.MAX_SEED + 1) if args.seed is None else args.seed
        self.weights = self.generation = None
        self.n_prompt, self.text, self.written, self.interrupted = 0, "", "", False
        self.on_terminal = not args.json and sys.stdout.isatty()
        self.view, self.streams = NO_VIEW, not args.json

    def load(self):
        """Read the prompt and the model; the prompt is checked before anything is computed."""
        from bankml.kv_cache import KvType

        args = self.args
        kind = KvType.from_environment(args.cache_type)
        prompt = read_prompt(args)
        prompts = open_prompts(args)
        params = flags.params(args, prompts.header.kv, seed=self.seed)
        tokens = prompts.tokens(prompt) if args.raw else prompts.tokens(messages(prompt, args), template(args))
        self.n_prompt = len(tokens)
        self.interrupts.check()
        if args.live:
            self._watch(prompts.header.path.stem)
        engine = open_engine(args, prompts, kind, cache_ram=0, lost=self.view.leave)
        self.weights = engine.weights
        self.generation = engine.generate(tokens, params, max_tokens=args.max, stop=args.stop)
        self.loaded_at = time.monotonic()
        self.interrupts.check()

    def write(self):
        """Generate to the end; unless --json, write and flush whole characters as they come."""
        for step in self.generation:
            self.text += step.text
            if step.text and self.streams:
                with self.interrupts.held():
                    self._put(step.text)
            self.interrupts.check()

    def _watch(self, model):
        """Start the live view. Where it is on the answer's own terminal, the answer comes when that is free again."""
        from bankml.dashboard import Live

        def look():
            snapshot = self.generation.engine.snapshot() if self.generation else Snapshot(model=model, state=LOADING)
            return replace(snapshot, answer=self.text)

        self.view = Live(look)
        self.streams = self.streams and not (self.view.terminal and self.on_terminal)
        self.view.start()

    def _put(self, text):
        self.written += text
        put(text, self.on_terminal)

    def break_off(self):
        """After an interrupt: whatever of the answer is not on stdout yet goes there."""
        self.interrupted = self.generation is None or self.generation.finish_reason is None
        if self.generation is not None:
            self.text = self.generation.text

    def end(self):
        """What has not been written yet: the answer that a live view was before, the JSON object, the statistics."""
        if not self.args.json:
            self._put(self.text[len(self.written) :])
        if self.args.json:
            sys.stdout.buffer.write(json.dumps(self.report()).encode() + b"\n")
            sys.stdout.buffer.flush()
        elif self.on_terminal and not self.written.endswith("\n"):
            print(flush=True)
        report = self.report()
        say(statistics(report, getattr(self.weights, "threads", None)))
        for line in card_words.statistics(report["gpu"]):
            say(line)

    def report(self) -> dict:
        """The object `--json` prints; seconds with microseconds."""
        generation, now = self.generation, time.monotonic()
        first = generation.first_token_at if generation else None
        seconds = {
            "load_s": (self.loaded_at or now) - self.started,
            "prompt_s": generation.prompt_s if generation else 0.0,
            "decode_s": generation.decode_s if generation else 0.0,
            "first_token_s": None if first is None else first - self.started,
        }
        return {
            "text": generation.text if generation else "",
            "tokens": generation.tokens if generation else [],
            "seed": self.seed,
            "finish_reason": "interrupted" if self.interrupted else generation.finish_reason,
            "prompt_tokens": self.n_prompt,
            "completion_tokens": len(generation.tokens) if generation else 0,
            **{name: value if value is None else round(value, 6) for name, value in seconds.items()},
            "devices": list(self.weights.devices) if self.weights else [],
            "gpu": self.weights.card_report() if self.weights else None,
        }


def statistics(report, threads) -> str:
    """The line that ends a run."""
    parts = [f"load {report['load_s']:.2f} s"]
    if report["first_token_s"] is None:
        parts.append(f"prompt {report['prompt_tokens']} tokens")
    else:
        parts.append(f"prompt {report['prompt_tokens']} tokens at {_rate(report['prompt_tokens'], report['prompt_s'])}")
        parts.append(f"first token at {report['first_token_s']:.2f} s")
    decoded = report["completion_tokens"]
    parts.append(
        f"answer {decoded} tokens at {_rate(decoded - 1, report['decode_s'])}"
        if decoded > 1
        else f"answer {decoded} tokens"
    )
    parts.append(f"seed {report['seed']}")
    if threads:
        parts.append(f"{threads} threads")
    if report["finish_reason"] != "stop":
        parts.append({"length": "stopped at the limit", "interrupted": "interrupted"}[report["finish_reason"]])
    return ", ".join(parts)


def _rate(tokens, seconds):
    return f"{tokens / seconds:.1f} tokens/s" if seconds > 0 else "no time at all"


def read_prompt(args) -> bytes:
    """The prompt's bytes, at least one: the argument, FILE less one newline at its end, or all of stdin."""
    prompt = _given_prompt(args)
    if not prompt:
        raise UsageError("the prompt is empty")
    return prompt


def _given_prompt(args) -> bytes:
    if args.file is not None:
        if args.prompt is not None:
            raise UsageError("give the prompt either as an argument or with -f, not both")
        try:
            with open(args.file, "rb") as file:
                return given.read(file, args.file, given.MAX_PROMPT).removesuffix(b"\n")
        except OSError as error:
            raise UsageError(f"{args.file}: {error.strerror}") from None
    if args.prompt not in (None, "-"):
        return os.fsencode(args.prompt)
    if sys.stdin is None or (args.prompt is None and sys.stdin.isatty()):
        raise UsageError("no prompt: give it as an argument, with -f FILE, or on stdin")
    if data := given.stdin(given.MAX_PROMPT):
        return data
    raise UsageError("no prompt: stdin is empty")


def messages(prompt: bytes, args) -> list[dict]:
    """The prompt as a user message; bytes that are not UTF-8 are carried along, for the tokenizer."""
    user = {"role": "user", "content": prompt.decode("utf-8", "surrogateescape")}
    return [user] if args.system is None else [{"role": "system", "content": args.system}, user]


def process_started() -> float:
    """When this process began, on the clock of `time.monotonic`; now, where Linux does not tell."""
    now = time.monotonic()
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return now
    return now - age if 0 <= age < 3600 else now
