"""Which OpenCL devices there are, in bankml's order, which of them are used, and why the others are not.

GPUs first, discrete before integrated, larger memory first; then accelerators and CPUs. A device's index is its place
in that order. A CPU device (PoCL, say) proves the code, not the card: it is used only when it is named.
"""

import os
from dataclasses import dataclass, field

from bankml.errors import Refused
from bankml.gpu import opencl
from bankml.gpu.program import GROUP

DISCRETE, INTEGRATED, ACCELERATOR, CPU = "discrete GPU", "integrated GPU", "accelerator", "CPU"
KINDS = (DISCRETE, INTEGRATED, ACCELERATOR, CPU)
LOCAL_BYTES = 4 * 4 * GROUP  # of local memory, what the prompt tiles take
MESA = ("rusticl", "clover")  # drivers for anything: a card's own driver goes before them


@dataclass(frozen=True)
class Device:
    """An OpenCL device. `unfit`: why bankml's kernels cannot run there at all, or ""; sizes in bytes."""

    name: str
    vendor: str
    platform: str
    platform_version: str
    driver: str
    kind: str
    memory: int
    largest_allocation: int
    compute_units: int
    vendor_id: int
    unfit: str
    handle: object = field(repr=False, compare=False, default=None)  # cl.Device
    index: int = -1

    @property
    def gpu(self) -> bool:
        return self.kind in (DISCRETE, INTEGRATED)

    @property
    def identity(self) -> str:
        """What a verdict holds for: another driver or card must prove itself anew."""
        return f"{self.platform}; {self.platform_version}; {self.name}; {self.vendor}; {self.driver}"

    def answers_to(self, word: str) -> bool:
        """Whether a user's word is in its names."""
        return word.casefold() in f"{self.name}\n{self.vendor}\n{self.platform}\n{self.platform_version}".casefold()

    def __str__(self):
        return f"{self.index}: {self.name} ({self.platform}, driver {self.driver})"


@dataclass(frozen=True)
class Listing:
    """The devices in order; `problem` says why there are none, `notes` which platform could not be asked."""

    devices: list[Device]
    problem: str = ""
    notes: list[str] = field(default_factory=list)

    def __str__(self):
        return "; ".join(map(str, self.devices)) or self.problem


def listing() -> Listing:
    """Ask every platform for its devices. Never raises for what a machine lacks: that is the `problem`."""
    try:
        cl = opencl.load()
    except (ImportError, OSError) as error:
        return Listing([], f"PyOpenCL does not load ({error}); pip install pyopencl")
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return Listing([], _no_platform(error))
    found, notes = [], []
    for platform in platforms:
        try:
            found += [_device(cl, platform, handle) for handle in platform.get_devices()]
        except cl.Error as error:
            if "DEVICE_NOT_FOUND" not in str(error):
                notes.append(f"{_text(platform.name)}: {error}")
    found.sort(key=lambda device: (KINDS.index(device.kind), -device.memory))  # stable: the platforms' order
    devices = [Device(**{**vars(device), "index": i}) for i, device in enumerate(found)]
    return Listing(devices, "" if devices else "no OpenCL platform has a device", notes)


def _no_platform(error) -> str:
    if "PLATFORM_NOT_FOUND" not in str(error):
        return f"OpenCL does not answer: {error}"
    folder = os.environ.get("OCL_ICD_VENDORS")
    where = f"OCL_ICD_VENDORS is {folder!r}" if folder else "drivers are named by .icd files in /etc/OpenCL/vendors"
    return (
        f"no OpenCL platform was found: {where}; install the card's OpenCL driver, "
        "or let OCL_ICD_VENDORS name the folder of its .icd file"
    )


def _text(value) -> str:
    """A driver's string in one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def _device(cl, platform, handle) -> Device:
    return Device(
        name=_text(handle.name),
        vendor=_text(handle.vendor),
        platform=_text(platform.name),
        platform_version=_text(platform.version),
        driver=_text(handle.driver_version),
        kind=_kind(cl, handle),
        memory=int(handle.global_mem_size),
        largest_allocation=int(handle.max_mem_alloc_size),
        compute_units=int(handle.max_compute_units),
        vendor_id=int(handle.vendor_id),
        unfit=_unfit(handle),
        handle=handle,
    )


def _kind(cl, handle) -> str:
    if handle.type & cl.device_type.GPU:
        return INTEGRATED if handle.host_unified_memory else DISCRETE
    return CPU if handle.type & cl.device_type.CPU else ACCELERATOR


def _unfit(handle) -> str:
    """What the kernels need and the device lacks."""
    needs = (
        (handle.available, "the driver says that it is not available"),
        (handle.compiler_available, "its driver has no compiler"),
        (handle.endian_little, "it is big-endian"),
        (handle.version >= "OpenCL 1.2", f"it offers {_text(handle.version)}, not OpenCL 1.2"),
        (handle.max_work_group_size >= GROUP, f"its work-groups are smaller than {GROUP}"),
        (handle.local_mem_size >= LOCAL_BYTES, f"it has less than {LOCAL_BYTES} bytes of local memory"),
    )
    return next((reason for met, reason in needs if not met), "")


def choose(found: Listing, asked: str | list[int | str]) -> list[Device]:
    """The devices that are to prove themselves: "auto", "off", or a list of indices and names (`environment.gpu`).

    A name takes the GPUs that answer to it, or if there is none the other devices that do. Raises Refused, with what
    exists, for an index or name without a device, and for a device that is named but unfit.
    """
    if isinstance(asked, str):
        return [device for device in found.devices if not why_not(found, device, asked)]
    chosen = {device.index: device for word in asked for device in _named(found, word)}
    for device in chosen.values():
        if device.unfit:
            raise Refused(f"device {device} cannot be used: {device.unfit}")
    return list(chosen.values())


def _named(found: Listing, word: int | str) -> list[Device]:
    if isinstance(word, int):
        named = [device for device in found.devices if device.index == word]
    else:
        answering = [device for device in found.devices if device.answers_to(word)]
        named = [device for device in answering if device.gpu] or answering
    if not named:
        there = f"the devices are {found}" if found.devices else found.problem
        raise Refused(f"no OpenCL device is {word!r}: {there}")
    return named


def why_not(found: Listing, device: Device, asked: str | list[int | str]) -> str:
    """Why a device is not among the chosen ones; "" if it is."""
    if device.unfit:
        return device.unfit
    if asked == "off":
        return "cards are switched off (BANKML_GPU)"
    if asked != "auto":
        return "" if any(device in _named(found, word) for word in asked) else "it is not among the devices asked for"
    if device.kind == CPU:
        return f"a CPU device is used only when it is named: BANKML_GPU={device.index}"
    if device.kind == ACCELERATOR:
        return f"an accelerator is used only when it is named: BANKML_GPU={device.index}"
    other = _own_driver(found, device.vendor_id)
    return "" if device.platform == other else f"this vendor's cards are used through {other}"


def _own_driver(found: Listing, vendor_id: int) -> str:
    """The one platform through which a vendor's cards are used, so that no card is taken twice."""
    platforms = [d.platform for d in found.devices if d.gpu and not d.unfit and d.vendor_id == vendor_id]
    own = [name for name in platforms if name.casefold() not in MESA]
    return (own or platforms)[0]
