"""Imports go one way, what must not load does not, and an expected value never passes through engine code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bankml"

# Layers from the bottom up: a module imports from layers below, and from its own.
LAYERS = [
    {"errors", "version"},
    {
        "blocks",
        "gguf",
        "gguf_header",
        "gguf_values",
        "params",
        "environment",
        "files",
        "progress",
        "rates",
        "snapshot",
        "unicode_ranges",
    },
    {
        "plan",
        "guard",
        "tokenizer",
        "vocabulary",
        "chat",
        "sandbox",
        "template_budget",
        "template_words",
        "quantizers",
        "shapes",
        "prompts",
        "conversation",
        "text_stream",
    },
    {"cpu", "gpu"},
    {
        "sampler",
        "sampler_chain",
        "dry",
        "models",
        "pull",
        "convert",
        "exact",
        "kept_rows",
        "kv_cache",
        "pieces",
        "split",
        "cards",
        "forward",
    },
    {"meter", "slot", "slot_file", "prompt_cache", "engine", "generation", "completions", "api", "benchmark"},
    {"serve", "dashboard"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ROOTS = {"__init__", "__main__"}  # import lazily, from anywhere
HEAVY = {"numba", "llvmlite", "pyopencl", "rich", "tokenizers", "jinja2"}
STANDARD = set(sys.stdlib_module_names)


def modules(folder=PACKAGE):
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def part(path: Path) -> str:
    """The part of the package that a file belongs to: `cpu` for bankml/cpu/norm.py."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path, everywhere=True):
    """(line, dotted name) of every import of a file; `everywhere=False` leaves out those inside functions."""
    tree = ast.parse(path.read_text(), str(path))
    nodes = ast.walk(tree) if everywhere else _at_import(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def _at_import(node):
    """The nodes that run when a module is imported: not the bodies of functions, nor of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_import(child)


def own(name: str) -> str | None:
    """The part that a dotted name of ours belongs to; None for others' modules."""
    words = name.split(".")
    if words[0] != "bankml":
        return None
    return words[1] if len(words) > 1 and words[1] in {*RANK, "oracle"} else "version"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    here = part(path)
    if here in ROOTS:
        return
    assert here in RANK or here == "oracle", f"{here} has no layer yet: put it into LAYERS and docs/layout.md"
    for line, name in imported(path):
        there = own(name)
        if there is None or there == here:
            continue
        where = f"{path.relative_to(ROOT)}:{line}: {name}"
        if here == "oracle":
            assert there in ("errors", "version"), f"{where}: the oracle imports no engine code"
        elif there == "oracle":
            assert here in ("cli", "benchmark"), f"{where}: only commands and the bench compare with the oracle"
        else:
            assert RANK[there] <= RANK[here], f"{where}: against the direction of imports"
            assert {here, there} != {"cpu", "gpu"}, f"{where}: cpu and gpu never import each other"


@pytest.mark.parametrize("path", modules(PACKAGE / "oracle"), ids=lambda path: path.name)
def test_the_oracle_needs_numpy_and_the_standard_library_only(path):
    others = {name.split(".")[0] for _, name in imported(path)} - STANDARD
    assert others <= {"numpy", "bankml"}, others


def test_compare_imports_neither_engine_nor_bindings():
    names = {name for _, name in imported(PACKAGE / "oracle" / "compare.py")}
    assert not [name for name in names if name.startswith("bankml.") and not name.startswith("bankml.errors")], names


RECORDERS = sorted((ROOT / "testing").glob("record_*.py"))
CASES = [  # what is recorded, and what the tests compare with
    ROOT / "tests" / f"{name}.py"
    for name in (
        *("inputs", "models", "cache_runs", "sampler_cases", "conversion_models", "gguf_writer", "vocab"),
        *("answers", "conversations", "continuations", "serve/cases"),
    )
]
GATE = [  # its expected sides; testing/stages/*.py hold both
    ROOT / "testing" / f"{name}.py"
    for name in ("stages/expected", "stages/stage", "reference_server", "reference_vocab", "gate_setup")
]
NO_ENGINE = {"errors", "version", "oracle", "__init__", "blocks", "shapes"}


def reached(path: Path) -> dict[Path, Path]:
    """Every file of ours that a file imports, directly or through others -> the one that imports it."""
    seen, todo = {}, [(path, path)]
    while todo:
        file, importer = todo.pop()
        if file in seen:
            continue
        seen[file] = importer
        for _, name in imported(file):
            todo += [(found, file) for found in _files(name)]
    return seen


@pytest.mark.parametrize("path", [*RECORDERS, *CASES, *GATE, *modules(PACKAGE / "oracle")], ids=lambda path: path.name)
def test_the_expected_side_imports_no_engine_code(path):
    """Nor do the modules of ours that they import, directly or through others; nor does any import by name."""
    for file, importer in reached(path).items():
        if file.is_relative_to(PACKAGE):
            assert part(file) in NO_ENGINE, f"{importer.relative_to(ROOT)} imports {file.relative_to(ROOT)}"
        words = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
        assert not words & {"importlib", "__import__", "exec", "eval"}, file


def test_imports_through_others_are_seen():
    found = {str(file.relative_to(ROOT)) for file in reached(ROOT / "tests" / "test_cli_oracle.py")}
    assert {"bankml/cli/oracle.py", "bankml/forward.py", "bankml/cpu/pool.py"} <= found


def test_loading_the_expected_side_loads_no_engine_code():
    files = [*CASES, *RECORDERS, GATE[0], *modules(PACKAGE / "oracle")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    names = [name.removesuffix(".__init__") for name in names]
    script = f"import sys, {', '.join(names)}\nprint(*sorted(name for name in sys.modules if name[:7] == 'bankml.'))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    assert {name.split(".")[1] for name in done.stdout.split()} <= NO_ENGINE


def _files(name: str):
    """The files of this repository that a dotted name imports: the module, or the module that holds the name."""
    words = name.split(".")
    if words[0] not in ("bankml", "tests", "testing"):
        return
    for end in (len(words), len(words) - 1):
        for candidate in (ROOT.joinpath(*words[:end]).with_suffix(".py"), ROOT.joinpath(*words[:end], "__init__.py")):
            if candidate.is_file():
                yield candidate
                return


@pytest.mark.parametrize("path", modules(PACKAGE / "cli"), ids=lambda path: path.name)
def test_commands_load_nothing_heavy_before_they_run(path):
    """A command's module loads for its arguments alone; what it imports at the top, all the way down, is light."""
    seen, todo = set(), [path]
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for line, name in imported(file, everywhere=False):
            assert name.split(".")[0] not in HEAVY, f"{path.name} loads {name} ({file.relative_to(ROOT)}:{line})"
            todo += _files(name)


HELPS = [["--help"], ["--version"], ["generate", "--help"], ["bench", "--help"], ["oracle", "check", "--help"]]


@pytest.mark.parametrize("command", [*HELPS, ["guard", "nothing.gguf"], ["tokenize", "nothing.gguf"]], ids=" ".join)
def test_what_must_be_quick_imports_nothing_heavy(command, tmp_path):
    script = f"import sys; from bankml.cli.main import main\ntry: main({command!r})\nexcept SystemExit: pass\n"
    script += f"print(*sorted(set(sys.modules) & {HEAVY!r}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    loaded = done.stderr.splitlines()[-1].split()
    assert not set(loaded) & {"numba", "llvmlite", "pyopencl", "rich"}, loaded
    if "--help" in command or "--version" in command:
        assert loaded == []


def test_every_public_name_is_there():
    import bankml

    for name in bankml.__all__:
        assert getattr(bankml, name) is not None
    with pytest.raises(AttributeError):
        _ = bankml.no_such_name


def test_importing_the_package_loads_next_to_nothing():
    script = "import sys, bankml; sys.exit(','.join(set(sys.modules) & {'numpy', 'numba', 'argparse'}))"
    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).stderr.strip() == b""
