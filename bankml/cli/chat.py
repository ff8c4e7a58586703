"""`bankml chat`: a conversation. stdout carries the answers alone; everything else goes to stderr."""

import contextlib
import signal
import sys
from dataclasses import replace

from bankml import environment
from bankml.cli import card_words, flags
from bankml.cli.lines import Lines
from bankml.cli.opening import open_engine, open_prompts, put, say, template
from bankml.conversation import Conversation
from bankml.errors import UsageError

NOTES = """\
What you type goes to the model when the line ends. A line that ends with a
backslash goes on in the next; between two lines of three double quotes there
may be anything, and what begins with a slash is no command there.
Ctrl-C stops an answer, which is kept as far as it came; Ctrl-D or /exit leaves.
Where stdin is no terminal, each input is answered in turn.

commands:
  /reset         forget the conversation, but for the system message
  /system TEXT   set the system message; without TEXT show it, with "" take it away
  /save FILE     write the conversation to FILE, as JSON
  /load FILE     go on with a conversation that was saved
  /stats         speed and counts of the last answer, and what the context holds
  /help          this list
  /exit          leave
"""
HELP = NOTES.partition("commands:\n")[2]
TERMINATED = 143


def arguments(parser):
    """What the command takes."""
    parser.epilog = NOTES
    flags.model(parser)
    flags.length(parser)
    flags.sampling(parser)
    flags.asking(parser.add_argument_group("prompt"))
    flags.machine(parser)
    flags.live(parser)


def run(args) -> int:
    """Converse until the input ends; 0, or 1 where stdin is no terminal and something was refused."""
    from bankml.kv_cache import KvType

    environment.check()
    card_words.wanted(args)
    kind = KvType.from_environment(args.cache_type)
    lines = Lines()
    prompts = open_prompts(args)
    params = flags.params(args, prompts.header.kv)
    views = []  # the live view, if there is one

    def lost():
        for view in views:
            view.leave()

    with ended_by_sigterm(), open_engine(args, prompts, kind, lost=lost) as engine:
        chat = Chat(args, engine, params, lines, views)
        if lines.on_terminal:
            say(f"{engine.name}, context of {engine.n_ctx} tokens; /help lists the commands, Ctrl-D leaves")
        return chat.converse()


