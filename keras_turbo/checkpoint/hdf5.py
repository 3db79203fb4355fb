"""HDF5 files: laid out by h5py and written without it, and read as if they came from anywhere.

h5py holds Python's lock while it writes, so a slow disk would hold up training, and it seeks to and fro, so no checksum
can be computed as the bytes go out and no object store can be written. In HDF5 a contiguous array stands in one piece,
as it stands in memory. So h5py is only asked to lay the file out, in a sparse file in memory with room for the arrays.
A file is then its metadata and the arrays' own buffers, one after the other: a plain HDF5 file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import h5py
import ml_dtypes
import numpy as np

from keras_turbo.files import TRANSIENT_READING, retried

# The types that HDF5 has no name for are stored as bytes, with their name beside them, as Keras does for bfloat16.
_NAMED_KIND = "V"
_DTYPE_ATTRIBUTE = "dtype"


@dataclass(frozen=True)
class Hdf5Layout:
    """An HDF5 file without its arrays."""

    pieces: tuple[bytes | str, ...]

    def filled(self, arrays: Mapping[str, np.ndarray]) -> list[memoryview]:
        """The file's content in order, with the arrays' own memory in it: nothing large is copied."""
        return [memoryview(piece) if isinstance(piece, bytes) else _bytes_of(arrays[piece]) for piece in self.pieces]


def hdf5_layout(
    arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, str]] | None = None
) -> Hdf5Layout:
    """Lays out an HDF5 file. The same shapes and types are laid out once."""
    entries = tuple((path, np.shape(array), np.dtype(array.dtype)) for path, array in arrays.items())
    _check(entries)
    groups = tuple((path, tuple(values.items())) for path, values in (attributes or {}).items())
    return _laid_out(entries, groups)


def _check(entries: tuple[tuple[str, tuple[int, ...], np.dtype], ...]) -> None:
    for path, _, dtype in entries:
        if any(part in ("", ".") for part in path.split("/")) or "\0" in path:
            raise ValueError(
                f"An array in an HDF5 file must have a path like 'layers/dense/vars/0'. Received: {path!r}."
            )
        if dtype.hasobject or dtype.kind == "U":
            raise ValueError(
                f"{path} is an array of {dtype}, which can't be saved: arrays must be of numbers or bytes."
            )
    paths = {path for path, _, _ in entries}
    for path in paths:
        above = path.rpartition("/")[0]
        while above:
            if above in paths:
                raise ValueError(f"{above!r} is an array, so {path!r} can't be below it in an HDF5 file.")
            above = above.rpartition("/")[0]


# A run saves the same arrays again and again, in a few files.
@functools.lru_cache(maxsize=64)
def _laid_out(
    entries: tuple[tuple[str, tuple[int, ...], np.dtype], ...],
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...],
) -> Hdf5Layout:
    places = []
    with _sparse_file() as sparse:
        with h5py.File(sparse, "w") as file:
            for path, values in groups:
                attrs = file.require_group(path).attrs
                for key, value in values:
                    attrs[key] = value
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.CONTIGUOUS)
            # Room now, and no zeros written into it.
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            plist.set_obj_track_times(False)
            for path, shape, dtype in entries:
                group, _, key = path.rpartition("/")
                parent = file.require_group(group) if group else file
                kind, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
                if not shape:
                    space = h5py.h5s.create(h5py.h5s.SCALAR)
                made = h5py.h5d.create(parent.id, key.encode(), kind, space, plist)
                if dtype.kind == _NAMED_KIND and dtype.names is None and dtype.name != f"void{8 * dtype.itemsize}":
                    h5py.Dataset(made).attrs[_DTYPE_ATTRIBUTE] = dtype.name
                nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
                if nbytes:
                    places.append((made.get_offset(), nbytes, path))
        pieces: list[bytes | str] = []
        position = 0
        for offset, nbytes, path in sorted(places):
            if offset < position:
                raise RuntimeError(f"HDF5 {h5py.version.hdf5_version} laid out two arrays at one place.")
            pieces += [_between(sparse, position, offset), path]
            position = offset + nbytes
        pieces.append(_between(sparse, position, max(position, sparse.seek(0, os.SEEK_END))))
    return Hdf5Layout(tuple(piece for piece in pieces if piece))


def _sparse_file() -> IO[bytes]:
    # In memory where the system can do it: neither a full disk nor a slow one is met.
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("keras_turbo layout"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _between(file: IO[bytes], start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Every array of an HDF5 file, by its path in it."""
    arrays: dict[str, np.ndarray] = {}

    def read() -> None:
        arrays.clear()
        # Nobody writes to a file of a checkpoint, so that no lock of another reader matters.
        with h5py.File(path, "r", locking=False) as file:
            _collect(file, "", arrays, set(), os.path.getsize(path))

    try:
        retried(read, TRANSIENT_READING)
    except (OSError, RuntimeError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} can't be read as HDF5: {error}") from error
    return arrays


def _collect(group: h5py.Group, prefix: str, arrays: dict[str, np.ndarray], seen: set[Any], file_size: int) -> None:
    for name in group:
        path = f"{prefix}{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{path!r} in {group.file.filename} is a link to another place, which is not followed.")
        member = group[name]
        address = h5py.h5o.get_info(member.id).addr
        if address in seen:
            raise ValueError(f"{path!r} in {group.file.filename} stands there twice.")
        seen.add(address)
        if isinstance(member, h5py.Group):
            _collect(member, f"{path}/", arrays, seen, file_size)
        elif isinstance(member, h5py.Dataset):
            arrays[path] = _read(member, path, file_size)


def _read(dataset: h5py.Dataset, path: str, file_size: int) -> np.ndarray:
    where = f"{path!r} in {dataset.file.filename}"
    if dataset.is_virtual or dataset.external or dataset.chunks is not None or dataset.dtype.hasobject:
        raise ValueError(f"{where} isn't stored as one plain array in its own file, so it is not read.")
    if dataset.nbytes > file_size:
        raise ValueError(f"{where} has {dataset.nbytes} bytes, more than its file.")
    array = np.empty(dataset.shape, dataset.dtype)
    if array.size:
        dataset.read_direct(array)
    name = dataset.attrs.get(_DTYPE_ATTRIBUTE)
    if name is None:
        return array
    dtype = getattr(ml_dtypes, name, None) if isinstance(name, str) else None
    with contextlib.suppress(TypeError):
        if dtype is not None and np.dtype(dtype).itemsize == array.dtype.itemsize:
            return array.view(dtype)
    raise ValueError(f"{where} has the type {name!r}, which is not known here.")
