"""The sampling flags: what they make of a command line and a file, and one line for each bad value."""

import argparse
import math

import pytest

from bankml.cli import flags
from bankml.cli.main import main
from bankml.errors import Refused
from bankml.params import CHAIN, Params


def parsed(*words):
    parser = argparse.ArgumentParser()
    flags.sampling(parser)
    return parser.parse_args(words)


def test_without_flags_the_command_is_greedy_and_all_else_the_servers():
    assert flags.params(parsed(), {}) == Params(temperature=0.0)


def test_every_flag_sets_its_field():
    words = (
        "--temp 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --seed 7 --repeat-penalty 1.5 --presence-penalty -0.5 "
        "--frequency-penalty 0.75 --repeat-last-n 5 --dry-multiplier 2 --dry-base 1.25 --dry-allowed-length 4 "
        "--dry-penalty-last-n 9 --top-n-sigma 1 --typical-p 0.875 --xtc-probability 0.5 --xtc-threshold 0.0625 "
        "--dynatemp-range 0.375 --dynatemp-exponent 3 --dry-sequence-breaker a --dry-sequence-breaker bc "
        "--logit-bias 15+1.5 --logit-bias 16-2 --logit-bias 17-inf --samplers top-k;temperature"
    )
    assert flags.params(parsed(*words.split()), {}) == Params(
        temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=7, repeat_penalty=1.5, presence_penalty=-0.5,
        frequency_penalty=0.75, repeat_last_n=5, dry_multiplier=2.0, dry_base=1.25, dry_allowed_length=4,
        dry_penalty_last_n=9, top_n_sigma=1.0, typical_p=0.875, xtc_probability=0.5, xtc_threshold=0.0625,
        dynatemp_range=0.375, dynatemp_exponent=3.0, dry_sequence_breakers=("a", "bc"),
        logit_bias=((15, 1.5), (16, -2.0), (17, -math.inf)), samplers=("top_k", "temperature"),
    )  # fmt: skip
    assert len(flags.SAMPLING) + 3 == len(words.split("--")) - 1 - 3  # three flags stand there more than once


def test_no_breakers_at_all():
    assert flags.params(parsed("--dry-sequence-breaker", "none"), {}).dry_sequence_breakers == ()


def test_flags_go_over_what_the_file_recommends_and_temperature_is_never_the_files():
    kv = {"general.sampling.top_k": 20, "general.sampling.min_p": 0.25, "general.sampling.temp": 0.7}
    got = flags.params(parsed("--min-p", "0.5"), kv, seed=3)
    assert (got.temperature, got.top_k, got.min_p, got.seed) == (0.0, 20, 0.5, 3)


def test_a_file_whose_recommendation_cannot_be_followed():
    with pytest.raises(Refused, match=r"general\.sampling: repeat_penalty is 0\.0; it takes a finite number above 0"):
        flags.params(parsed(), {"general.sampling.penalty_repeat": 0.0})
    with pytest.raises(Refused, match="mirostat"):
        flags.params(parsed("--temp", "1"), {"general.sampling.mirostat": 1})


BAD = {
    "--repeat-penalty": ("0", "nan", "inf", "-1"),
    "--presence-penalty": ("inf", "x"),
    "--frequency-penalty": ("1e39", ""),
    "--repeat-last-n": ("-1", "1.5", "2147483648"),
    "--dry-multiplier": ("nan",),
    "--dry-base": ("0.5",),
    "--dry-allowed-length": ("-1",),
    "--dry-penalty-last-n": ("-1",),
    "--dry-sequence-breaker": ("",),
    "--top-n-sigma": ("inf",),
    "--typical-p": ("1.5", "-0.1"),
    "--xtc-probability": ("2",),
    "--xtc-threshold": ("-1",),
    "--dynatemp-range": ("nan",),
    "--dynatemp-exponent": ("inf",),
    "--logit-bias": ("15", "15+", "+1", "15*2", "15+nan", "15+inf", "x+1"),
    "--samplers": ("top-k;mirostat", "infill", "adaptive_p", "typical"),
}


@pytest.mark.parametrize(("flag", "value"), [(flag, value) for flag, values in BAD.items() for value in values])
def test_bad_values_are_one_line(capsys, flag, value):
    with pytest.raises(SystemExit) as leaving:
        main(["generate", "-m", "x", f"{flag}={value}", "hi"])
    out, err = capsys.readouterr()
    assert (leaving.value.code, out, err.count("\n")) == (1, "", 1) and flag in err and "bankml" in err


def test_what_bankml_lacks_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "-m", "x", "--samplers", "mirostat", "hi"])
    assert "bankml has no mirostat" in capsys.readouterr().err
    assert set(CHAIN) == set(Params().samplers)
