"""How much memory this process may really take: the machine's, and its control group's."""

from __future__ import annotations

import pathlib

from keras_turbo.devices.control_groups import ControlGroup, control_groups

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
    for group in control_groups(root, "memory"):
        left = _left_in_control_group(group)
        if left is not None:
            free = min(free, left)
    return max(free, 0)


def memory_limit_bytes(root: str | pathlib.Path = "/") -> int | None:
    """The least limit of the control groups that hold this process.

    Args:
        root: folder in place of the file system's root for `/proc` and `/sys`, for tests.

    Returns:
        Bytes, or None where no control group limits it.
    """
    limits = [_limit_of_control_group(group) for group in control_groups(root, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_of_control_group(group: ControlGroup) -> int | None:
    limit = group.read_int("memory.max" if group.version == 2 else "memory.limit_in_bytes")
    return None if limit is None or limit >= _UNLIMITED_BYTES else limit


def _left_in_control_group(group: ControlGroup) -> int | None:
    usage_name, cache_key = (
        ("memory.current", "inactive_file") if group.version == 2 else ("memory.usage_in_bytes", "total_inactive_file")
    )
    limit, usage = _limit_of_control_group(group), group.read_int(usage_name)
    if limit is None or usage is None:
        return None
    return limit - usage + (group.read_key("memory.stat", cache_key) or 0)
