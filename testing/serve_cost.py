"""What serving costs over the engine's own: time to the first byte, and decode speed while an answer is streamed.

    python testing/serve_cost.py [MODEL] [--rounds N] [--tokens N]

One process holds the engine and the server, so that both ways use the same weights in the same memory; the client is
another process with a bare socket. In turns, the same chat: `alone`, the engine called by a thread; `asleep`, streamed
to a client that the system does not wake before the end (SO_RCVLOWAT), which is what a client on another machine costs;
`reading`, streamed to a client that reads every piece as it comes, on the same cores. Decode speed is the engine's own
clock, from the first token to the end. The first byte is timed from the request's sending on an open connection, with
the prompt in the slot but its last token; alone, the first step from the call of `generate`.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from bankml import models
from bankml.engine import Engine
from bankml.serve import run
from bankml.serve.app import create_app
from bankml.serve.names import Names
from bankml.serve.opening import warm
from bankml.serve.service import Service

PROMPT = [{"role": "user", "content": "Tell me a long story about a bank in a small town."}]
WAYS = ("alone", "asleep", "reading")


def alone(engine, tokens):
    """(seconds to the first token, tokens/s)."""
    begun = time.perf_counter()
    generation = engine.generate(PROMPT, replace(engine.params, seed=1), max_tokens=tokens)
    next(generation)
    first = time.perf_counter() - begun
    for _ in generation:
        pass
    return first, (generation.completion_tokens - 1) / generation.decode_s


def client(port: int):
    """For each line of stdin, "asleep" or "reading" and a number of tokens: one request, and its figures on stdout."""
    for line in sys.stdin:
        way, tokens = line.split()
        ask = {"messages": PROMPT, "max_tokens": int(tokens), "seed": 1, "stream": True}
        body = json.dumps(ask).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            if way == "asleep":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
            time.sleep(0.05)
            begun, parts, first = time.perf_counter(), [], None
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while piece := connection.recv(1 << 16):
                first = first or time.perf_counter() - begun
                parts.append(piece)
        timings = json.loads(b"".join(parts).rpartition(b'"timings":')[2].partition(b"}")[0] + b"}")
        rate = (timings["predicted_n"] - 1) / timings["predicted_ms"] * 1000
        print(json.dumps([first, rate]), flush=True)


def measure(engine, port, args):
    """Figures of each way, in turns; then the server's end."""
    figures = {way: [] for way in WAYS}
    command = [sys.executable, __file__, "--client", str(port)]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asker:
            for _ in range(args.rounds + 1):
                for way in WAYS:
                    if way == "alone":
                        time.sleep(0.05)
                        figures[way].append(alone(engine, args.tokens))
                        continue
                    print(way, args.tokens, file=asker.stdin, flush=True)
                    figures[way].append(json.loads(asker.stdout.readline()))
            asker.stdin.close()
        report({way: found[1:] for way, found in figures.items()})
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def report(figures):
    """Medians, and the costs as medians of the rounds' own."""
    for way, found in figures.items():
        firsts, rates = zip(*found, strict=True)
        first = "" if way == "asleep" else f"{1000 * statistics.median(firsts):8.2f} ms to the first byte"
        print(f"{way:<8} {statistics.median(rates):8.2f} tokens/s {first}")
    for way in WAYS[1:]:
        pairs = list(zip(figures["alone"], figures[way], strict=True))
        cost = statistics.median(1 - other[1] / own[1] for own, other in pairs)
        print(f"{way:<8} costs {cost:.1%} of the decode speed")
    over = statistics.median(other[0] - own[0] for own, other in zip(figures["alone"], figures["reading"], strict=True))
    print(f"first byte {1000 * over:.2f} ms after the engine's own first token")


def main():
    """Serve, and measure meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        client(args.client)
        return
    path = Path(models.resolve(args.model) if args.model else models.default_model())
    with Engine.open(path, gpu=False) as engine, run.listen("127.0.0.1", 0) as listening:
        warm(engine)
        service = Service(Engine.open, Names(path), engine)
        measuring = threading.Thread(target=measure, args=(engine, listening.getsockname()[1], args))
        measuring.start()
        run.serve(create_app(service), service, listening, 1.0)
        measuring.join()
        service.close()


if __name__ == "__main__":
    main()
