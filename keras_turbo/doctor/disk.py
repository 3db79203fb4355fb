"""How fast the disk is on which data or checkpoints will be."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from keras_turbo.doctor.findings import Finding, error, ok, warning
from keras_turbo.monitor.time_limit import answer_within

_MB, _GB = 2**20, 2**30

# What is written and read back at most, and for how long.
_MOST_BYTES = 256 * _MB
_MOST_SECONDS = 1.5
_BLOCK_BYTES = 4 * _MB
# Below this, a cached dataset's first epoch or a checkpoint of a billion parameters takes minutes.
_SLOW_MB_PER_S = 100
# How long the file system may take to tell whether a folder is there.
_LOOK_SECONDS = 5.0
_LITTLE_SPACE_BYTES = 5 * _GB
_NO_SPACE_BYTES = 100 * _MB

_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|beegfs|gpfs|ceph|glusterfs|afs|fuse\.(sshfs|s3fs|gcsfuse|goofys|juicefs)"
    r"|fuse\.(glusterfs|ceph|mount-s3|blobfuse2?|rclone|drive)|orangefs|pvfs2|wekafs"
)
# Programs that mount a bucket and leave the kind at "fuse"; the source tells.
_NETWORK_SOURCES = re.compile(r"(mountpoint-s3|blobfuse2?|s3fs|gcsfuse|goofys|rclone|JuiceFS)\b.*", re.IGNORECASE)
# Other kinds that are not what a disk is taken for: what they are, and what to do.
_OF_HOST = (
    ", a folder of the host, seen through the virtual machine: many small files are slow.",
    "Copy the data to a disk of its own first, or put it into TFRecord shards.",
)
_OF_CONTAINER = (
    ", the container's own layer: what is written here goes with the container.",
    "Mount a volume for data and checkpoints (docker run -v).",
)
_IN_MEMORY = (
    ": in memory. It counts against the memory limit, and a reboot empties it.",
    "Fine for a copy of the data; put checkpoints elsewhere.",
)
_ODD_KINDS = {
    "9p": _OF_HOST,
    "virtiofs": _OF_HOST,
    "overlay": _OF_CONTAINER,
    "aufs": _OF_CONTAINER,
    "tmpfs": _IN_MEMORY,
    "ramfs": _IN_MEMORY,
}


@dataclass(frozen=True)
class Disk:
    """What is known of a folder's disk; None is what could not be found out, or measured."""

    folder: str
    kind: str | None
    source: str | None
    free_bytes: int | None
    write_mb_per_s: float | None
    read_mb_per_s: float | None
    why_not_written: str | None = None


def located(folder: Path) -> Path:
    """The folder as an absolute path without links; as it was given where the file system does not answer.

    Raises:
        ValueError: it is no folder, or can't be reached; the text says so.
    """

    def find() -> Path:
        found = folder.resolve(strict=True)
        # Not of the folder, but of what is in it: that needs a folder, and the right to enter it.
        os.stat(os.path.join(found, "."))
        return found

    try:
        return answer_within(_LOOK_SECONDS, find, f"The disk of {folder}")
    except TimeoutError:
        return folder
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"There is no folder {folder}.") from None
    except (OSError, RuntimeError, ValueError) as failure:  # RuntimeError: links in a circle
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise ValueError(f"The folder {folder} can't be used: {reason}.") from None


