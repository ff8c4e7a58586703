"""Which devices are there, in which order, which are used, and what is said of the others."""

import sys
import types

import pytest

from bankml.errors import Refused
from bankml.gpu import devices, opencl
from bankml.gpu.devices import ACCELERATOR, CPU, DISCRETE, INTEGRATED, Device, Listing, choose, why_not


def device(index, name, kind, platform="Vendor CL", vendor_id=1, unfit=""):
    return Device(
        name, "Vendor", platform, f"OpenCL 3.0 {platform}", "1.2", kind, 8, 2, 4, vendor_id, unfit, None, index
    )


FOUND = Listing(
    [
        device(0, "Big Card", DISCRETE, "NVIDIA CUDA", 1),
        device(1, "Radeon", DISCRETE, "AMD APP", 2),
        device(2, "Radeon", DISCRETE, "rusticl", 2),
        device(3, "Iris", INTEGRATED, "rusticl", 3),
        device(4, "Old Card", DISCRETE, "NVIDIA CUDA", 1, unfit="its driver has no compiler"),
        device(5, "FPGA", ACCELERATOR),
        device(6, "pthread-Radeon CPU", CPU, "PoCL"),
    ]
)


def indices(asked, found=FOUND):
    return [one.index for one in choose(found, asked)]


def test_auto_takes_every_real_card_once():
    """Not the CPU, nor a card's second driver; Mesa's where a card has no other."""
    assert indices("auto") == [0, 1, 3]
    assert indices("off") == []
    reasons = [why_not(FOUND, one, "auto") for one in FOUND.devices]
    assert [not reason for reason in reasons] == [True, True, False, True, False, False, False]
    assert reasons[2] == "this vendor's cards are used through AMD APP"
    assert reasons[4] == "its driver has no compiler"
    assert "only when it is named" in reasons[5] and reasons[6].endswith("BANKML_GPU=6")
    assert all(why_not(FOUND, one, "off") for one in FOUND.devices)


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ([6], [6]),
        (["pocl"], [6]),
        (["radeon"], [1, 2]),  # a word takes the GPUs that answer to it, no CPU beside them
        (["Pthread"], [6]),
        ([3, 0], [3, 0]),
        (["iris", 3], [3]),
        (["vendor"], [0, 1, 2, 3]),
    ],
)
def test_named_devices(asked, want):
    found = Listing([one for one in FOUND.devices if not one.unfit])
    assert indices(asked, found) == want
    for one in found.devices:
        assert (why_not(found, one, asked) == "") == (one.index in want)


def test_what_is_named_but_not_there_lists_what_is():
    for asked in ([99], ["GeForce"]):
        with pytest.raises(Refused, match=r"no OpenCL device is .*: the devices are 0: Big Card .*; 6: pthread"):
            choose(FOUND, asked)
    with pytest.raises(Refused, match="no platform at all"):
        choose(Listing([], "no platform at all"), ["pocl"])
    with pytest.raises(Refused, match=r"4: Old Card .* cannot be used: its driver has no compiler"):
        choose(FOUND, [4])


class Handle:
    """A cl.Device that a test makes up."""

    def __init__(self, name, kind, memory, unified=False, **other):
        given = {
            "name": name,
            "type": kind,
            "global_mem_size": memory,
            "host_unified_memory": unified,
            "vendor": "V\nendor",
            "driver_version": "7",
            "max_mem_alloc_size": memory // 4,
            "max_compute_units": 3,
            "vendor_id": 1,
            "available": True,
            "compiler_available": True,
            "endian_little": True,
            "version": "OpenCL 1.2 x",
            "max_work_group_size": 256,
            "local_mem_size": 32768,
        }
        self.__dict__.update(given | other)


def platform(name, *handles, error=None):
    def get_devices():
        if error:
            raise error
        return list(handles)

    return types.SimpleNamespace(name=name, version="OpenCL 1.2", get_devices=get_devices)


def listing_of(monkeypatch, *platforms):
    cl = opencl.load()
    own = types.SimpleNamespace(Error=cl.Error, device_type=cl.device_type, get_platforms=lambda: list(platforms))
    monkeypatch.setattr(opencl, "load", lambda: own)
    return devices.listing()


def test_the_order_and_what_makes_a_device_unfit(monkeypatch):
    kinds = opencl.load().device_type
    found = listing_of(
        monkeypatch,
        platform("a", Handle("cpu", kinds.CPU, 99), Handle("chip", kinds.GPU, 64, True)),
        platform(
            "b", Handle("small", kinds.GPU, 8), Handle("large", kinds.GPU, 16), Handle("npu", kinds.ACCELERATOR, 5)
        ),
    )
    assert [(one.index, one.name) for one in found.devices] == [
        (0, "large"),
        (1, "small"),
        (2, "chip"),
        (3, "npu"),
        (4, "cpu"),
    ]
    assert found.devices[0].vendor == "V endor"  # one printable line
    wrong = {
        "compiler_available": False,
        "available": False,
        "endian_little": False,
        "version": "OpenCL 1.1 x",
        "max_work_group_size": 32,
        "local_mem_size": 100,
    }
    found = listing_of(monkeypatch, platform("a", *(Handle(key, kinds.GPU, 8, **{key: v}) for key, v in wrong.items())))
    assert all(one.unfit for one in found.devices) and choose(found, "auto") == []


def test_a_platform_that_fails_hides_no_other(monkeypatch):
    cl = opencl.load()
    broken = cl.LogicError("clGetDeviceIDs failed: OUT_OF_HOST_MEMORY")
    none = cl.LogicError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")
    fine = platform("fine", Handle("card", cl.device_type.GPU, 8))
    found = listing_of(monkeypatch, platform("broken", error=broken), platform("empty", error=none), fine)
    assert [one.name for one in found.devices] == ["card"]
    assert len(found.notes) == 1 and found.notes[0].startswith("broken: ")
    assert listing_of(monkeypatch, platform("empty", error=none)).problem == "no OpenCL platform has a device"


def test_without_opencl(monkeypatch):
    """Neither a missing PyOpenCL nor a missing platform is an error here."""
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    assert "pip install pyopencl" in devices.listing().problem
    monkeypatch.undo()
    cl = opencl.load()

    def get_platforms():
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(opencl, "load", lambda: types.SimpleNamespace(Error=cl.Error, get_platforms=get_platforms))
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nothing")
    assert "OCL_ICD_VENDORS is '/nothing'" in devices.listing().problem
    assert devices.listing().devices == []


def test_pocl_is_there_and_is_no_card(pocl):
    own, _ = pocl
    assert own.kind == CPU and own.memory > own.largest_allocation > 1 << 20 and not own.unfit
    found = devices.listing()
    assert own not in choose(found, "auto") and own in choose(found, ["pocl"]) and own in choose(found, [own.index])
