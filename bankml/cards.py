"""Which cards work on a model: found, proved, and put beside the CPU's pool. No card is never an error."""

from functools import partial
from pathlib import Path

from bankml import environment
from bankml.blocks import F16
from bankml.cpu import pool, products
from bankml.cpu.compile import source_digest
from bankml.errors import BankmlError
from bankml.gpu import canary, devices, opencl, verdicts
from bankml.gpu.calibrate import Shares
from bankml.gpu.card import Card
from bankml.gpu.limiter import MemoryLimit, TimeLimit
from bankml.gpu.worker import Worker, describe
from bankml.split import Split

NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dri", "/dev/dxg")  # NVIDIA, AMD, any with Mesa, Windows'


def asked_for(gpu) -> str | list[int | str]:
    """What `Weights.open(gpu=...)` asks for, as `devices.choose` takes it."""
    if gpu is None or gpu is True:
        return environment.gpu()
    if gpu is False:
        return "off"
    return [gpu] if isinstance(gpu, int) else environment.gpu(gpu) if isinstance(gpu, str) else list(gpu)


def join(gpu, workers: pool.Pool, wtype: int, wmap, output: str) -> tuple[Split | None, list[str]]:
    """The driver for the cards that are asked for and prove themselves; None without one. Then a line on each device.

    workers: the CPU's pool. output: the matrix that makes the logits. Raises UsageError for values that are malformed.
    """
    asked, share, limit = asked_for(gpu), environment.gpu_share(), environment.gpu_limit()
    if asked == "off" or share == 0 or (gpu is None and asked == "auto" and not may_have_one()):
        return None, []
    found = devices.listing()
    try:
        chosen = devices.choose(found, asked)
    except BankmlError as error:
        return None, [str(error)]
    cards, lines = [], []
    for device in chosen:
        try:
            cards.append(card_of(device, workers, wtype, limit))
            lines.append(f"{device} passed and works beside the CPU")
        except Exception as error:  # of a driver anything may come
            lines.append(describe(error))
    if not chosen:
        lines.append(found.problem or "no card is used: " + "; ".join(_reasons(found, asked)))
    return (split_of(cards, workers, wtype, wmap, output, share) if cards else None), lines


def may_have_one() -> bool:
    """Whether Linux has any card at all: else nobody who has not asked for one waits until OpenCL is loaded."""
    return any(Path(node).exists() for node in NODES)


def card_of(device: devices.Device, workers, wtype, limit: float) -> Card:
    """A card, once it has proved itself. Raises Refused, or whatever the driver raises."""
    context = opencl.load().Context([device.handle])
    program = canary.admit(device, context, wtype, expected_on(workers), source_digest())
    distrust = partial(verdicts.forget, verdicts.key(device, wtype, source_digest()))
    shared = device.kind != devices.DISCRETE
    memory = MemoryLimit(device.memory, limit, largest=device.largest_allocation, shared=shared)
    return Card(device.name, context, program, wtype, memory=memory, time_limit=TimeLimit(limit), distrust=distrust)


def split_of(cards, workers, wtype, wmap, output, share: float | None = None) -> Split:
    """The driver for these cards. share: of all of them together, where it is not to be measured."""
    worker = Worker(cards, wtype, Shares(len(cards), share), products.GROUPS[wtype])
    return Split(workers, worker, wmap, output)


def expected_on(workers: pool.Pool):
    """expected(wtype, weights, activation) -> float32 (columns, rows): what the canary compares a card with."""

    def expected(wtype, weights, activation):
        return products.mm(workers, wtype, weights, activation[0] if wtype == F16 else tuple(activation))

    return expected


def _reasons(found, asked):
    return [f"{device}: {devices.why_not(found, device, asked)}" for device in found.devices]
