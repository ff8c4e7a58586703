"""The wheel holds what the checkout holds, and runs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(*arguments, **options):
    """Runs this interpreter; the finished process, with text output."""
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, timeout=120, **options
    )


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel, built and unpacked; a folder to put on the path."""
    folder = tmp_path_factory.mktemp("wheel")
    done = python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("bankml-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site")
    return folder / "site"


def test_every_module_kernel_source_and_page_is_in_the_wheel(unpacked):
    want = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bankml").rglob("*.py")}
    want |= {f"bankml/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "kernels.cl").iterdir()}
    want |= {f"bankml/serve/page.{kind}" for kind in ("html", "css", "js")}
    have = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert want <= have, want - have


@pytest.mark.parametrize("place", ["wheel", "checkout"])
def test_the_module_runs(place, unpacked, tmp_path):
    root = unpacked if place == "wheel" else ROOT
    script = f"import bankml; assert bankml.__file__.startswith({str(root)!r}), bankml.__file__"
    env = {**os.environ, "PYTHONPATH": str(root)}
    assert python("-c", script, cwd=tmp_path, env=env).returncode == 0
    done = python("-m", "bankml", "--version", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout.split()[0]) == (0, "bankml")
    done = python("-m", "bankml", "guard", str(tmp_path / "none.gguf"), cwd=tmp_path, env=env)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


def test_public_names_load():
    done = python("-c", "import bankml\nfor name in bankml.__all__: getattr(bankml, name)", cwd=ROOT)
    assert done.returncode == 0, done.stderr
