"""Text of bytes: whole characters, and stop strings wherever the tokens cut them."""

import random

import pytest

from bankml.text_stream import TextStream


@pytest.mark.parametrize("seed", range(40))
def test_any_split_gives_the_text_before_the_first_stop_string(seed):
    rng = random.Random(seed)
    text = "".join(rng.choice("ab你é🚀") for _ in range(60))
    stop = ["".join(rng.choice("ab你é🚀") for _ in range(rng.randint(2, 4))) for _ in range(3)]
    found = [at for at in map(text.find, stop) if at >= 0]
    want = text[: min(found)] if found else text
    stream, data, shown = TextStream(stop), text.encode(), ""
    while data:
        n = rng.randint(1, 6)
        shown += stream.push(data[:n])
        data = data[n:]
        assert want.startswith(shown)
    assert shown + stream.finish() == want == stream.text
    assert stream.stopped == bool(found)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_bytes_join_to_what_all_of_them_give(seed):
    rng = random.Random(seed)
    data = bytes(rng.choice(b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80\xff") for _ in range(80))
    stream = TextStream()
    shown = "".join(stream.push(bytes([byte])) for byte in data) + stream.finish()
    whole = TextStream()
    assert shown == whole.push(data) == whole.text
    assert data.decode("utf-8", "replace").startswith(shown)
