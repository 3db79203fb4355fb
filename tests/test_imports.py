"""Imports point one way, and importing keras_turbo changes nothing."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import keras_turbo
from keras_turbo import moved

PACKAGE = Path(__file__).parents[1] / "keras_turbo"

BASE = {"report", "files", "machine"}
FOUNDATIONS = {"data", "layers", "precision", "distribution", "checkpoint", "monitor", "execution"}
AUDIT = FOUNDATIONS | {"auditing"}
# Which parts of keras_turbo each part may import, besides itself; "" is the package's own __init__.
MAY_IMPORT = {
    # Files by their paths, behind a scheme too; it imports nothing of ours.
    "files": set(),
    # Tables, JSON and pages, and how far long work is; pages are files.
    "report": {"files"},
    # What this machine has for this process; it imports nothing of ours either.
    "machine": set(),
    # What attaches to a running fit; nor does this.
    "fit": set(),
    **{part: {"fit", *BASE} for part in FOUNDATIONS},
    # A head is swapped for a safe one; layers import nothing of ours.
    "precision": {"layers", "fit", *BASE},
    # It asks the driver for the GPUs of the workers that it starts.
    "distribution": {"monitor", "fit", *BASE},
    "auditing": {"fit", *BASE, *FOUNDATIONS},
    # Old paths of public names.
    "moved": set(),
    "": {"moved", *AUDIT},
    "demo": {"", *BASE, *AUDIT},
    # Looks at the machine; what it says of keras_turbo's own parts are words.
    # It reads the cluster's variables as distribute() does.
    "doctor": {"monitor", "distribution", *BASE},
    "cli": {"", "demo", "doctor", *AUDIT},
    "__main__": {"cli"},
}
# The GPU's counters must be readable where no TensorFlow is.
MAY_NOT_IMPORT = {part: {"tensorflow", "keras", "tf_keras"} for part in ("machine",)}
IMPORTING_FUNCTIONS = {"importlib.import_module", "import_module", "__import__"}


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(source: str, package: str):
    """Each absolute dotted name that the source imports, wherever in the source it does so, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = [*parents, *([node.module] if node.module else [])]
            yield from ((".".join([*base, alias.name]), node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTING_FUNCTIONS:
            yield from ((arg.value, node.lineno) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """Describes each import of the module that the order of the parts does not allow."""
    importer = module.split(".")[1] if "." in module else ""
    wrong = []
    for name, line in imported_names(source, module if is_package else module.rpartition(".")[0]):
        first, *rest = name.split(".")
        if first in MAY_NOT_IMPORT.get(importer, ()):
            wrong.append(f"{module}, line {line}: {importer} must not import {first}")
        if first != "keras_turbo":
            continue
        # In `from keras_turbo import FastDataset` the name is no part but something that __init__ gives.
        imported = rest[0] if rest and rest[0] in MAY_IMPORT else ""
        if imported != importer and imported not in MAY_IMPORT[importer]:
            wrong.append(f"{module}, line {line}: {importer or '__init__'} must not import {imported or '__init__'}")
    return wrong


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=[module_name(path, PACKAGE) for path in MODULES])
def test_imports_point_one_way(path):
    module = module_name(path, PACKAGE)
    part = module.split(".")[1] if "." in module else ""
    assert part in MAY_IMPORT, f"{part} has no place in the order of the parts yet: give it one in MAY_IMPORT"
    assert wrong_imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("keras_turbo.data.images", "import keras_turbo.layers"),
        ("keras_turbo.data.images", "import numpy, keras_turbo.checkpoint.writer as writer"),
        ("keras_turbo.data.images", "from keras_turbo import layers"),
        ("keras_turbo.data.images", "from keras_turbo import FastDataset"),
        ("keras_turbo.data.images", "import keras_turbo"),
        ("keras_turbo.data.images", "from keras_turbo.layers import MixedPrecisionSafeHead"),
        ("keras_turbo.data.images", "from .. import layers"),
        ("keras_turbo.data.images", "from ..layers import MixedPrecisionSafeHead"),
        ("keras_turbo.data.images", "from ..layers.mixed_precision_safe_head import MixedPrecisionSafeHead"),
        ("keras_turbo.data.sources.arrays", "from ...checkpoint import writer"),
        ("keras_turbo.data.images", "def f():\n    from keras_turbo.monitor import GpuUtilization"),
        ("keras_turbo.data.images", "if TYPE_CHECKING:\n    import keras_turbo.auditing"),
        ("keras_turbo.data.images", "importlib.import_module('keras_turbo.cli')"),
        ("keras_turbo.layers.head", "from keras_turbo.precision import policy"),
        ("keras_turbo.machine", "from keras_turbo.precision import policy"),
        ("keras_turbo.precision.safe", "from keras_turbo.execution import tune"),
        ("keras_turbo.execution.tune", "from keras_turbo.data import input_wait"),
        ("keras_turbo.checkpoint.writer", "from keras_turbo.monitor import GpuUtilization"),
        ("keras_turbo.monitor.gpu", "from keras_turbo.auditing import verdict"),
        ("keras_turbo.auditing.verdict", "from keras_turbo import cli"),
        ("keras_turbo.demo", "from keras_turbo.cli import main"),
        ("keras_turbo.doctor.gpus", "from keras_turbo.data import input_wait"),
        ("keras_turbo", "from keras_turbo.cli import main"),
        ("keras_turbo.machine", "import tensorflow as tf"),
        ("keras_turbo.machine", "import keras.ops"),
        ("keras_turbo.machine", "def f():\n    from tensorflow.python import client"),
        ("keras_turbo.machine", "def f():\n    __import__('keras')"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert len(wrong_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("keras_turbo.data", "from .layers import x\nfrom . import images"),
        ("keras_turbo", "from .data import FastDataset\nfrom . import layers"),
    ],
)
def test_relative_imports_of_a_package_start_at_itself(module, source):
    assert wrong_imports(source, module, is_package=True) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("keras_turbo.data.images", "import os, keras, tensorflow as tf\nfrom keras_turbo.data import labels"),
        (
            "keras_turbo.data.sources.arrays",
            "from . import source\nfrom ..labels import Labels\nimport keras_turbo.data",
        ),
        ("keras_turbo.data.images", "from keras_turbolift import layers"),
        ("keras_turbo.monitor.gpu", "from keras_turbo.machine import cores\nfrom ..fit.input_wait import InputWait"),
        ("keras_turbo.auditing.verdict", "from keras_turbo import monitor, data"),
        ("keras_turbo.cli", "import keras_turbo as kt\nfrom keras_turbo import FastDataset, audit\nfrom . import demo"),
        ("keras_turbo.__main__", "from keras_turbo.cli import main"),
        ("keras_turbo.precision.safe", "from keras_turbo.layers import MixedPrecisionSafeHead"),
        ("keras_turbo.precision.policy", "from keras_turbo.machine import cpu_features"),
        ("keras_turbo.machine", "import pynvml, tensorflow_io"),
    ],
)
def test_a_right_import_is_let_be(module, source):
    assert wrong_imports(source, module) == []


