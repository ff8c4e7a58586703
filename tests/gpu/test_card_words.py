"""What the commands ask for, and what they say of cards."""

from types import SimpleNamespace

import pytest

from bankml import cards
from bankml.cli import card_words
from bankml.errors import UsageError
from bankml.gpu import devices


@pytest.mark.parametrize(
    ("flag", "no_gpu", "environment", "wanted"),
    [
        (None, False, "", None),
        (None, False, "auto", None),
        (None, False, "off", False),
        (None, False, "1,pocl", [1, "pocl"]),
        ("", False, "", "auto"),
        ("", False, "off", "auto"),
        ("", False, "pocl", ["pocl"]),
        ("2", False, "pocl", [2]),
        ("auto", False, "pocl", "auto"),
        ("off", False, "pocl", False),
        (None, True, "pocl", False),
    ],
)
def test_flags_beat_the_environment(flag, no_gpu, environment, wanted, monkeypatch):
    monkeypatch.setenv("BANKML_GPU", environment)
    assert card_words.wanted(SimpleNamespace(gpu=flag, no_gpu=no_gpu)) == wanted


def test_nobody_waits_for_opencl_where_there_is_no_card(monkeypatch):
    monkeypatch.delenv("BANKML_GPU", raising=False)
    monkeypatch.setattr(cards, "NODES", ("/dev/no-such-card",))
    monkeypatch.setattr(devices, "listing", lambda: pytest.fail("OpenCL was asked"))
    assert cards.join(None, None, 0, None, "") == (None, [])
    assert cards.join(False, None, 0, None, "") == (None, [])


def test_asked_without_a_card_the_devices_are_told(monkeypatch):
    monkeypatch.setattr(devices, "listing", lambda: devices.Listing([], "no OpenCL platform was found"))
    assert cards.join("auto", None, 0, None, "") == (None, ["no OpenCL platform was found"])
    split, (line,) = cards.join(["tnt2"], None, 0, None, "")
    assert split is None and "tnt2" in line and "no OpenCL platform was found" in line
    with pytest.raises(UsageError, match="it takes auto, off"):
        cards.join("0,,1", None, 0, None, "")


def test_a_line_on_each_card_tells_rows_shares_limiter_and_bytes():
    assert card_words.statistics(None) == []
    card = {"name": "A card", "rows": 750, "bytes": 5_000_000, "bytes_limit": 8_000_000_000, "limit": 0.8}
    card |= {"busy_s": 1.25, "skipped": 7, "resting": True, "dropped": None}
    other = card | {"name": "Another", "rows": 0, "resting": False, "dropped": "a wait failed"}
    shares = {"512x256, 1 column": [0.75, 0.0], "512x256, 2-31 columns": [0.5, 0.0]}
    first, second = card_words.statistics({"cpu_rows": 250, "shares": shares, "cards": [card, other]})
    for words in ("A card: 75.0% of 1000 rows", "0.75 of 512x256, 1 column", "0.50 of 512x256, 2-31 columns"):
        assert words in first
    for words in ("5.0 of 8000 MB", "limit 0.8", "busy 1.25 s", "left out of 7 products to rest", "resting"):
        assert words in first
    assert "share 0;" in second and "dropped: a wait failed" in second and "resting" not in second
