"""Split models: all parts from the first, and every way in which parts can be wrong."""

import math

import pytest

from bankml.errors import NeedMore, Refused
from bankml.gguf import Map, read_header
from bankml.guard import guard
from tests.gguf_writer import filled, gguf, model, split


def write_parts(folder, count=3, name="x"):
    """The parts of one model in `folder`. Returns (paths, tensors)."""
    kv, tensors = model(tied=False)
    tensors = filled(tensors)
    paths = [folder / f"{name}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for path, content in zip(paths, split(kv, tensors, count), strict=True):
        path.write_bytes(content)
    return paths, tensors


@pytest.mark.parametrize("count", [1, 2, 3])
def test_split_files_load_from_the_first(tmp_path, count):
    paths, tensors = write_parts(tmp_path, count)
    header = read_header(paths[0])
    assert header.paths == paths and list(header.tensors) == [t.name for t in tensors]
    assert guard(paths[0]).verdict == "play"
    with Map(header) as weights:
        for tensor in tensors:
            assert weights.tensor(tensor.name).tobytes() == tensor.data


def test_split_part_two(tmp_path):
    paths, _ = write_parts(tmp_path)
    with pytest.raises(Refused, match=r"part 2 of 3; start from x-00001-of-00003\.gguf"):
        read_header(paths[1])


def test_split_part_missing(tmp_path):
    paths, _ = write_parts(tmp_path)
    paths[2].unlink()
    with pytest.raises(NeedMore, match=r"x-00003-of-00003\.gguf is missing: part 3 of 3"):
        read_header(paths[0])


def test_split_part_cut(tmp_path):
    paths, _ = write_parts(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-200])
    verdict = guard(paths[0])
    assert verdict.verdict == "need_more"
    assert str(paths[2]) in verdict.reasons[0] and "tensor 'blk.1." in verdict.reasons[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"split.count": ("u16", 4)}, "split.count is 4 where 3 was expected"),
        ({"split.no": ("u16", 2)}, "split.no is 2 where 1 was expected"),
        ({"split.no": ("u32", 1)}, "split.no is u32"),
        ({"split.no": None}, "split.no is missing"),
    ],
)
def test_split_parts_disagree(tmp_path, keys, words):
    paths, tensors = write_parts(tmp_path)
    own = {"split.no": ("u16", 1), "split.count": ("u16", 3), "split.tensors.count": ("i32", len(tensors))}
    changed = {key: pair for key, pair in (own | keys).items() if pair}
    share = math.ceil(len(tensors) / 3)
    paths[1].write_bytes(gguf(changed, tensors[share : 2 * share]))
    with pytest.raises(Refused, match=words) as caught:
        read_header(paths[0])
    assert str(paths[1]) in str(caught.value)


def test_split_tensor_missing_or_twice(tmp_path):
    paths, tensors = write_parts(tmp_path)
    own = {"split.no": ("u16", 1), "split.count": ("u16", 3)}
    share = math.ceil(len(tensors) / 3)
    paths[1].write_bytes(gguf(own, tensors[share : 2 * share - 1]))
    with pytest.raises(Refused, match=rf"split.tensors.count is {len(tensors)}, the parts have {len(tensors) - 1}"):
        read_header(paths[0])
    paths[1].write_bytes(gguf(own, tensors[:1]))
    with pytest.raises(Refused, match=r"duplicate tensor 'token_embd\.weight', also in x-00001"):
        read_header(paths[0])


def test_split_renamed_or_glued(tmp_path):
    paths, _ = write_parts(tmp_path)
    other = tmp_path / "other.gguf"
    other.write_bytes(paths[0].read_bytes())
    with pytest.raises(Refused, match=r"part 1 of 3 by split.count; its name must end in -00001-of-00003\.gguf"):
        read_header(other)
    other.write_bytes(b"".join(path.read_bytes() for path in paths))
    for path in (other, paths[0]):
        path.write_bytes(other.read_bytes())
        with pytest.raises(Refused, match="another GGUF file follows at byte"):
            read_header(path)