def read_disk(folder: Path) -> Disk:
    """Finds out what a folder lies on, and measures it with a file that has no name and is gone afterwards."""
    kind, source = file_system(folder)
    usage = shutil.disk_usage(folder)
    # File systems that don't know their size say 0.
    free = usage.free if usage.total else None
    write, read, why_not = None, None, None
    try:
        write, read = measure(folder, _MOST_BYTES if free is None else min(_MOST_BYTES, free // 4))
    except OSError as failure:
        why_not = f"{failure.strerror or failure} ({errno.errorcode.get(failure.errno or 0, 'unknown error')})"
    return Disk(str(folder), kind, source, free, write, read, why_not)


def measure(
    folder: Path,
    most_bytes: int = _MOST_BYTES,
    most_seconds: float = _MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float | None, float | None]:
    """Writes a file and reads it back, for `most_seconds` each; the block that is under way then may exceed it.

    Returns:
        The rates of writing and of reading, in MB of 2**20 bytes a second; None where there is no room for a block.

    Raises:
        OSError: nothing can be written there.
    """
    if most_bytes < _BLOCK_BYTES:
        return None, None
    # Random, since some file systems compress.
    block = os.urandom(_BLOCK_BYTES)
    with tempfile.TemporaryFile(dir=folder, prefix="keras_turbo_doctor_", buffering=0) as file:
        start, written = clock(), 0
        while written + _BLOCK_BYTES <= most_bytes and (written == 0 or clock() - start < most_seconds):
            written += file.write(block)
        os.fsync(file.fileno())
        write_seconds = clock() - start
        # Otherwise it would be read from the page cache.
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start, read = clock(), 0
        while (read == 0 or clock() - start < most_seconds) and (piece := len(file.read(_BLOCK_BYTES))):
            read += piece
        read_seconds = clock() - start
    return written / _MB / max(write_seconds, 1e-9), read / _MB / max(read_seconds, 1e-9)


def file_system(folder: Path) -> tuple[str | None, str | None]:
    """The kind of file system that a folder lies on and what is mounted there; None where the system does not tell."""
    import psutil

    try:
        mounts = psutil.disk_partitions(all=True)
    except (psutil.Error, OSError):  # /proc is not mounted
        return None, None
    path = folder.resolve()
    # Of two mounts on one folder the later one is on top.
    holding = [(len(Path(one.mountpoint).parts), place) for place, one in enumerate(mounts)]
    holding = [each for each in holding if path.is_relative_to(mounts[each[1]].mountpoint)]
    if not holding:
        return None, None
    mount = mounts[max(holding)[1]]
    return mount.fstype, mount.device


def findings(disk: Disk) -> Iterator[Finding]:
    """What the facts of a disk mean: its kind, its rates, its space."""
    where = f"{disk.folder}: {disk.kind or 'unknown file system'}"
    is_bucket = disk.kind == "fuse" and _NETWORK_SOURCES.fullmatch(disk.source or "")
    if is_bucket or _NETWORK_FILE_SYSTEMS.fullmatch(disk.kind or ""):
        yield warning(
            f"{where}, over the network from {disk.source}: many small files are slow, and a stall there stalls "
            "training.",
            "Copy the data to a local disk first, or put it into TFRecord shards; save checkpoints in the background.",
            file_system=disk.kind,
        )
    elif disk.kind in _ODD_KINDS:
        what, hint = _ODD_KINDS[disk.kind]
        yield warning(where + what, hint, file_system=disk.kind)
    else:
        yield ok(f"{where}.", file_system=disk.kind)
    yield from (_rates(disk), _space(disk))


def _rates(disk: Disk) -> Finding:
    if disk.why_not_written is not None:
        full = "ENOSPC" in disk.why_not_written or "EDQUOT" in disk.why_not_written
        return warning(
            f"Nothing can be written to {disk.folder}: {disk.why_not_written}. Its rates were not measured.",
            "Make room, or see the quota and the inodes (quota, df -i)."
            if full
            else "Enough for data. For checkpoints and caches give another folder, or see its rights.",
        )
    write, read = disk.write_mb_per_s, disk.read_mb_per_s
    if write is None or read is None:
        room = 4 * _BLOCK_BYTES / _MB
        return warning(f"The rates of {disk.folder} were not measured: that needs {room:.0f} MB of room.", "Make room.")
    fact = f"Writes {write:,.0f} MB a second, reads {read:,.0f} (one file, in turn)."
    hints = []
    if read < _SLOW_MB_PER_S:
        hints.append('Read data once: FastDataset(..., cache="auto"), or copy it to a faster disk.')
    if write < _SLOW_MB_PER_S:
        hints.append("Save checkpoints to a faster disk, or less often.")
    figures = {"write_mb_per_s": write, "read_mb_per_s": read}
    return warning(fact, " ".join(hints), **figures) if hints else ok(fact, **figures)


def _space(disk: Disk) -> Finding:
    free = disk.free_bytes
    if free is None:
        return ok(f"{disk.folder} does not tell how much room it has.")
    room = f"{free / _GB:,.1f} GB" if free >= _GB else f"{free / _MB:.0f} MB"
    fact = f"{room} free in {disk.folder}."
    if free < _NO_SPACE_BYTES:
        return error(fact, "The next checkpoint will fail: make room.", free_gb=free / _GB)
    if free < _LITTLE_SPACE_BYTES:
        return warning(fact, "Make room for checkpoints and caches.", free_gb=free / _GB)
    return ok(fact, free_gb=free / _GB)
