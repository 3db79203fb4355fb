"""What is converted into which folders, and whether that goes together with what is there already."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from keras_turbo import files as storage
from keras_turbo.data.conversion.shard_file import shard_name
from keras_turbo.data.records.manifest import MANIFEST_NAME, Manifest, load_manifest, write_json
from keras_turbo.data.records.shards import CONVERTING_FOLDER, record_files_in

PART_NAMES = ("training", "validation")
"""The folders of a conversion with a split."""

_PLAN_NAME = "plan.json"


@dataclasses.dataclass(frozen=True)
class Part:
    """The images of one folder of shards."""

    folder: str
    paths: list[str]
    labels: list[int] | None
    num_shards: int

    @property
    def shard_names(self) -> list[str]:
        return [shard_name(index, self.num_shards) for index in range(self.num_shards)]

    @property
    def converting(self) -> str:
        return storage.join(self.folder, CONVERTING_FOLDER)


def already_done(parts: dict[str, Part], plan: dict[str, Any]) -> dict[str, Manifest] | None:
    """The manifests, if just this has been converted there before."""
    manifests = {name: load_manifest(part.folder) for name, part in parts.items()}
    done = {}
    for name, manifest in manifests.items():
        if manifest is None or manifest.options != plan:
            return None
        if not set(manifest.files) <= set(storage.names_in(parts[name].folder)):
            return None
        done[name] = manifest
    return done


def refuse_other_files(target: str, parts: dict[str, Part], plan: dict[str, Any]) -> None:
    """Sees to it that nothing is in the way: records of others, and those of a conversion with another split.

    Raises:
        FileExistsError: something is, with what to do.
    """
    is_split = "all" not in parts
    is_begun = storage.exists(storage.join(target, CONVERTING_FOLDER, _PLAN_NAME))
    for folder in [target, *(storage.join(target, name) for name in PART_NAMES)]:
        is_ours = any(part.folder == folder for part in parts.values())
        if is_ours and is_begun:
            continue  # which conversion it is, its plan tells
        manifest = load_manifest(folder) if storage.exists(storage.join(folder, MANIFEST_NAME)) else None
        if is_ours and manifest is not None and manifest.options == plan:
            continue
        found = [MANIFEST_NAME] if manifest is not None else record_files_in(folder)
        if not found:
            continue
        if is_ours:
            raise FileExistsError(
                f"{folder!r} holds records of other images, or made with other options ({found[0]!r} among them). Give "
                "another folder, or remove that one."
            )
        if is_split:
            raise FileExistsError(
                f"{folder!r} holds records that are not split ({found[0]!r} among them); those of a split would lie in "
                f"the folders {' and '.join(PART_NAMES)} beside them. Give another folder, or remove these records."
            )
        raise FileExistsError(
            f"{folder!r} holds records of a conversion with a split ({found[0]!r} among them); those of one without "
            "would lie beside that folder. Give another folder, give the split again, or remove the folders "
            f"{' and '.join(PART_NAMES)}."
        )


def begin(converting: str, plan: dict[str, Any], target: str) -> None:
    """Takes up a conversion that was begun, or begins one.

    Raises:
        FileExistsError: what was begun is another one.
    """
    path = storage.join(converting, _PLAN_NAME)
    try:
        begun = json.loads(storage.read_bytes(path).decode("utf-8"))
    except (FileNotFoundError, ValueError):
        write_json(path, plan)
        return
    if begun == plan:
        return
    what = "of other images, or they have changed"
    if begun.get("images") == plan["images"]:
        what = f"with other options ({begun.get('options')}, shards: {begun.get('shards')})"
    raise FileExistsError(
        f"A conversion into {target!r} was begun {what}. "
        "Run it again as it was begun, give another folder, or remove that one."
    )
