"""The stage of `convert`: whole files against the reference's quantizer, byte for byte."""

from bankml.convert import convert
from bankml.errors import Refused
from bankml.oracle import library
from testing.record_convert import reference_convert
from testing.stages.stage import Count, Given, Stage
from tests import conversion_models as models
from tests.vocab import smollm2_gguf

CHUNK = 1 << 24


def conversion(given: Given) -> Count:
    """Every input type to every target, a model in two parts, and SmolLM2; a refusal of both sides counts as equal."""
    library.load()
    source, counts = given.own / "in.gguf", Count()
    for name in models.CASES:
        source.write_bytes(models.case(name))
        counts += _targets(name, source, given.own)
    parts = [given.own / f"in-{i:05}-of-00002.gguf" for i in (1, 2)]
    for part, raw in zip(parts, models.split_case(), strict=True):
        part.write_bytes(raw)
    counts += _targets("split", parts[0], given.own)
    return counts if given.quick else counts + _targets("smollm2", smollm2_gguf(), given.own)


def _targets(name, source, folder) -> Count:
    ours, theirs, counts = folder / "ours.gguf", folder / "theirs.gguf", Count()
    for kind in models.TARGETS:
        wanted = reference_convert(source, theirs, kind)
        try:
            convert(source, ours, kind)
            same = wanted and _same(ours, theirs)
        except Refused:
            same = not wanted
        counts += Count(int(same), 1, "" if same else f"{name} as {kind}")
        for path in (ours, theirs):
            path.unlink(missing_ok=True)
    return counts


def _same(path, other) -> bool:
    with open(path, "rb") as a, open(other, "rb") as b:
        while chunk := a.read(CHUNK):
            if chunk != b.read(CHUNK):
                return False
        return not b.read(1)


STAGES = (
    Stage(
        "convert",
        "shipped library: llama_model_quantize, whole files, eight types to three",
        "files",
        conversion,
        30,
        40,
    ),
)
