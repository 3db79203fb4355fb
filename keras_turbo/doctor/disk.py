"""How fast the disk is on which data or checkpoints will be."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from keras_turbo.doctor.findings import Finding
from keras_turbo.monitor.time_limit import answer_within

TOPIC = "disk"

_MB = 2**20
_GB = 2**30

# What is written and read back at most, and for how long.
_MOST_BYTES = 256 * _MB
_MOST_SECONDS = 1.5
_BLOCK_BYTES = 4 * _MB

# Below these, a cached dataset's first epoch or a checkpoint of a billion parameters takes minutes.
_SLOW_READ_MB_PER_S = 100
_SLOW_WRITE_MB_PER_S = 100

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


@dataclasses.dataclass(frozen=True)
class Disk:
    """What is known of a folder's disk.

    Attributes:
        folder: as given.
        kind: of file system, such as "ext4"; None where the system does not tell.
        source: what is mounted there, such as "server:/export".
        free_bytes: left for this user; None where the file system does not tell.
        write_mb_per_s: measured, with the data on the disk at the end; None where nothing could be written.
        read_mb_per_s: measured on what was written, past the page cache where the kernel lets it be dropped.
        why_not_written: the error.
    """

    folder: str
    kind: str | None
    source: str | None
    free_bytes: int | None
    write_mb_per_s: float | None
    read_mb_per_s: float | None
    why_not_written: str | None = None


def located(folder: Path) -> Path:
    """The folder as an absolute path without links.

    Args:
        folder: what the user gave.

    Returns:
        The path; as it was given where the file system does not answer within some seconds.

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
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"The folder {folder} can't be used: {reason}.") from None


