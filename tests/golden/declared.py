"""What stands in the package's source: lines of the log, and public names with their signatures."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import celery_lowkiq
from celery_lowkiq.integration.queue import OrderedQueue

PACKAGE = Path(celery_lowkiq.__file__).parent
ROOT = PACKAGE.parent
LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
#: What each module that logs, or has a logger, holds.
LOGS = re.compile(rf"Logger\(|log\w*\.({'|'.join(LEVELS)})\(")
#: Modules that docs name.
PUBLIC = (
    "celery_lowkiq",
    "celery_lowkiq.contrib.django.test",
    "celery_lowkiq.embedded",
    "celery_lowkiq.flower",
    "celery_lowkiq.testing",
    "celery_lowkiq.web",
)
#: What tasks and operators get from public classes.
GIVEN = (OrderedQueue,)


# -- lines of the log


def log_lines() -> str:
    """Logger, level and text of each call of a logger, in whichever module it stands."""
    texts = [(path.stem, path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]
    modules = [_Module(stem, ast.parse(text)) for stem, text in texts if LOGS.search(text)]
    values = {f"{one.stem}.{name}": value for one in modules for name, value in one.values.items()}
    values |= {name: logger for module in modules for name, logger in module.wrapped(values)}
    lines = sorted({line for module in modules for line in module.lines(values)})
    return "".join(f"{line}\n" for line in lines)


class _Module:
    """A module: its loggers and its texts by name, and what it logs."""

    def __init__(self, stem: str, tree: ast.Module) -> None:
        self.stem = stem
        self._nodes = list(ast.walk(tree))
        self.values = dict(self._constants())

    def _constants(self) -> Iterator[tuple[str, str]]:
        for node in self._nodes:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                yield ast.unparse(target), repr(node.value.value)
            elif isinstance(node.value, ast.Call):
                call = re.fullmatch(r"(?:logging\.)?getLogger\('(.*)'\)", ast.unparse(node.value))
                if call:
                    yield ast.unparse(target), call[1]

    def wrapped(self, values: dict[str, str]) -> Iterator[tuple[str, str]]:
        """The module's loggers around loggers of other modules, with the names of these."""
        known = self._imported(values)
        for node in self._nodes:
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                inner = {ast.unparse(argument) for argument in node.value.args[:1]} & known.keys()
                yield from ((f"{self.stem}.{ast.unparse(node.target)}", known[name]) for name in inner)

    def lines(self, values: dict[str, str]) -> Iterator[str]:
        """``logger level: text``; the text is code where it is none that stands in the source."""
        known = self._imported(values) | self.values
        for node in self._nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if (level := node.func.attr) not in LEVELS:
                continue
            logger = ast.unparse(node.func.value)
            if "log" in logger.rpartition(".")[2]:
                text = ast.unparse(node.args[level == "log"])
                yield f"{known.get(logger, logger)} {level}: {known.get(text, text)}"

    def _imported(self, values: dict[str, str]) -> dict[str, str]:
        """The values of other modules by the names that this one gives them; Celery's loggers as theirs."""
        found = {}
        for node in self._nodes:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                value = values.get(f"{module.rpartition('.')[2]}.{alias.name}")
                if value is None and module.startswith("celery.") and alias.name == "logger":
                    value = module
                if value is not None:
                    found[alias.asname or alias.name] = value
        return found


# -- public names


def public_names() -> str:
    """The names of each public module; signatures of functions, and of the methods of classes."""
    parts = []
    for module in PUBLIC:
        found = importlib.import_module(module)
        names = getattr(found, "__all__", None) or _own(found)
        parts.append("\n".join([module, *(f"  {line}" for name in names for line in _lines_of(found, name))]))
    parts += ["\n".join(_of_a_class(given.__name__, given)) for given in GIVEN]
    return "\n\n".join(parts) + "\n"


def _own(module: Any) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def _lines_of(module: Any, name: str) -> list[str]:
    value = getattr(module, name)
    if inspect.isclass(value):
        return _of_a_class(name, value)
    return [f"{name}{_signature(value)}"]


def _of_a_class(name: str, value: type) -> list[str]:
    bases = ", ".join(base.__name__ for base in value.__mro__[1:-1] if not _is_part(base))
    lines = [f"class {name}({bases})"]
    if is_typeddict(value):
        return [*lines, *(f"  {field}: {kind}" for field, kind in get_type_hints(value).items())]
    if issubclass(value, BaseException) and "__init__" not in vars(value):
        return lines
    members = {
        member: found
        for part in reversed(value.__mro__)
        if part is value or _is_part(part)
        for member, found in vars(part).items()
        if member == "__init__" or (not member.startswith("_") and member in _docs())
    }
    return [*lines, *(f"  {member}{_signature(found)}" for member, found in sorted(members.items()))]


@cache
def _docs() -> set[str]:
    """The names in the code of the users' docs: a method that is none of them is the package's own."""
    pages = {ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "code-walk.md"}
    return {name for page in pages for name in re.findall(r"(?<=[`.])\w+", page.read_text())}


def _is_part(base: type) -> bool:
    """Whether a base is the package's own without being public: its methods are those of the class."""
    return base.__module__.startswith("celery_lowkiq.") and base.__name__ not in celery_lowkiq.__all__


def _signature(value: Any) -> str:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if inspect.isfunction(value):
        return re.sub(r" at 0x\w+", "", str(inspect.signature(value)))
    return ": property" if isinstance(value, property) or hasattr(type(value), "__get__") else ""
