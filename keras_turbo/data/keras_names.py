"""Options of `image_dataset_from_directory` and `audio_dataset_from_directory`, by the names that Keras gives them.

Each is taken out of a constructor's further options and put into the option of ours that means the same. What a
FastDataset can't do is refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import keras

from keras_turbo.report import show

_COLOR_MODES = {"grayscale": 1, "rgb": 3, "rgba": 4}

# Constructors that have said how they shuffle; once in a process is enough.
_told: set[str] = set()


def settle_shuffle(options: dict[str, Any], constructor: str) -> None:
    """Has a folder shuffled where nothing is said, as Keras has it, and says so once, since it was not so before.

    Args:
        options: of the constructor; changed in place.
        constructor: its name.
    """
    if "shuffle" in options:
        return
    options["shuffle"] = True
    if constructor not in _told:
        _told.add(constructor)
        warnings.warn(
            f"{constructor}() shuffles by default now, as Keras' function does. Give shuffle=True or shuffle=False.",
            stacklevel=3,
        )


def image_options(options: dict[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The options of images, those by Keras' names among them.

    Args:
        options: further options of the constructor; Keras' names are taken out.
        ours: what was given, or is the default, by our names.

    Raises:
        TypeError, ValueError: what can't be, two that exclude one another, or one that has no like here.
    """
    found = dict(ours)
    if "color_mode" in options:
        mode = options.pop("color_mode")
        if not isinstance(mode, str) or mode not in _COLOR_MODES:
            raise ValueError(f"`color_mode` must be one of {', '.join(_COLOR_MODES)}. Received: color_mode={mode!r}.")
        _replace(found, "channels", _COLOR_MODES[mode], f"color_mode={mode!r}", default=3)
    for name, resize in (("crop_to_aspect_ratio", "crop"), ("pad_to_aspect_ratio", "pad")):
        if _pop_bool(options, name):
            _replace(found, "resize", resize, f"{name}=True", default="stretch")
    if "data_format" in options:
        given = options.pop("data_format")
        if (given or keras.config.image_data_format()) != "channels_last":
            raise ValueError(
                f"Images are channels_last: (height, width, channels). Received: data_format={given!r}. Leave it out, "
                "and transpose in `map_fn`."
            )
    if options.get("format", "tf") != "tf":
        raise ValueError(f"A FastDataset is a tf.data.Dataset. Received: format={options['format']!r}. Leave it out.")
    options.pop("format", None)
    if isinstance(found["interpolation"], str):
        found["interpolation"] = found["interpolation"].lower()
    if isinstance(found["image_size"], int) and not isinstance(found["image_size"], bool):
        found["image_size"] = (found["image_size"],) * 2
    return found


def audio_options(options: dict[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The options of sounds, those by Keras' names among them; arguments as those of `image_options`.

    Raises:
        TypeError, ValueError: as there, or no rate is given.
    """
    found = dict(ours)
    for name, own in (("sampling_rate", "sample_rate"), ("output_sequence_length", "length_samples")):
        value = options.pop(name, None)
        if value is not None:
            _replace(found, own, value, f"{name}={value!r}", default=None)
    if _pop_bool(options, "ragged"):
        raise ValueError(
            "Batches of sounds have one length. Received: ragged=True. Give `length_seconds`, or batch_size=None for "
            "sounds one by one, each with its own length."
        )
    if found["sample_rate"] is None:
        raise TypeError("from_audio_folder() needs `sample_rate` (or `sampling_rate`), in Hz.")
    return found


def check_switches(**switches: Any) -> None:
    """Checks what must be True or False.

    Raises:
        TypeError: it is something else.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}.")


def tell_found(sources: Mapping[str, Any], class_names: list[str] | None, subset: str | None) -> None:
    """Prints how many files were found, as `verbose=True` has it in Keras.

    Args:
        sources: by the name of their part.
        class_names: None where there are no classes.
        subset: the parts that were asked for; None without a split.
    """
    classes = "" if class_names is None else f" belonging to {len(class_names)} classes"
    counts = {part: len(source.paths) for part, source in sources.items()}
    parts = ", ".join(f"{count} for {part}" for part, count in counts.items())
    show([f"Found {sum(counts.values())} files{classes}{f' ({parts})' if subset else ''}."])


def _replace(found: dict[str, Any], name: str, value: Any, given: str, default: Any) -> None:
    if found[name] not in (default, value):
        raise ValueError(f"`{name}` and Keras' name for it exclude one another: {name}={found[name]!r} and {given}.")
    found[name] = value


def _pop_bool(options: dict[str, Any], name: str) -> bool:
    value = options.pop(name, False)
    check_switches(**{name: value})
    return value
