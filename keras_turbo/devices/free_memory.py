"""How much memory this process may really take: the machine's, and its control group's."""

from __future__ import annotations

import pathlib

# Control groups whose limit is above this are not limited: version 1 writes a huge number in place of "max".
_UNLIMITED_BYTES = 1 << 60


def free_memory_bytes(root: str | pathlib.Path = "/") -> int:
    """Bytes that can still be allocated before something is killed or swapped.

    The least of what the machine has available and what is left below the limit of each control group that holds this
    process (a container's limit is one of those, and psutil does not look at it). Page cache that belongs to a control
    group counts as free, since the kernel drops it first.

    Args:
        root: folder in place of the file system's root for `/proc` and `/sys`, for tests.

    Returns:
        Bytes, at least 0.
    """
    import psutil

    free = psutil.virtual_memory().available
    for folder, version in _control_groups(pathlib.Path(root)):
        left = _left_in_control_group(folder, version)
        if left is not None:
            free = min(free, left)
    return max(free, 0)


def _control_groups(root: pathlib.Path) -> list[tuple[pathlib.Path, int]]:
    """The memory control groups of this process and all their parents, with their version (1 or 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux, or /proc is not mounted
        return []
    groups = []
    for line in lines:
        hierarchy, _, path = line.partition(":")
        controllers, _, path = path.partition(":")
        if hierarchy == "0" and not controllers:
            mount, version = root / "sys/fs/cgroup", 2
        elif "memory" in controllers.split(","):
            mount, version = root / "sys/fs/cgroup/memory", 1
        else:
            continue
        parts = pathlib.PurePosixPath(path).parts[1:]
        # Inside a container the path may be that of the host, of which only the mount's own top is to be seen.
        groups += [(mount.joinpath(*parts[:depth]), version) for depth in range(len(parts), -1, -1)]
    return groups


def _left_in_control_group(folder: pathlib.Path, version: int) -> int | None:
    limit_name, usage_name, cache_key = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    try:
        limit = int((folder / limit_name).read_text())
        usage = int((folder / usage_name).read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
    if limit >= _UNLIMITED_BYTES:
        return None
    return limit - usage + _page_cache_bytes(folder, cache_key)


def _page_cache_bytes(folder: pathlib.Path, key: str) -> int:
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        return 0
    return 0
