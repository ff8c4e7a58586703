"""Environment variables: what is taken, and what is refused."""

import os

import pytest

from bankml import environment, models
from bankml.cpu import compile as compiling
from bankml.errors import UsageError
from bankml.oracle import library

GPU = {
    "": "auto",
    "auto": "auto",
    "off": "off",
    "none": "off",
    "cpu": "off",
    "0": [0],
    "0,1": [0, 1],
    "pocl": ["pocl"],
    "NVIDIA H200, 1": ["NVIDIA H200", 1],
}


@pytest.mark.parametrize("value", GPU)
def test_gpu(monkeypatch, value):
    monkeypatch.setenv("BANKML_GPU", value)
    assert environment.gpu() == GPU[value]
    monkeypatch.setenv("BANKML_GPU", "off")
    assert environment.gpu(value) == GPU[value]  # a flag beats the environment


@pytest.mark.parametrize("value", [",", "0,,1", "-1", "auto,0", "1,off", "99999", "\x1b", "²"])
def test_malformed_gpu(monkeypatch, value):
    with pytest.raises(UsageError, match=r"--gpu is .* it takes auto"):
        environment.gpu(value)
    monkeypatch.setenv("BANKML_GPU", value)
    with pytest.raises(UsageError, match="BANKML_GPU is"):
        environment.check()


def test_numbers(monkeypatch):
    assert environment.gpu_share() is None and environment.gpu_limit() == 0.8
    for text, share in (("0", 0.0), ("0.95", 0.95), ("", None)):
        monkeypatch.setenv("BANKML_GPU_SHARE", text)
        assert environment.gpu_share() == share
    for text, limit in (("0.5", 0.5), ("7", 1.0), ("-3", 0.05), ("0", 0.05), ("", 0.8)):
        monkeypatch.setenv("BANKML_GPU_LIMIT", text)
        assert environment.gpu_limit() == limit


@pytest.mark.parametrize("name", ["BANKML_GPU_SHARE", "BANKML_GPU_LIMIT"])
@pytest.mark.parametrize("value", ["half", "nan", "0,5"])
def test_what_is_no_number_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=name):
        environment.check()


def test_shares_out_of_range_are_refused(monkeypatch):
    for value in ("-0.1", "0.96", "inf"):
        monkeypatch.setenv("BANKML_GPU_SHARE", value)
        with pytest.raises(UsageError, match=r"0 to 0\.95"):
            environment.gpu_share()


def test_everything_lives_in_the_same_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BANKML_HOME", "~/mine")
    kernels = next(compiling._cache_homes())
    assert {models.home(), library.home(), kernels.parent} == {tmp_path / "mine"}
    monkeypatch.delenv("BANKML_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")  # the specification has relative ones ignored
    assert next(compiling._cache_homes()) == tmp_path / ".cache" / "bankml" / "kernels"


def test_kernels_are_not_loaded_from_what_another_prepared(monkeypatch, tmp_path):
    """They are code: a folder that others may write to is passed over."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tmp_path / f"bankml-{os.getuid()}"
    assert list(compiling._cache_homes())[-1] == own / "kernels" and own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert not [home for home in compiling._cache_homes() if tmp_path in home.parents]
    own.rmdir()
    own.symlink_to(tmp_path)
    assert not [home for home in compiling._cache_homes() if tmp_path in home.parents]


def test_the_home_of_nobody(monkeypatch):
    monkeypatch.setenv("BANKML_HOME", "~no-such-user/x")
    for home in (models.home, library.home, lambda: next(compiling._cache_homes())):
        with pytest.raises(UsageError, match="BANKML_HOME is '~no-such-user/x'"):
            home()
