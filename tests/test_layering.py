"""The architecture: which module may import which. `ALLOWED` is its documentation; a new module needs a line in it."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CORE = {"errors", "precision", "ops", "network"}
GROUP = CORE | {"symmetry", "turns", "action"}
FORM = GROUP | {"fold", "gauge", "pieces"}
MEASURE = FORM | {"order", "matching", "forward"}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "precision": set(),
    "ops": {"errors"},
    "network": {"errors", "precision", "ops"},
    "run": CORE,
    "borrow": CORE | {"run"},
    "families": {"errors", "ops"},
    "formats": CORE | {"run", "borrow", "families"},
    "forward": CORE,
    "symmetry": CORE,
    "turns": CORE | {"symmetry"},
    "action": CORE | {"symmetry", "turns"},
    "pieces": CORE | {"symmetry"},
    "fold": GROUP,
    "gauge": GROUP | {"pieces"},
    "order": GROUP | {"pieces"},
    "matching": GROUP | {"pieces"},
    "describe": FORM | {"run"},
    "compare": MEASURE | {"run", "borrow"},
    "transform": MEASURE | {"compare"},
    "zoo": MEASURE | {"run", "borrow", "formats", "compare"},
    "similarity": CORE | {"run", "formats", "forward"},
}

LIBRARY = sorted((ROOT / "canon").rglob("*.py"))
COMMAND = sorted((ROOT / "cli").rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Absolute dotted names of all that a file imports, anywhere in it."""
    package = ("canon_cli" if path.is_relative_to(ROOT / "cli") else "canon", *path.relative_to(ROOT).parts[1:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1]] if node.level else [])
            base = ".".join(part for part in (base, node.module) if part)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def modules(names: set[str], package: str, known: set[str]) -> set[str]:
    """The known modules right under a package among dotted names."""
    heads = {n.removeprefix(f"{package}.").split(".")[0] for n in names if n.startswith(f"{package}.")}
    return heads & known


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [p for p in LIBRARY if p.name != "__init__.py" or p.parent.name != "canon"], ids=relative)
def test_library_imports_only_what_is_below(path: Path) -> None:
    own = path.relative_to(ROOT / "canon").parts[0].removesuffix(".py")
    assert own in ALLOWED, f"give {own} a line in ALLOWED"
    known = {p.relative_to(ROOT / "canon").parts[0].removesuffix(".py") for p in LIBRARY}
    assert modules(imports(path), "canon", known) - {own, "__init__"} <= ALLOWED[own]


@pytest.mark.parametrize("path", [p for p in LIBRARY if p.parent.name == "formats" and p.name != "__init__.py"], ids=relative)
def test_formats_do_not_know_each_other(path: Path) -> None:
    family = path.stem.split("_")[0]  # keras_*.py together read what Keras wrote
    others = {
        p.stem for p in path.parent.glob("*.py") if p.stem.split("_")[0] not in {family, "common", "magic", ""}
    }  # magic: what a file is
    assert not modules(imports(path), "canon.formats", others)


@pytest.mark.parametrize("path", LIBRARY + COMMAND, ids=relative)
def test_only_the_command_knows_the_command_and_only_its_console_knows_rich(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    if path in LIBRARY:
        assert not roots & {"cli", "canon_cli"}
    if path != ROOT / "cli" / "console.py":
        assert "rich" not in roots


def test_h5py_is_imported_only_inside_functions_of_formats() -> None:
    for path in LIBRARY + COMMAND:
        assert path.parent.name == "formats" or "h5py" not in imports(path), relative(path)
        at_top = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.Import | ast.ImportFrom)]
        assert not any("h5py" in ast.unparse(node) for node in at_top), f"{relative(path)} imports h5py at its top"


def test_every_package_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {p.parent.relative_to(ROOT) for p in LIBRARY + COMMAND}
    here = {".".join(("canon_cli" if f.parts[0] == "cli" else f.parts[0], *f.parts[1:])) for f in folders}
    assert set(project["tool"]["setuptools"]["packages"]) == here