@contextlib.contextmanager
def ended_by_sigterm():
    """SIGTERM leaves as an exception does, so that the terminal is given back as it was."""

    def leave(number, frame):
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Chat:
    """The conversation, and what a line of input does with it."""

    def __init__(self, args, engine, params, lines, views):
        self.args, self.engine, self.params, self.lines, self.views = args, engine, params, lines, views
        self.talk = Conversation(args.system)
        self.last = None  # the last answer's Generation
        self.on_terminal, self.refused = sys.stdout.isatty(), False
        self.commands = {
            "reset": self.reset,
            "system": self.system,
            "save": self.save,
            "load": self.load,
            "stats": self.stats,
            "help": self.help,
        }

    def converse(self) -> int:
        """Inputs to the end; the exit code."""
        while True:
            try:
                said = self.lines.read()
                if said is None or (said.text.strip() in ("/exit", "/quit") and not said.quoted):
                    return int(self.refused and not self.lines.on_terminal)
                self.take(*said)
            except UsageError as error:
                self.refused = True
                say(error)
            except KeyboardInterrupt:
                if not self.lines.on_terminal:
                    raise
                print("\n(Ctrl-D or /exit leaves)", file=sys.stderr, flush=True)

    def take(self, text: str, quoted: bool):
        """One input: a command, or something to answer."""
        if text.startswith("/") and not quoted:
            name, _, rest = text[1:].partition(" ")
            command = self.commands.get(name.strip())
            if command is None:
                raise UsageError(f"no command /{name}; /help lists them (a message may begin with a space)")
            command(rest.strip())
        elif text.strip():
            self.answer(text)

    def answer(self, text: str):
        """Ask, and write the answer as it comes; kept is the turn that was answered, as far as it was."""
        generation = self.engine.generate(
            self.talk.asked(text),
            self.params,
            max_tokens=self.args.max,
            stop=self.args.stop,
            template=template(self.args),
        )
        self.last, parts = generation, []
        with generation, stopped_by_ctrl_c(generation), self._view(parts) as hides:
            for step in generation:
                parts.append(step.text)
                if step.text and not hides:
                    put(step.text, self.on_terminal)
        if hides:
            put(generation.text, self.on_terminal)
        put("" if self.on_terminal and generation.text.endswith("\n") else "\n", False)
        stopped = generation.finish_reason == "cancelled"
        if generation.tokens or not stopped:
            self.talk.add(text, generation.text)
        if stopped:
            say("stopped; the answer is kept as far as it came" if generation.tokens else "stopped; nothing is kept")
            if not self.lines.on_terminal:
                raise KeyboardInterrupt
        elif generation.finish_reason == "length" and generation.max_tokens is None:
            say("the context is full: /reset begins anew, --ctx makes it larger")

    @contextlib.contextmanager
    def _view(self, parts):
        """The live view, if it is wanted, of an answer in parts; yields whether it hides the answer till its end."""
        if not self.args.live:
            yield False
            return
        from bankml.dashboard import Live

        with Live(lambda: replace(self.engine.snapshot(), answer="".join(parts))) as live:
            self.views[:] = [live]
            yield live.terminal and self.on_terminal

    def reset(self, rest: str):
        """/reset"""
        _nothing("reset", rest)
        self.talk.reset()
        say("the conversation begins anew")

    def system(self, rest: str):
        """/system [TEXT]"""
        if not rest:
            say("no system message" if self.talk.system is None else f"the system message is: {self.talk.system}")
            return
        self.talk.system = None if rest == '""' else rest
        say("the system message is " + ("taken away" if rest == '""' else "set"))

    def save(self, rest: str):
        """/save FILE"""
        self.talk.save(_file("save", rest))
        say(f"{rest}: {self.talk.turns} turns saved")

    def load(self, rest: str):
        """/load FILE"""
        self.talk = Conversation.load(_file("load", rest))
        say(f"{rest}: {self.talk.turns} turns loaded")

    def stats(self, rest: str):
        """/stats"""
        _nothing("stats", rest)
        for line in statistics(self.engine, self.last):
            say(line)

    def help(self, rest: str):
        """/help"""
        print(HELP, end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def stopped_by_ctrl_c(generation):
    """Ctrl-C cancels the answer: it ends within a token, or a layer of the prompt, with everything in order."""
    before = signal.signal(signal.SIGINT, lambda number, frame: generation.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _nothing(command, rest):
    if rest:
        raise UsageError(f"/{command} stands alone, without {rest!r}")


def _file(command, rest) -> str:
    if not rest:
        raise UsageError(f"/{command} takes the name of a file")
    return rest


def statistics(engine, generation) -> list[str]:
    """Lines on the last answer and on what the engine holds."""
    now = engine.snapshot()
    lines = []
    if generation is not None:
        computed = len(generation.prompt) - (generation.cached or 0)
        lines += [
            f"prompt {len(generation.prompt)} tokens, {generation.cached or 0} of them cached, "
            f"{_rate(computed, generation.prompt_s)}; answer {len(generation.tokens)} tokens, "
            f"{_rate(len(generation.tokens) - 1, generation.decode_s)}; seed {generation.sampler.seed}"
        ]
    held = now.cache
    if held is not None:
        lines += [f"context {held.cells} of {engine.n_ctx} tokens, {held.bytes / 1e6:.1f} MB of {held.kind} cells"]
    if now.prompt_cache is not None:
        kept = now.prompt_cache
        lines += [f"{kept.hits} of {kept.lookups} prompts found their beginning, which spared {kept.tokens} tokens"]
    return lines or ["nothing was asked yet"]


def _rate(tokens, seconds):
    return f"{tokens / seconds:.1f} tokens/s" if tokens > 0 and seconds > 0 else "no rate"
