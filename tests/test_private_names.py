"""docs/private_names.md names everything private of Keras and TensorFlow that the package touches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = [ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "keras_turbo").rglob("*.py"))]
PYTHON = {"_getframe", "_current_frames", "_exit", "_register_atexit", "_CFuncPtr"}
# Strings and attributes of ours that look like private names, and no definition says so.
OURS = {"_batch_", "_computing", "_folder", "_heeds_workers", "_loss"}


def test_every_private_name_is_in_the_table() -> None:
    table = (ROOT / "docs" / "private_names.md").read_text("utf-8")
    rows = "\n".join(line for line in table.splitlines() if line.startswith("|"))
    nodes = [node for tree in TREES for node in ast.walk(tree)]
    used = {name for node in nodes for name in _used(node)}
    ours = {name for node in nodes for name in _defined(node)} | OURS | PYTHON
    missing = {name for name in used - ours if f"`{name}`" not in rows and not name.startswith("_keras_turbo_")}
    assert "_initial_epoch" in used
    assert not missing, f"not in docs/private_names.md: {sorted(missing)}"


def _used(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = [node.value]
    elif isinstance(node, ast.ImportFrom) and re.match(r"keras\.src|tensorflow\.python", node.module or ""):
        yield from (f"{node.module}.{one.name}" for one in node.names)
        return
    elif isinstance(node, ast.Import):
        yield from (one.name for one in node.names if re.match(r"keras\.src|tensorflow\.python", one.name))
        return
    else:
        return
    yield from (name for name in names if re.fullmatch(r"_[A-Za-z]\w*", name))


def _defined(node: ast.AST) -> Iterator[str]:
    """Functions and classes of ours, and what our objects keep."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
        yield node.attr
