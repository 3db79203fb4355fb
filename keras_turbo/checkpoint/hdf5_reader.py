"""Reads the arrays of an HDF5 file that may come from anywhere."""

from __future__ import annotations

import os
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from keras_turbo.checkpoint.hdf5_layout import DTYPE_ATTRIBUTE


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Every array of an HDF5 file, by its path in it.

    Args:
        path: a local file.

    Raises:
        ValueError: the file isn't HDF5, or it has what a checkpoint never has: links to other places, arrays that stand
            in other files, compressed arrays (which could be far larger than the file).
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        with h5py.File(path, "r") as file:
            _collect(file, "", arrays, set(), os.path.getsize(path))
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
    name = dataset.attrs.get(DTYPE_ATTRIBUTE)
    if name is None:
        return array
    dtype = getattr(ml_dtypes, name, None) if isinstance(name, str) else None
    if dtype is None or np.dtype(dtype).itemsize != array.dtype.itemsize:
        raise ValueError(f"{where} has the type {name!r}, which is not known here.")
    return array.view(dtype)
