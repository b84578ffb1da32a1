"""House rules as tests: lint, types, import direction, sizes, docstrings, and two versions of Python."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import HOSTS, tree, write_profile
from tuner.sim import store

REPO = Path(__file__).parents[1]
PRODUCT = sorted((REPO / "tuner").rglob("*.py"))
TESTS = sorted((REPO / "tests").rglob("*.py"))
OLDEST = (3, 10)
"""As requires-python in pyproject.toml has it."""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "model", "shipped", "fastyaml", "fast", "hung"),
    ("host", "sim", "pci", "pci_names", "hardware", "scrub", "cpulist", "holders", "probes"),
    ("boot",),
    ("knobs",),
    ("profile", "journal", "ledger", "persist", "plan", "expand", "nextboot", "readings"),
    (
        "run",
        "apply",
        "undo",
        "lock",
        "off",
        "applied",
        "idle",
        "planfile",
        "detect",
        "capture",
        "evidence",
        "devices",
        "losses",
        "reassert",
        "unitfiles",
        "skips",
        "judging",
    ),
    ("documents", "render", "formats", "fleet"),
    ("slurm",),
    ("cli", "__main__"),
)
"""Modules and packages of tuner; each may import from its own line and from those above it, never from below."""

TABLES = {
    "tuner/knobs/sysctl_keys.py": "one row per kernel parameter: type, range, length, the release that dropped it"
}
"""Code files that may be longer than 350 lines, with the reason."""

PARSERS = {"tuner/cli/parser.py:parse": "the verbs and their options in one place"}
"""Functions that may be longer than 50 lines, with the reason."""


def name_of(path: Path) -> str:
    """tuner/knobs/thp.py -> tuner.knobs.thp."""
    return ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")


def relative(path: Path) -> str:
    """The path as it is in the repository."""
    return str(path.relative_to(REPO))


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


# --- lint and types -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(words: list[str]) -> None:
    """The pinned ruff finds nothing in the whole repository."""
    command = [sys.executable, "-m", "ruff", *words, "--no-cache", "."]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types() -> None:
    """mypy --strict over product and tests, as Python 3.10 sees them."""
    version = ".".join(map(str, OLDEST))
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", version, "tuner", "tests"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pinned_tools() -> None:
    """What is linted with today is linted with tomorrow: ruff and mypy have one exact version, which runs here."""
    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    for tool in ("ruff", "mypy"):
        (version,) = re.findall(rf'"{tool}==([0-9.]+)"', text)
        said = subprocess.run(
            [sys.executable, "-m", tool, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
        assert said.stdout.split()[1] == version


# --- imports ------------------------------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """The modules of tuner that a file imports, anywhere in it."""
    modules = {name_of(p) for p in PRODUCT}
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else base for name in names}
    return {name for name in found if name in modules}


def layer(module: str) -> int:
    """Which line of the table a module is in; the package itself is the first."""
    part = module.split(".")[1] if "." in module else ""
    found = [number for number, names in enumerate(LAYERS) if part in names]
    if not part:
        return 0
    assert found, f"{module} is in no layer: add it to LAYERS"
    return found[0]


def test_layers_are_complete() -> None:
    """Every module of tuner has its line in the table, and every name in the table is one of tuner."""
    known = [name for names in LAYERS for name in names]
    assert len(known) == len(set(known))
    assert {name_of(p).split(".")[1] for p in PRODUCT if name_of(p) != "tuner"} == set(known)


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    """From the command line down to the nouns."""
    here = name_of(path)
    wrong = sorted(other for other in imports(path) if layer(other) > layer(here))
    assert not wrong, f"{here} imports {', '.join(wrong)}, which is above it"


def test_no_import_cycle() -> None:
    """Not inside a layer either, nor by way of imports inside functions. A package may import its own modules."""
    graph = {name_of(p): {i for i in imports(p) if not name_of(p).startswith(f"{i}.")} for p in PRODUCT}
    seen: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"cycle: {' -> '.join((*path[path.index(module) :], module))}"
        if seen.setdefault(module, 0):
            return
        for other in graph.get(module, ()):
            visit(other, (*path, module))
        seen[module] = 1

    for module in graph:
        visit(module, ())


def test_only_the_command_line_prints() -> None:
    """print, input and the standard streams belong to cli, render, and the answer from evidence that needs neither."""
    for path in PRODUCT:
        if name_of(path).split(".")[1:2] in (["cli"], ["render"], ["__main__"], ["fast"]):
            continue
        for node in ast.walk(parsed(path)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            stream = isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr", "stdin", "exit")
            at_sys = stream and isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sys"
            assert called not in ("print", "input", "exit"), f"{relative(path)}:{getattr(node, 'lineno', 0)}"
            assert not at_sys, f"{relative(path)}:{getattr(node, 'lineno', 0)}"


def unordered(node: ast.expr) -> bool:
    """Whether an expression is a set, or made of some, and not sorted."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    if isinstance(node, ast.BinOp):
        return unordered(node.left) or unordered(node.right)
    return isinstance(node, (ast.Set, ast.SetComp))


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_cases_have_an_order(path: Path) -> None:
    """Workers of pytest-xdist must collect the same: a set has another order in each process."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize":
            assert not any(map(unordered, node.args[1:2])), f"{relative(path)}:{node.lineno}"


# --- sizes and docstrings -----------------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """FILE:NAME and node of each function, methods and inner ones included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, Function):
            yield f"{relative(path)}:{node.name}", node


