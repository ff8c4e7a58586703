"""`bankml serve`: answer over HTTP, for clients of OpenAI, Ollama and llama-server."""

import logging
import signal
import sys

from bankml import environment
from bankml.cli import card_words, flags
from bankml.cli.opening import open_engine, open_prompts, say
from bankml.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NOTES = """\
Endpoints of OpenAI (/v1/...), Ollama (/api/...) and llama-server;
docs/serve.md lists them. The server listens on this machine alone; for another
--host it wants --api-key, or --insecure where whoever reaches it may ask. SIGTERM
or Ctrl-C stops it: the answer under way has --grace seconds to finish.
"""


def arguments(parser):
    """What the command takes."""
    parser.epilog = NOTES
    flags.model(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", type=flags.text, metavar="HOST", help="(default: 127.0.0.1)")
    group.add_argument(
        "--port",
        type=flags.number(int, 0, 65535, "a whole number from 0 to 65535"),
        default=8080,
        metavar="PORT",
        help="0 takes a free one (default: 8080)",
    )
    group.add_argument(
        "--api-key", type=flags.text, metavar="KEY", help="ask every client for KEY (default: BANKML_API_KEY)"
    )
    group.add_argument("--insecure", action="store_true", help="let other machines in without a key")
    group.add_argument(
        "--queue",
        type=flags.number(int, 1, 4096, "a whole number from 1 to 4096"),
        default=64,
        metavar="N",
        help="how many requests may wait; one more is told to come back later (default: 64)",
    )
    group.add_argument(
        "--grace",
        type=flags.number(float, 0, 3600, "seconds from 0 to 3600"),
        default=5.0,
        metavar="S",
        help="seconds that the answer under way has at the end (default: 5)",
    )
    group.add_argument(
        "--slot-save-path",
        type=flags.text,
        metavar="FOLDER",
        help="let clients store the slot in FOLDER, and restore it",
    )
    flags.machine(parser)


def run(args) -> int:
    """Serve until SIGTERM (exit 0) or Ctrl-C (130)."""
    environment.check()
    loopback, api_key = args.host in LOOPBACK, args.api_key or environment.api_key()
    if not loopback and not api_key and not args.insecure:
        raise UsageError(f"--host {args.host} lets other machines in: give --api-key KEY, or --insecure")
    run_server = _web_stack()
    from bankml.kv_cache import KvType
    from bankml.serve.app import create_app
    from bankml.serve.names import Names
    from bankml.serve.opening import opener, warm
    from bankml.serve.service import Service

    kind = KvType.from_environment(args.cache_type)
    with run_server.listen(args.host, args.port) as listening:
        prompts = open_prompts(args)
        engine = open_engine(args, prompts, kind)
        warm(engine)
        again = opener(n_ctx=args.ctx or flags.N_CTX, gpu=card_words.wanted(args), threads=args.threads, kind=kind,
                       n_ubatch=args.ubatch)  # fmt: skip
        service = Service(again, Names(prompts.header.path), engine, args.queue)
        name = engine.name
        del engine, prompts  # the service lets them go
        service.slot_folder = args.slot_save_path
        app = create_app(service, api_key=api_key, hosts=LOOPBACK if loopback else None)
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="bankml: %(message)s")
        host, port = listening.getsockname()[:2]
        say(f"{name} at http://{f'[{host}]' if ':' in host else host}:{port}")
        try:
            stopped_by = run_server.serve(app, service, listening, args.grace)
        finally:
            service.close()
    return 130 if stopped_by == signal.SIGINT else 0


def _web_stack():
    """The part that needs the packages of the extra."""
    try:
        from bankml.serve import run
    except ModuleNotFoundError as error:
        raise UsageError(f"serving needs the extra packages: pip install 'bankml[serve]' ({error.name})") from None
    return run