IMPORT_AND_COMPARE = """
    import json, logging, os, random, sys, warnings
    import numpy as np
    import tensorflow as tf
    import keras

    optional = {"sklearn", "rich", "PIL", "psutil", "pynvml", "tensorboard"}
    optional |= {"tensorflow_io", "pyarrow", "fsspec", "s3fs"}

    def state():
        return {
            "dtype policy": keras.config.dtype_policy().name,
            "floatx": keras.config.floatx(),
            "epsilon": keras.config.epsilon(),
            "image data format": keras.config.image_data_format(),
            "backend": keras.config.backend(),
            "interactive logging": keras.config.is_interactive_logging_enabled(),
            "traceback filtering": keras.config.is_traceback_filtering_enabled(),
            "random state": [hash(random.getstate()), hash(repr(np.random.get_state()))],
            "run functions eagerly": tf.config.functions_run_eagerly(),
            "jit": tf.config.optimizer.get_jit(),
            "optimizer options": tf.config.optimizer.get_experimental_options(),
            "soft device placement": tf.config.get_soft_device_placement(),
            "device policy": tf.config.experimental.get_device_policy(),
            "synchronous execution": tf.config.experimental.get_synchronous_execution(),
            "threads": [
                tf.config.threading.get_inter_op_parallelism_threads(),
                tf.config.threading.get_intra_op_parallelism_threads(),
            ],
            "TensorFloat-32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "visible devices": [device.name for device in tf.config.get_visible_devices()],
            "strategy": tf.distribute.has_strategy(),
            "warning filters": [repr(one) for one in warnings.filters],
            "logging": [logging.root.level, tf.get_logger().level, logging.getLogger("absl").level],
            "log handlers": [repr(one) for one in logging.root.handlers + tf.get_logger().handlers],
            **{f"the variable {name}": value for name, value in os.environ.items()},
            "working directory": os.getcwd(),
            "hooks": [repr(sys.excepthook), repr(sys.displayhook)],
        }

    class OptionalImports:
        seen = []

        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in optional:
                self.seen.append(name)
            return None

    # Keras brings some of them itself where they are installed, so they are forgotten before keras_turbo's turn.
    for name in [name for name in sys.modules if name.partition(".")[0] in optional]:
        del sys.modules[name]
    sys.meta_path.insert(0, OptionalImports())

    # Asked first, since asking starts TensorFlow's runtime, which is a change of its own.
    state()
    before = state()
    import keras_turbo
    after = state()

    custom_objects = [name for name in keras.saving.get_custom_objects() if not name.startswith("keras_turbo>")]
    names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    changed = {name: [before.get(name), after.get(name)] for name in names}
    print(json.dumps({"changed": changed, "optional": OptionalImports.seen, "custom objects": custom_objects}))
"""


@pytest.mark.compatibility
def test_importing_changes_nothing_and_brings_nothing_optional():
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IMPORT_AND_COMPARE)],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {"changed": {}, "optional": [], "custom objects": []}


def test_all_public_names_are_there():
    assert keras_turbo.__all__[-1] == "__version__"
    assert all(hasattr(keras_turbo, name) for name in keras_turbo.__all__)
    assert sorted(keras_turbo.__all__) == dir(keras_turbo)


def test_old_paths_say_the_new_ones(monkeypatch):
    monkeypatch.setitem(moved.MOVED, "keras_turbo.old_place", {"FastDataset": "keras_turbo"})
    monkeypatch.delitem(sys.modules, "keras_turbo.old_place", raising=False)
    with pytest.warns(DeprecationWarning, match=r"keras_turbo\.old_place\.FastDataset is now keras_turbo\.") as caught:
        from keras_turbo.old_place import FastDataset
    assert caught[0].filename == __file__
    assert FastDataset is keras_turbo.FastDataset
    with pytest.raises(ImportError, match="SlowDataset"):
        from keras_turbo.old_place import SlowDataset  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("keras_turbo.never_was")
    monkeypatch.delitem(sys.modules, "keras_turbo.old_place")
    monkeypatch.delattr(keras_turbo, "old_place")


def test_names_that_have_moved_are_where_the_table_says():
    for names in moved.MOVED.values():
        for name, module in names.items():
            assert hasattr(importlib.import_module(module), name), (module, name)