def read_disk(folder: Path, root: Path = Path("/")) -> Disk:
    """Finds out what a folder lies on, and measures it with a file that has no name and is gone afterwards.

    Args:
        folder: one that is there.
        root: folder in place of the file system's root for `/proc`, for tests.

    Returns:
        The facts.
    """
    kind, source = file_system(folder, root)
    usage = shutil.disk_usage(folder)
    # File systems that don't know their size say 0.
    free = usage.free if usage.total else None
    write, read, error = None, None, None
    try:
        write, read = measure(folder, _MOST_BYTES if free is None else min(_MOST_BYTES, free // 4))
    except OSError as failure:
        error = f"{failure.strerror or failure} ({errno.errorcode.get(failure.errno or 0, 'unknown error')})"
    return Disk(str(folder), kind, source, free, write, read, error)


def measure(
    folder: Path,
    most_bytes: int = _MOST_BYTES,
    most_seconds: float = _MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float | None, float | None]:
    """Writes a file, and reads it back.

    Args:
        folder: where.
        most_bytes: of the file.
        most_seconds: for the writing, and again for the reading; the one block more that is under way may exceed it.
        clock: in seconds.

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
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start, read = clock(), 0
        while read == 0 or clock() - start < most_seconds:
            piece = len(file.read(_BLOCK_BYTES))
            if piece == 0:
                break
            read += piece
        read_seconds = clock() - start
    return written / _MB / max(write_seconds, 1e-9), read / _MB / max(read_seconds, 1e-9)


def file_system(folder: Path, root: Path = Path("/")) -> tuple[str | None, str | None]:
    """The kind of file system that a folder lies on, and what is mounted there.

    Args:
        folder: one that is there.
        root: folder in place of the file system's root for `/proc`, for tests.

    Returns:
        Both, or None and None where the system does not tell.
    """
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return None, None
    path = folder.resolve()
    best: tuple[int, str | None, str | None] = (-1, None, None)
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kinds) < 2:
            continue
        mount = Path(_unescaped(fields[4]))
        # Of two mounts on one folder the later one is on top.
        if path.is_relative_to(mount) and len(mount.parts) >= best[0]:
            best = (len(mount.parts), kinds[0], _unescaped(kinds[1]))
    return best[1], best[2]


def findings(disk: Disk) -> list[Finding]:
    """What the facts of a disk mean.

    Args:
        disk: the facts.

    Returns:
        The findings.
    """
    return [*_kind(disk), *_rates(disk), *_space(disk)]


def _kind(disk: Disk) -> list[Finding]:
    where = f"{disk.folder}: {disk.kind or 'unknown file system'}"
    figures = {"file_system": disk.kind}
    if disk.kind is None:
        return [Finding(TOPIC, "ok", f"{where}.", figures=figures)]
    if disk.kind in ("9p", "virtiofs"):
        return [
            Finding(
                TOPIC,
                "warning",
                f"{where}, a folder of the host, seen through the virtual machine: many small files are slow.",
                "Copy the data to a disk of its own first, or put it into TFRecord shards.",
                figures,
            )
        ]
    is_bucket = disk.kind == "fuse" and _NETWORK_SOURCES.fullmatch(disk.source or "")
    if is_bucket or _NETWORK_FILE_SYSTEMS.fullmatch(disk.kind):
        return [
            Finding(
                TOPIC,
                "warning",
                f"{where}, over the network from {disk.source}: many small files are slow, and a stall there stalls "
                "training.",
                "Copy the data to a local disk first, or put it into TFRecord shards; save checkpoints in the "
                "background.",
                figures,
            )
        ]
    if disk.kind in ("overlay", "aufs"):
        return [
            Finding(
                TOPIC,
                "warning",
                f"{where}, the container's own layer: what is written here goes with the container.",
                "Mount a volume for data and checkpoints (docker run -v).",
                figures,
            )
        ]
    if disk.kind in ("tmpfs", "ramfs"):
        return [
            Finding(
                TOPIC,
                "warning",
                f"{where}: in memory. It counts against the memory limit, and a reboot empties it.",
                "Fine for a copy of the data; put checkpoints elsewhere.",
                figures,
            )
        ]
    return [Finding(TOPIC, "ok", f"{where}.", figures=figures)]


def _rates(disk: Disk) -> list[Finding]:
    if disk.why_not_written is not None:
        return [
            Finding(
                TOPIC,
                "warning",
                f"Nothing can be written to {disk.folder}: {disk.why_not_written}. Its rates were not measured.",
                "Make room, or see the quota and the inodes (quota, df -i)."
                if "ENOSPC" in disk.why_not_written or "EDQUOT" in disk.why_not_written
                else "Enough for data. For checkpoints and caches give another folder, or see its rights.",
            )
        ]
    if disk.write_mb_per_s is None or disk.read_mb_per_s is None:
        return [
            Finding(
                TOPIC,
                "warning",
                f"The rates of {disk.folder} were not measured: that needs {4 * _BLOCK_BYTES / _MB:.0f} MB of room.",
                "Make room.",
            )
        ]
    figures = {"write_mb_per_s": disk.write_mb_per_s, "read_mb_per_s": disk.read_mb_per_s}
    fact = f"Writes {disk.write_mb_per_s:,.0f} MB a second, reads {disk.read_mb_per_s:,.0f} (one file, in turn)."
    advice = []
    if disk.read_mb_per_s < _SLOW_READ_MB_PER_S:
        advice.append('Read data once: FastDataset(..., cache="auto"), or copy it to a faster disk.')
    if disk.write_mb_per_s < _SLOW_WRITE_MB_PER_S:
        advice.append("Save checkpoints to a faster disk, or less often.")
    return [Finding(TOPIC, "warning" if advice else "ok", fact, " ".join(advice) or None, figures)]


def _space(disk: Disk) -> list[Finding]:
    if disk.free_bytes is None:
        return [Finding(TOPIC, "ok", f"{disk.folder} does not tell how much room it has.")]
    figures = {"free_gb": disk.free_bytes / _GB}
    room = f"{disk.free_bytes / _GB:,.1f} GB" if disk.free_bytes >= _GB else f"{disk.free_bytes / _MB:.0f} MB"
    fact = f"{room} free in {disk.folder}."
    if disk.free_bytes < _NO_SPACE_BYTES:
        return [Finding(TOPIC, "error", fact, "The next checkpoint will fail: make room.", figures)]
    if disk.free_bytes < _LITTLE_SPACE_BYTES:
        return [Finding(TOPIC, "warning", fact, "Make room for checkpoints and caches.", figures)]
    return [Finding(TOPIC, "ok", fact, figures=figures)]


def _unescaped(text: str) -> str:
    """A path of mountinfo, in which blanks are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