def lines(node: Function) -> int:
    """From `def` to the last line."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("files", [PRODUCT, TESTS], ids=["tuner", "tests"])
def test_functions_are_short(files: list[Path]) -> None:
    """At most 50 lines, and nine of ten at most 20."""
    sizes = {f"{name} line {node.lineno}": lines(node) for path in files for name, node in functions(path)}
    allowed = {name for name in sizes if name.split(" ")[0] in PARSERS}
    assert {name: size for name, size in sizes.items() if size > 50 and name not in allowed} == {}
    ordered = sorted(sizes.values())
    assert ordered[len(ordered) * 9 // 10] <= 20


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_files_are_short(path: Path) -> None:
    """Code files have at most 350 lines; tables are named above with their reason."""
    count = len(path.read_text(encoding="utf-8").splitlines())
    if relative(path) in TABLES:
        assert count > 350, f"{relative(path)} needs no exception any more"
        body = parsed(path).body
        assert not any(isinstance(node, Function) and lines(node) > 20 for node in body), "code hides in a table"
    else:
        assert count <= 350, f"{count} lines"


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_docstrings(path: Path) -> None:
    """Each module, each public class and each public function or method says what it is."""
    module = parsed(path)
    assert ast.get_docstring(module), f"{relative(path)} has no docstring"
    places: list[ast.Module | ast.ClassDef] = [module]
    for place in places:
        for node in place.body:
            if isinstance(node, (ast.ClassDef, Function)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{relative(path)}:{node.lineno}: {node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                places.append(node)


# --- what no file of the product does ------------------------------------------------------------------------------


def shipped_files() -> list[Path]:
    """Everything that is installed or read by those who install it."""
    folders = [REPO / name for name in ("tuner", "profiles", "checks", "playbooks", "tests/hosts")]
    found = [p for folder in folders for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    names = ("README.md", "DECISIONS.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
    return [*found, *(REPO / name for name in names if (REPO / name).is_file())]


ELSEWHERE = re.compile(
    r"(?<![\w.])/(?:home|root|Users)/\w"  # somebody's own folder
    r"|https?://[^\s/]*(?:pypi|pythonhosted|artifactory|nexus|mirror|proxy|localhost)"  # a package host
    r"|--(?:extra-)?index-url|--trusted-host"
)


def test_no_file_names_a_machine() -> None:
    """No path of the machine that built it, no home folder, no package host."""
    here = [re.escape(str(place)) for place in (REPO, Path(sys.prefix)) if len(place.parts) > 2]
    pattern = re.compile("|".join([ELSEWHERE.pattern, *(rf"{place}(?![\w.-])" for place in here)]))
    found = []
    for path in shipped_files():
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{relative(path)}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "eval", "exec", "pty.spawn"}
STARTERS = ("subprocess.", "shell.run", "os.exec", "os.spawn", "os.posix_spawn")


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_no_command_goes_through_a_shell(path: Path) -> None:
    """No shell, no command made of text: a command is a list of words."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call):
            continue
        where, called = f"{relative(path)}:{node.lineno}", ast.unparse(node.func)
        assert called not in SHELLS, f"{where}: {called}"
        assert not any(word.arg == "shell" for word in node.keywords), f"{where}: shell="
        if called.startswith(STARTERS) and node.args:
            assert not isinstance(node.args[0], (ast.JoinedStr, ast.Constant, ast.BinOp)), f"{where}: a command in text"


def modes(path: Path) -> Iterator[tuple[int, int]]:
    """Line and value of each octal number that is not a mask or a bound."""
    text, module = path.read_bytes().splitlines(), parsed(path)
    masks = {
        id(part)
        for node in ast.walk(module)
        if isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd))
        for part in ast.walk(node)
    }
    for node in ast.walk(module):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, int) or id(node) in masks:
            continue
        if text[node.lineno - 1][node.col_offset :].lower().startswith(b"0o"):
            yield node.lineno, node.value


def test_no_mode_lets_others_write() -> None:
    """Modes in the code give the write bit to the owner alone; nobody changes the umask."""
    found = [(relative(path), line, mode) for path in PRODUCT for line, mode in modes(path)]
    assert len(found) >= 5, "the search finds no modes at all"
    assert [row for row in found if row[2] & 0o022] == []
    assert not any("umask(" in path.read_text(encoding="utf-8") for path in PRODUCT)


EVERYTHING = """
sysctl:
  vm.swappiness: 1
file:
  /etc/sysctl.d/made/by-tuner.conf: "vm.swappiness = 1\\n"
"""


