"""The `bankml` command: finds the subcommand, loads its module alone, turns errors into one line and an exit code."""

import argparse
import os
import platform
import sys
from importlib import import_module

from bankml.errors import BankmlError
from bankml.version import __version__

# name -> what it does; the module of the same name (with _ for -) has `arguments(parser)` and `run(args) -> int`.
COMMANDS = {
    "generate": "answer a prompt",
    "guard": "say whether a file is safe to load, and why not",
    "info": "print what a model file says of itself",
    "verify": "check a whole model file, then print its SHA-256",
    "tokenize": "token ids of the text on stdin",
    "chat-template": "the prompt a model's chat template makes of messages on stdin",
    "pull": "fetch a known model by name",
    "models": "list the models at hand",
    "convert": "rewrite a model as F16, Q1_0 or Q2_0",
    "oracle": "compare a model with the reference, bit for bit",
    "bench": "measure this machine against the reference",
}

INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors leave with exit code 1, in one line."""

    def error(self, message):
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(1)


def _module(command):
    return import_module(f"bankml.cli.{command.replace('-', '_')}")


def parser(only=None):
    """The argument parser; `only` names the one subcommand whose arguments are needed, None means all of them."""
    top = _Parser(
        prog="bankml",
        description="1-bit, ternary and F16 language models with exactly the bits of llama.cpp b11192.",
        epilog="'bankml COMMAND --help' tells more about a command.",
    )
    top.add_argument("--version", action="version", version=f"bankml {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if only in (None, name):
            _module(name).arguments(sub)
    return top


def main(argv=None) -> int:
    """Run one command line; returns the exit code (see docs/cli.md)."""
    argv = sys.argv[1:] if argv is None else argv
    command = next((word for word in argv if not word.startswith("-")), "")
    top = parser(only=command)
    args = top.parse_args(argv)
    if args.command is None:
        top.print_help(sys.stderr)
        return 1
    if sys.platform != "linux" or platform.machine() != "x86_64":
        print("bankml: the bits are proved on Linux x86-64 only; here they are not", file=sys.stderr)
    try:
        return _module(args.command).run(args) or 0
    except BankmlError as error:
        print(f"bankml: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as error:
        print(f"bankml: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _closed_pipe() -> int:
    """The reader of our output has left: say nothing, and keep the interpreter's last flush from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def console():
    """Entry point of the `bankml` script: leaves with the command's exit code."""
    code = main()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _closed_pipe()
    sys.exit(code)
