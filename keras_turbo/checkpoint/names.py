"""Names: of checkpoints in their directory, and of the files in a checkpoint."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from keras_turbo.checkpoint.training_state import check_file_name

WEIGHTS = "model.weights.h5"
SHARDED_WEIGHTS = "model.weights.json"
EXTRA = "extra_state.h5"
STATE = "training_state.json"
# Written last: what has it is whole.
MARKER = "COMMITTED"

# What begins like this is no checkpoint (yet, or any more), and hidden where folders are listed.
WRITING = ".writing-"
SHARING = ".sharing-"
DELETED = ".deleted-"
LOCK = ".lock"

# Files by which workers that write one checkpoint together tell each other how far they are.
SHARE = "share-"

# Where in the extra arrays those of other callbacks are (EarlyStopping's best weights): no part of the model.
CALLBACKS = "callbacks/"

DEFAULT_TEMPLATE = "step-{step:08d}"

_STEP = re.compile(r"(?<![A-Za-z])step[-_=]?(\d+)(?!\d)")
# Most file systems allow 255 bytes; what stands before and behind a name while it is hidden takes some of them.
_LONGEST_NAME_BYTES = 200
# What every save can tell; the other keys of a template are metrics.
STANDARD_KEYS = ("epoch", "step", "batches")


def shard_name(index: int) -> str:
    """The file of one shard of the weights, named as Keras names it."""
    return f"model_{index:05d}.weights.h5"


def is_weights(name: str) -> bool:
    """Whether a file of a checkpoint has weights."""
    return name.endswith(".weights.h5")


def is_ours(name: str) -> bool:
    """Whether a file belongs to a checkpoint, or to one that is being written."""
    return is_weights(name) or name in (SHARDED_WEIGHTS, EXTRA, STATE, MARKER) or name.startswith(SHARE)


def check_name(name: Any) -> None:
    """Refuses a name that no checkpoint can have.

    Raises:
        ValueError: it leads out of the directory, is hidden, or is too long.
    """
    check_file_name(name)
    if name.startswith(".") or name != name.strip():
        raise ValueError(
            f"A checkpoint's name must not begin with a dot, or begin or end with a blank. Received: {name!r}."
        )
    if len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ValueError(f"A checkpoint's name must have at most {_LONGEST_NAME_BYTES} bytes. Received: {name!r}.")


def step_in(name: str) -> int | None:
    """The optimizer step that a name tells ("step-00001234" tells 1234), None if it tells none."""
    found = _STEP.findall(name)
    return int(found[0]) if len(found) == 1 else None


class NameTemplate:
    """How the checkpoints of a run are named.

    Example:

    ```python
    NameTemplate("step-{step:08d}").name({"step": 1234, "epoch": 2, "batches": 1240})  # "step-00001234"
    NameTemplate("{epoch:03d}-{val_loss:.3f}").keys  # ("epoch", "val_loss")
    ```

    Args:
        template: text with fields as of `str.format`: `{epoch}`, `{step}` (optimizer steps), `{batches}` (batches in
            all) and names of metrics.

    Raises:
        ValueError: it isn't such a text, would give all checkpoints one name, or leads out of the directory.
    """

    def __init__(self, template: str = DEFAULT_TEMPLATE) -> None:
        if not isinstance(template, str):
            raise ValueError(f"The template of names must be text. Received: {template!r}.")
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        except ValueError as error:
            raise ValueError(
                f"The template of names must be as for str.format. Received: {template!r}: {error}."
            ) from error
        for field in fields:
            # Attributes and items of numbers are of no use in a name.
            if not field or field.isdigit() or "." in field or "[" in field:
                raise ValueError(
                    f"A field in a template must be the name of a value. Received: {{{field}}} in {template!r}."
                )
        if not fields:
            raise ValueError(
                f"Checkpoints would all be named {template!r}. Put a field in it, as in {DEFAULT_TEMPLATE!r}."
            )
        self.template = template
        self.keys = tuple(dict.fromkeys(fields))
        # What stands around the fields; a number has no separator in it.
        check_name(re.sub(r"\s", "_", self._fill(dict.fromkeys(self.keys, 1))))

    def metric_keys(self) -> tuple[str, ...]:
        """The fields that are metrics."""
        return tuple(key for key in self.keys if key not in STANDARD_KEYS)

    def check_metrics(self, known: Iterable[str]) -> None:
        """Refuses a template with a metric that there won't be.

        Raises:
            ValueError: with the metrics that there are.
        """
        known = list(known)
        unknown = [key for key in self.metric_keys() if key not in known]
        if unknown:
            raise ValueError(
                f"The template {self.template!r} has {', '.join(map(repr, unknown))}, which no save will know. There "
                f"are {', '.join(map(repr, [*STANDARD_KEYS, *known]))}."
            )

    def name(self, values: Mapping[str, Any]) -> str:
        """The name of a checkpoint.

        Args:
            values: what fills the fields, by key.

        Raises:
            ValueError: a field has no value, or the name can't be.
        """
        missing = [key for key in self.keys if key not in values]
        if missing:
            raise ValueError(
                f"The template {self.template!r} has {', '.join(map(repr, missing))}, of which there is no value. "
                f"There are {', '.join(map(repr, values))}."
            )
        name = self._fill({key: values[key] for key in self.keys})
        check_name(name)
        return name

    def _fill(self, values: dict[str, Any]) -> str:
        try:
            return string.Formatter().vformat(self.template, (), values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"The template {self.template!r} can't be filled with {values!r}: {error}.") from error
