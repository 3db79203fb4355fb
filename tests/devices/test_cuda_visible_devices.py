"""CUDA_VISIBLE_DEVICES in all its forms."""

from __future__ import annotations

import pytest

from keras_turbo.devices.cuda_visible_devices import WholeGpu, visible
from keras_turbo.devices.gpus import Gpu

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")


def gpu(index, uuid=None, **more):
    return Gpu(index, uuid or UUIDS[index], f"0000:0{index + 1}:00.0", "A100", 40_000.0, (8, 0), **more)


def part(index, uuid, instance):
    return gpu(index, uuid, mig_parent_uuid=UUIDS[index], mig_instance=instance)


THREE = [WholeGpu(gpu(0)), WholeGpu(gpu(1)), WholeGpu(gpu(2))]


def chosen(machine, value=None, order=None):
    environ = {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": order}
    return visible(machine, {name: text for name, text in environ.items() if text is not None})


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("9" * 5000, []),
        ("0" * 5000 + "2", [2]),
        ("1234567890", []),
        ("1,99999999999999999999,0", [1]),
        ("\uff11", []),
        ("0, 1 ,2", [0, 1, 2]),
        ("0,3,1", [0]),
        ("3", []),
        ("0,,1", [0]),
        ("1,", [1]),
        ("NoDevFiles", []),
        ("1x,2y", [1, 2]),
        ("0,1,0", []),
        ("GPU-bb33,GPU-aa11", [2, 0]),
        ("gpu-BB33", [2]),
        ("GPU-b", [2]),
        ("GPU-aa2", [1]),
        ("GPU-aa", []),
        ("GPU-bb33,GPU-cc,GPU-aa11", [2]),
        ("GPU-bb33,0", [2]),
        ("0,GPU-bb33", [0]),
        ("GPU-bb33,GPU-b", []),
        ("MIG-1234", []),
    ],
)
def test_of_three_gpus(value, indices):
    assert [one.index for one in chosen(THREE, value)] == indices


def test_indices_are_matched_by_pci_bus_id_not_by_the_order_of_nvml():
    listed = [THREE[2], THREE[0], THREE[1]]
    assert [one.pci_bus_id for one in chosen(listed, "0,2", "PCI_BUS_ID")] == ["0000:01:00.0", "0000:03:00.0"]


def test_the_fastest_is_first_unless_the_order_is_that_of_the_bus():
    machine = [WholeGpu(gpu(0), speed=1.0), WholeGpu(gpu(1), speed=3.0), WholeGpu(gpu(2), speed=1.0)]
    assert [one.index for one in chosen(machine)] == [1, 0, 2]
    assert [one.index for one in chosen(machine, "0,2")] == [1, 2]
    assert [one.index for one in chosen(machine, "0,2", "FASTEST_FIRST")] == [1, 2]
    assert [one.index for one in chosen(machine, "0,2", "PCI_BUS_ID")] == [0, 2]
    unknown = [machine[0], machine[1], WholeGpu(gpu(2))]
    assert [one.index for one in chosen(unknown)] == [0, 1, 2]


PARTS = (part(1, "MIG-1111", (3, 0)), part(1, "MIG-2222", (4, 0)))
WITH_PARTS = [THREE[0], WholeGpu(gpu(1), PARTS), THREE[2]]


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb33"]),
        ("1", ["MIG-1111"]),
        ("1,0", ["MIG-1111"]),
        ("0,1,2", ["GPU-aa11", "GPU-bb33"]),
        ("MIG-2222", ["MIG-2222"]),
        ("MIG-2", ["MIG-2222"]),
        ("MIG-2222,MIG-1111", ["MIG-2222"]),
        ("MIG-GPU-aa22/4/0", ["MIG-2222"]),
        ("MIG-GPU-aa22/9/0", []),
        ("GPU-aa22", []),
    ],
)
def test_with_mig_instances(value, uuids):
    assert [one.uuid for one in chosen(WITH_PARTS, value)] == uuids


def test_a_gpu_that_is_in_mig_mode_without_instances_is_not_there():
    assert chosen([WholeGpu(gpu(0), ())]) == []
    assert [one.index for one in chosen([WholeGpu(gpu(0), ()), THREE[1]], "0")] == [1]
