"""A server under load and abuse for long: what it answers, and whether it keeps what it should give back.

    python -m testing.soak [--requests 3000] [--minutes 30] [--clients 16] [--seed 1] [--model FILE] [--cache-type q8_0]

`bankml serve` runs as a process of its own, over a small model made anew where none is given. Of the requests, which
are decided by the seed, a tenth is malformed and a fifth is left: the client closes while it sends, waits or reads.
All others must be answered as the engine alone answers them, which is asked first; a 503 is asked again after its
`Retry-After`. After a fifth of it, and at the end, when nobody is connected, the process's memory, threads and open
files are counted: memory may grow by 20 MB, the others not at all. Exit code 1 if anything is not as it should be.
"""

import argparse
import http.client
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import bankml
from testing.soak_asks import Ask, asks, malformed, request
from tests import conversations
from tests.serve.served import Served

ROOT = Path(__file__).resolve().parent.parent
MOST_GROWTH = 20_000_000  # bytes
WARM = 0.2  # of the requests, or of the time
REPLY_S = 120.0  # for any reply, the queue before it included
QUEUE, N_CTX, CACHE_RAM = 12, 512, 8  # places, cells, MiB of earlier prompts


class Soak:
    """Clients that take the numbered requests one by one. What was seen is in `counts`, what was wrong in `faults`."""

    def __init__(self, served: Served, pool: list[Ask], seed: int):
        self.served, self.pool, self.seed = served, pool, seed
        self.counts, self.faults, self.longest = Counter(), [], 0.0
        self._lock, self._next = threading.Lock(), 0

    def run(self, clients: int, end: int, until: float):
        """The requests up to number `end`, or the time `until` by time.monotonic(); returns when all are done."""
        threads = [threading.Thread(target=self._client, args=(end, until)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, end, until):
        connection = http.client.HTTPConnection(*self.served.address, timeout=REPLY_S)
        while time.monotonic() < until and len(self.faults) < 20:
            with self._lock:
                number, self._next = self._next, self._next + 1
                if number >= end:
                    self._next = end
                    break
            rng = random.Random(f"{self.seed}/{number}")
            ask, kind = rng.choice(self.pool), rng.random()
            begun = time.monotonic()
            try:
                if kind < 0.1:
                    self._malformed(rng, ask)
                elif kind < 0.3:
                    self._leave(rng, ask)
                else:
                    self._whole(connection, ask)
            except Exception as error:
                self._fault(number, ask, f"{type(error).__name__}: {error}")
                connection.close()
            self.longest = max(self.longest, time.monotonic() - begun)
        connection.close()

    def _fault(self, number, ask, words):
        with self._lock:
            self.faults.append(f"request {number}, {ask.interface}, {ask.body}: {words}"[:600])

    def _count(self, *names):
        with self._lock:
            self.counts.update(names)

    def _whole(self, connection, ask):
        while True:
            try:
                connection.request("POST", ask.path, ask.data, {"Content-Type": "application/json"})
                reply = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()  # kept open for too long while this client waited; a new one must do
                self._count("connected anew")
                connection.request("POST", ask.path, ask.data, {"Content-Type": "application/json"})
                reply = connection.getresponse()
            body = reply.read()
            if reply.status != 503:
                break
            self._count("told to come back later")
            time.sleep(float(reply.headers["Retry-After"]))
        assert reply.status == 200, f"{reply.status} {body[:300]!r}"
        said = ask.said(body)
        assert said == ask.want, f"{said} is not the solo answer {ask.want}"
        self._count("complete", ask.interface)

    def _malformed(self, rng, ask):
        with self._connect() as connection:
            connection.sendall(malformed(rng, ask))
            reply = _all_of(connection)
        status = reply.split(b" ", 2)[1:2]
        assert status and (status[0][:1] == b"4" or status[0] == b"503"), f"malformed, answered with {reply[:300]!r}"
        self._count("malformed")

    def _leave(self, rng, ask):
        """Close while the request is being sent, while it waits, or while its answer comes; gently or with a reset."""
        data, when = request(ask.path, ask.long), rng.randrange(3)
        with self._connect() as connection:
            if rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(data[: rng.randrange(len(data))] if when == 0 else data)
            if when == 2:
                connection.recv(rng.randrange(1, 4000))
            time.sleep(rng.random() * 0.2)
        self._count("left")

    def _connect(self):
        return socket.create_connection(self.served.address, timeout=REPLY_S)


def _all_of(connection) -> bytes:
    parts = []
    while piece := connection.recv(1 << 16):
        parts.append(piece)
    return b"".join(parts)


def settled(served: Served) -> dict[str, int]:
    """What the server holds when all clients are gone and it had a moment to notice."""
    time.sleep(2.0)
    return served.held()


def compared(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What grew that must not."""
    growth = {name: after[name] - before[name] for name in before}
    print(f"memory {before['memory'] / 1e6:.1f} MB after warm-up, {growth['memory'] / 1e6:+.1f} MB since")
    print(f"threads {after['threads']} ({growth['threads']:+d}), files {after['files']} ({growth['files']:+d})")
    faults = [f"{growth[name]} {name} more than after warm-up" for name in ("threads", "files") if growth[name] > 0]
    if growth["memory"] > MOST_GROWTH:
        faults.append(f"memory grew by {growth['memory'] / 1e6:.1f} MB")
    return faults


def soak(model: Path, args) -> list[str]:
    """Run it all and print what was seen; the faults."""
    os.environ["BANKML_CACHE_TYPE"] = args.cache_type
    with bankml.load(model, n_ctx=N_CTX, gpu=False) as engine:
        pool = asks(engine, random.Random(args.seed), args.pool)
    flags = ["--ctx", str(N_CTX), "--queue", str(QUEUE), "--cache-type", args.cache_type]
    with Served(model, *flags, BANKML_CACHE_RAM=str(CACHE_RAM)) as served:
        soaking, begun = Soak(served, pool, args.seed), time.monotonic()
        soaking.run(args.clients, int(WARM * args.requests), begun + WARM * 60 * args.minutes)
        before = settled(served)
        soaking.run(args.clients, args.requests, begun + 60 * args.minutes)
        faults = soaking.faults
        after = settled(served)
        code = served.stop()
    counts = dict(sorted(soaking.counts.items()))
    print(f"{soaking._next} requests in {time.monotonic() - begun:.0f} s, longest {soaking.longest:.1f} s: {counts}")
    faults += compared(before, after)
    faults += [f"the server exited with {code}"] * (code != 0)
    return faults + [f"log: {line}" for line in served.lines if "Traceback" in line or "Error" in line]


def main(argv=None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", type=int, default=60, help="how many different questions there are")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cache-type", default="f16", choices=("f16", "q8_0"))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        faults = soak(args.model or conversations.write_tiny(Path(folder) / "tiny.gguf"), args)
    for fault in faults:
        print(f"FAULT {fault}")
    print("soak: as it should be" if not faults else f"soak: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
