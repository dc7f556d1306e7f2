"""Every error code that the source can send stands in PROTOCOL.md, once and with its meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import personae

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "bindings" / "PROTOCOL.md"
KINDS = {"PersonaeError", "AskedWrong", "BrokeProtocol", "WorldFailed", "OurBug"}
FACTS = {"AdapterRefused": 1, "TurnFaulted": 1, "FailTurn": 1}  # where `code` stands among positional arguments
RENAMED = ("adapter_truncated",)  # packs/lora.py makes it of gguf_truncated
INNER = ("unreadable",)  # of engine/packing.py: pipe and record each give it a code of their own
CODE = re.compile(r"[a-z][a-z0-9_]*")


Helpers = dict[str, tuple[int, str]]  # function that raises with its parameter `code` -> where that stands, and what is put before it


def codes_in(tree: ast.Module, helpers: Helpers) -> Iterator[str]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = name_of(call.func)
        for code in (text for given in codes_given(call, name, helpers) for text in strings_of(given)):
            yield helpers[name][1] + code if name in helpers else code


def codes_given(call: ast.Call, name: str, helpers: Helpers) -> list[ast.expr]:
    at = 0 if name in KINDS else helpers[name][0] if name in helpers else FACTS.get(name)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    return given + ([call.args[at]] if at is not None and len(call.args) > at else [])


def helpers_in(tree: ast.Module) -> Iterator[tuple[str, tuple[int, str]]]:
    """Functions that raise with their own parameter `code`, perhaps after a prefix: where it stands, and the prefix."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        if "code" not in names:
            continue
        for raised in (node for node in ast.walk(function) if isinstance(node, ast.Call) and name_of(node.func) in KINDS | set(FACTS)):
            first = raised.args[FACTS.get(name_of(raised.func), 0)]
            if isinstance(first, ast.JoinedStr) and isinstance(first.values[0], ast.Constant):
                yield function.name, (names.index("code"), str(first.values[0].value))
            elif isinstance(first, ast.Name) and first.id == "code":
                yield function.name, (names.index("code"), "")


def helpers_of(tree: ast.Module, modules: dict[str, ast.Module]) -> Helpers:
    """Its own, and those it imports from others of ours."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in modules]
    imported = {
        alias.asname or alias.name: found
        for node in imports
        for alias in node.names
        if (found := dict(helpers_in(modules[str(node.module)])).get(alias.name)) is not None
    }
    return imported | dict(helpers_in(tree))


def name_of(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def strings_of(node: ast.expr) -> Iterator[str]:
    """A literal, or both sides of a condition; a variable says nothing here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from strings_of(node.body)
        yield from strings_of(node.orelse)


def used() -> dict[str, str]:
    """Code -> a file that uses it."""
    root = Path(personae.__file__).parent
    paths = {".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in sorted(root.rglob("*.py"))}
    modules = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in paths.items()}
    return {code: paths[module].name for module, tree in modules.items() for code in codes_in(tree, helpers_of(tree, modules))}


def listed() -> list[str]:
    section = PROTOCOL.read_text(encoding="utf-8").split("## 5. Errors")[1].split("## 6.")[0]
    return re.findall(r"^\| `([a-z0-9_]+)` \|", section, re.MULTILINE)


def test_every_code_in_the_source_is_in_the_table() -> None:
    missing = {code: file for code, file in used().items() if code not in (*listed(), *INNER)}
    assert not missing, f"add to bindings/PROTOCOL.md, section 5: {missing}"


def test_codes_are_snake_case() -> None:
    assert all(CODE.fullmatch(code) for code in used())


def test_every_code_in_the_table_is_listed_once() -> None:
    assert len(listed()) == len(set(listed()))


def test_every_code_in_the_table_is_one_the_source_knows() -> None:
    unknown = set(listed()) - set(used()) - set(RENAMED)
    assert not unknown, f"nothing in the source sends {sorted(unknown)}"


def test_the_scan_finds_codes_at_all() -> None:
    assert {"bad_frame", "too_large", "bad_message"} <= set(used())
