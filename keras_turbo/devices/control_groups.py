"""The control groups of Linux that hold this process; a container's limits are those of one of them."""

from __future__ import annotations

import pathlib
from typing import NamedTuple


class ControlGroup(NamedTuple):
    """One group.

    Attributes:
        folder: the group's files are there.
        version: of the hierarchy: 1 or 2. Their files have other names.
    """

    folder: pathlib.Path
    version: int

    def read(self, name: str) -> str | None:
        """The text of one of its files, or None where it is not there or can't be read."""
        try:
            return (self.folder / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def read_int(self, name: str) -> int | None:
        """The number in one of its files, or None where there is no such file or it holds no number ("max")."""
        try:
            return int(self.read(name) or "")
        except ValueError:
            return None

    def read_key(self, name: str, key: str) -> int | None:
        """The number behind a key in a file of lines `key number`, or None where there is none."""
        for line in (self.read(name) or "").splitlines():
            found, _, value = line.partition(" ")
            if found == key:
                try:
                    return int(value)
                except ValueError:
                    return None
        return None


def control_groups(root: str | pathlib.Path, controller: str) -> list[ControlGroup]:
    """The groups of this process, and all their parents, in which a controller may limit it.

    Args:
        root: folder in place of the file system's root for `/proc` and `/sys`, for tests.
        controller: as version 1 names it: "memory" or "cpu".

    Returns:
        The groups, each before its parents; none on other systems than Linux.
    """
    root = pathlib.Path(root)
    try:
        # A group's name may be any bytes, as those of files.
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # no Linux, or /proc is not mounted
        return []
    groups = []
    for line in lines:
        hierarchy, _, path = line.partition(":")
        controllers, _, path = path.partition(":")
        if hierarchy == "0" and not controllers:
            mount, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            mount, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        parts = pathlib.PurePosixPath(path).parts[1:]
        # Inside a container the path may be that of the host, of which only the mount's own top is to be seen.
        groups += [ControlGroup(mount.joinpath(*parts[:depth]), version) for depth in range(len(parts), -1, -1)]
    return groups
