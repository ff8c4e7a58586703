"""Faults in OpenCL calls: each call that bankml/gpu makes is counted by where it stands, and one of them goes wrong."""

import sys
from contextlib import contextmanager

from bankml.gpu import opencl

CALLS = ("Context", "CommandQueue", "Buffer", "Kernel", "enqueue_copy", "enqueue_nd_range_kernel")
METHODS = {"Kernel": ("set_args", "set_arg"), "Buffer": ("release",), "Program": ("build",)}


class Faults:
    """Counts calls by site, (file, line, call). Call `nth` (from 1) of `site` goes wrong, `way`:

    "once": it raises; "lost": so does every later call anywhere, as when a device is lost; "wrong": it does its work,
    but what it has written to an array is not right.
    """

    def __init__(self, site=None, nth=0, way="once", error=None):
        self.site, self.nth, self.way = site, nth, way
        self.error = error or opencl.load().RuntimeError("the call failed: injected")
        self.counts, self.lost, self.hit = {}, False, False

    def call(self, name, function, arguments, keywords):
        """In the place of an OpenCL call."""
        site = caller(name)
        if site is None:
            return function(*arguments, **keywords)
        self.counts[site] = self.counts.get(site, 0) + 1
        due = site == self.site and self.counts[site] == self.nth
        self.hit |= due
        self.lost |= due and self.way == "lost"
        if self.lost or (due and self.way == "once"):
            raise self.error
        result = function(*arguments, **keywords)
        if due and self.way == "wrong":
            arguments[1].view("u4")[...] ^= 1
        return result


def caller(name):
    """Where bankml/gpu makes the call: (file, line, name); None where others do."""
    frame = sys._getframe(2)
    while frame is not None:
        folder, _, file = frame.f_code.co_filename.rpartition("/")
        if folder.endswith("bankml/gpu"):
            return file, frame.f_lineno, name
        frame = frame.f_back
    return None


@contextmanager
def injected(faults: Faults):
    """While it lasts, OpenCL's calls go through `faults`."""
    cl, before = opencl.load(), []

    def replace(owner, name, label, make):
        before.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, make(getattr(owner, name), label))

    def function(original, label):
        return lambda *arguments, **keywords: faults.call(label, original, arguments, keywords)

    def profile(original, label):
        return property(lambda event: faults.call(label, original.fget, (event,), {}))

    try:
        for kind, names in METHODS.items():
            for name in names:
                replace(getattr(cl, kind), name, f"{kind}.{name}", function)
        replace(cl.Event, "profile", "Event.profile", profile)
        for name in CALLS:
            replace(cl, name, name, function)
        yield faults
    finally:
        for owner, name, original in reversed(before):
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