def test_nothing_created_can_be_written_by_others(tmp_path: Path) -> None:
    """Under umask 0: what apply, off and rollback create on a host has no write bit for group and others."""
    root, profile = tmp_path / "host", write_profile(tmp_path / "p.yaml", EVERYTHING)
    store.copy(HOSTS / "plain-vm.host", str(root), [])
    before = set(root.rglob("*"))
    words = ["--root", str(root)]
    script = 'umask 0; exec "$0" "$@"'
    for verb in (["apply", "--profile", str(profile)], ["off", "--why", "test"]):
        command = ["sh", "-c", script, sys.executable, "-m", "tuner", *verb, *words]
        done = subprocess.run(command, env=_env(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    made = [path for path in root.rglob("*") if path not in before and not path.is_symlink()]
    assert {"lock", "current.json", "off", "by-tuner.conf", "000001.jsonl"} <= {path.name for path in made}
    assert [str(path) for path in made if path.stat().st_mode & 0o022] == []


def _env(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO), "PYTHONDONTWRITEBYTECODE": "1", **more}


# --- versions of Python -------------------------------------------------------------------------------------------


@functools.cache
def interpreters() -> dict[tuple[int, ...], str]:
    """Versions that really run here, from PATH and from pyenv's own folder; nothing is downloaded."""
    places = [Path(folder) for folder in os.get_exec_path()]
    candidates = [Path(sys.executable), *(p for place in places for p in sorted(place.glob("python3.*")))]
    candidates += sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
    found: dict[tuple[int, ...], str] = {}
    for candidate in candidates:
        if candidate.is_file() and re.fullmatch(r"python3?(\.\d+)?", candidate.name):
            version = _version(str(candidate))
            if version >= OLDEST:
                found.setdefault(version, str(candidate))
    return found


def _version(executable: str) -> tuple[int, ...]:
    code = "import sys, ctypes, zlib; print(sys.version_info[0], sys.version_info[1])"
    try:
        done = subprocess.run(
            [executable, "-c", code], capture_output=True, text=True, timeout=30, check=False, cwd="/"
        )
        return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ()


@pytest.fixture(scope="module")
def pure_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyYAML without its C part, which is built for one version of Python."""
    folder = tmp_path_factory.mktemp("site")
    spec = importlib.util.find_spec("yaml")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, folder / "yaml", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


@pytest.fixture(params=["oldest", "newest"])
def python(request: pytest.FixtureRequest) -> str:
    """Python 3.10, and the newest one found."""
    found = interpreters()
    if len(found) < 2:
        pytest.skip(f"only one version of Python found: {'.'.join(map(str, *found))}")
    if request.param == "newest":
        return found[max(found)]
    if OLDEST not in found:
        pytest.skip(f"no Python {'.'.join(map(str, OLDEST))} found")
    return found[OLDEST]


def _tuner(python: str, site: Path, words: Sequence[object]) -> tuple[int, str]:
    command = [python, "-W", "error", "-m", "tuner", *map(str, words)]
    env = _env(PYTHONPATH=f"{REPO}{os.pathsep}{site}", PYTHONNOUSERSITE="1")
    done = subprocess.run(command, env=env, cwd=site, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_core_on_oldest_and_newest(python: str, pure_yaml: Path, tmp_path: Path) -> None:
    """Copy a host, plan, apply, verify, apply again, drift, roll back: every exit code, and the tree as it was."""
    root, fresh = tmp_path / "host", tmp_path / "fresh"
    where = ["--root", root]
    profile = ["--profile", "linux-gpu"]
    for target in (root, fresh):
        assert _tuner(python, pure_yaml, ["host", "copy", "plain-vm", target])[0] == 0
    steps: list[tuple[list[object], int, str]] = [
        (["plan", *where, *profile], 10, "212992"),
        (["apply", *where, *profile], 0, "Generation 1"),
        (["verify", *where], 0, "Applied: generation 1"),
        (["apply", *where, *profile, "--json"], 0, '"generation": null'),
        (["explain", "sysctl:vm.swappiness", *where], 0, "swapped out"),
        (["status", *where], 0, "generation 1"),
        (["plan", *where, "--profile", "nonsense"], 64, "hint: "),
        (["rollback", *where], 0, "rolled back"),
        (["history", *where], 0, "rolled back"),
    ]
    for words, code, text in steps:
        found, out = _tuner(python, pure_yaml, words)
        assert found == code, f"{words}: {out}"
        assert text in out
        assert "Traceback" not in out
    assert tree(root) == tree(fresh)


def test_every_module_loads_on_oldest_and_newest(python: str, pure_yaml: Path) -> None:
    """Each module is imported by itself, warnings being errors; each test file compiles."""
    code = (
        "import importlib, pathlib, sys\n"
        "for name in sys.argv[2].split(): importlib.import_module(name)\n"
        "for path in pathlib.Path(sys.argv[1]).rglob('*.py'): compile(path.read_bytes(), str(path), 'exec')\n"
    )
    modules = " ".join(name_of(p) for p in PRODUCT if p.name != "__main__.py")
    env = _env(PYTHONPATH=f"{REPO}{os.pathsep}{pure_yaml}", PYTHONNOUSERSITE="1")
    command = [python, "-W", "error", "-c", code, str(REPO / "tests"), modules]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
