"""The `bankml` command: finds the subcommand, loads its module alone, turns errors into one line and an exit code."""

import argparse
import errno
import os
import platform
import signal
import sys
from importlib import import_module

from bankml.cli import examples
from bankml.errors import BankmlError
from bankml.version import __version__

# name -> what it does; the module of the same name (with _ for -) has `arguments(parser)` and `run(args) -> int`.
COMMANDS = {
    "generate": "answer a prompt",
    "chat": "have a conversation",
    "guard": "say whether a file is safe to load, and why not",
    "info": "print what a model file says of itself",
    "verify": "check a whole model file, then print its SHA-256",
    "tokenize": "token ids of the text on stdin",
    "chat-template": "the prompt a model's chat template makes of messages on stdin",
    "pull": "fetch a known model by name",
    "models": "list the models at hand",
    "convert": "rewrite a model as F16, Q1_0 or Q2_0",
    "oracle": "compare a model with the reference, bit for bit",
    "serve": "answer over HTTP, for clients of OpenAI and llama-server",
    "top": "show what a server does now",
    "gpu": "list the cards, which are used, and prove them",
    "bench": "measure this machine against the reference",
}

INTERRUPTED, TERMINATED = 130, 143
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that reads the same under every Python: `-m, --model MODEL`."""

    def _format_action_invocation(self, action):
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, action.dest.upper())}"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors leave with exit code 1, in one line.

    Flags in `values_after_equals` take their optional value after "=" alone, so that they cannot swallow what follows.
    """

    values_after_equals: tuple[str, ...] = ()

    def __init__(self, *args, **options):
        super().__init__(*args, formatter_class=_Help, allow_abbrev=False, **options)

    def parse_known_args(self, args=None, namespace=None):
        if args is not None:
            flags = args[: args.index("--")] if "--" in args else args
            args = [f"{word}=" if word in self.values_after_equals else word for word in flags] + args[len(flags) :]
        return super().parse_known_args(args, namespace)

    def format_help(self):
        text = super().format_help()
        for flag in self.values_after_equals:
            text = text.replace(f"{flag} [", f"{flag}[=")
        return text

    def _print_message(self, message, file=None):
        """Help and version; argparse itself would say nothing of a full disk."""
        print(message or "", end="", file=file or sys.stderr)

    def error(self, message):
        _complain(f"{self.prog}: {message} (see {self.prog} --help)")
        raise SystemExit(1)


def _complain(message):
    """One line on stderr, whatever a file name or an argument in it holds."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in message), file=sys.stderr)


def _module(command):
    return import_module(f"bankml.cli.{command.replace('-', '_')}")


def parser(only=None):
    """The argument parser; `only` names the one subcommand whose arguments are needed, None means all of them."""
    top = _Parser(
        prog="bankml",
        description="1-bit, ternary and F16 language models with exactly the bits of llama.cpp b11192.",
        epilog="'bankml COMMAND --help' tells more about a command. To begin with:\n\n"
        '  bankml generate "What is the capital of France?"\n'
        "  bankml guard MODEL.gguf\n"
        "  bankml oracle check MODEL.gguf",
    )
    top.add_argument("--version", action="version", version=f"bankml {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if only in (None, name):
            _module(name).arguments(sub)
            sub.epilog = examples.epilog(name, sub.epilog)
    return top


def main(argv=None) -> int:
    """Run one command line; returns the exit code (see docs/cli.md)."""
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except BankmlError as error:
        _complain(f"bankml: {error}")
        return error.exit_code
    except BrokenPipeError:
        _leave_stdout()  # its reader has what it wanted: say nothing
        return 0
    except (OSError, MemoryError) as error:
        _complain(f"bankml: {_trouble(error)}")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv) -> int:
    command = next((word for word in argv if not word.startswith("-")), "")
    top = parser(only=command)
    args = top.parse_args(argv)
    if args.command is None:
        top.print_help(sys.stderr)
        return 1
    if sys.platform != "linux" or platform.machine() != "x86_64":
        print("bankml: the bits are proved on Linux x86-64 only; here they are not", file=sys.stderr)
    return _module(args.command).run(args) or 0


def _trouble(error: OSError | MemoryError) -> str:
    """What to say of it. What writes files names them in its errors: a full disk without a name is stdout's."""
    if isinstance(error, MemoryError) or (error.errno == errno.ENOMEM and not error.filename):
        return "out of memory; a smaller --ctx or model needs less"
    where = error.filename or ("stdout" if error.errno in FULL else "input/output")
    return f"{where}: {error.strerror or error}"


def _leave_stdout():
    """Nothing more can be written there; keep the interpreter's last flush from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams():
    """A stream closed by the caller (`2>&-`) is None in Python, and `print` to None would go to stdout."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open to the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _leaving_code():
    try:
        return main()
    except SystemExit as leaving:  # argparse, after --help or a usage error
        return leaving.code


def _settle_signals(code):
    """While the interpreter ends, Ctrl-C is no KeyboardInterrupt any more; one more after the first is nothing."""
    interrupted = code in (INTERRUPTED, TERMINATED)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if interrupted else signal.SIG_DFL)


def console():
    """Entry point of the `bankml` script: leaves with the command's exit code."""
    _open_missing_streams()
    try:
        code = _leaving_code()
        _settle_signals(code)
    except KeyboardInterrupt:  # a second one, after the first was dealt with
        code = INTERRUPTED
        _settle_signals(code)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_stdout()
    except OSError as error:
        _leave_stdout()
        if not code:  # else it has been said
            _complain(f"bankml: stdout: {error.strerror}")
        code = code or 1
    sys.exit(code)
