"""What GPUs and processors can do, from the details that drivers and kernels give."""

from __future__ import annotations

import pytest

from keras_turbo.devices.hardware import cpu_from_cpuinfo, gpu_from_details, this_cpu

GPUS = {
    # name: (vendor, compute capability, Tensor Cores, bfloat16)
    "NVIDIA GeForce GTX 1080": ("nvidia", (6, 1), False, False),
    "Tesla P100-PCIE-16GB": ("nvidia", (6, 0), False, False),
    "Tesla V100-SXM2-16GB": ("nvidia", (7, 0), True, False),
    "Tesla T4": ("nvidia", (7, 5), True, False),
    "NVIDIA GeForce GTX 1650": ("nvidia", (7, 5), False, False),
    "NVIDIA GeForce GTX 1660 Ti": ("nvidia", (7, 5), False, False),
    "NVIDIA T1000": ("nvidia", (7, 5), False, False),
    "NVIDIA A100-SXM4-40GB": ("nvidia", (8, 0), True, True),
    "NVIDIA GeForce RTX 3060": ("nvidia", (8, 6), True, True),
    "NVIDIA H100 80GB HBM3": ("nvidia", (9, 0), True, True),
    "NVIDIA B200": ("nvidia", (10, 0), True, True),
    "AMD Instinct MI25": ("amd", None, False, False),
    "AMD Instinct MI100": ("amd", None, True, False),
    "AMD Instinct MI250X": ("amd", None, True, True),
    "AMD Instinct MI300X": ("amd", None, True, True),
    "AMD Radeon RX 6800": ("amd", None, None, None),
    "gfx1030": ("amd", None, None, None),
    "Apple M1 Pro": ("apple", None, False, None),
    "METAL": ("apple", None, False, None),
    "Some other GPU": ("unknown", None, None, None),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpus(name):
    vendor, capability, tensor_cores, bfloat16 = GPUS[name]
    details = {"device_name": name} | ({"compute_capability": capability} if capability else {})
    gpu = gpu_from_details(details)
    assert (gpu.name, gpu.vendor, gpu.compute_capability) == (name, vendor, capability)
    assert (gpu.tensor_cores, gpu.bfloat16) == (tensor_cores, bfloat16)


def test_a_gpu_without_details():
    gpu = gpu_from_details({})
    assert (gpu.name, gpu.tensor_cores, gpu.bfloat16) == ("unnamed GPU", None, None)


def test_a_gpu_in_words():
    assert str(gpu_from_details({"device_name": "Tesla T4", "compute_capability": (7, 5)})) == (
        "Tesla T4 (compute capability 7.5)"
    )
    assert str(gpu_from_details({"device_name": "Apple M1"})) == "Apple M1"


@pytest.mark.parametrize("value", ["8.0", 8.0, (8,), ("eight", "zero"), (8, 0, 1)])
def test_a_capability_that_is_none(value):
    with pytest.raises(ValueError, match=r"must be two whole numbers, such as \(8, 0\), or None. Received"):
        gpu_from_details({"compute_capability": value})


X86 = "processor\t: 0\nmodel name\t: {name}\nflags\t\t: fpu sse2 avx2 {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512f avx512_bf16", ("avx512_bf16",)),
        ("avx512f avx512_bf16 amx_tile amx_bf16", ("avx512_bf16", "amx_bf16")),
        ("avx512f avx512_vnni", ()),
        ("avx_ne_convert", ()),
        ("", ()),
    ],
)
def test_x86_processors(flags, expected):
    cpu = cpu_from_cpuinfo(X86.format(name="AMD EPYC 9554", flags=flags))
    assert (cpu.name, cpu.bfloat16_instructions) == ("AMD EPYC 9554", expected)


def test_an_arm_processor():
    cpu = cpu_from_cpuinfo("processor : 0\nFeatures : fp asimd sve i8mm bf16\n")
    assert cpu.bfloat16_instructions == ("bf16",)
    assert cpu.name


def test_a_system_that_does_not_tell(tmp_path):
    assert this_cpu(tmp_path / "missing").bfloat16_instructions == ()
    assert cpu_from_cpuinfo("").name


def test_this_machine(tmp_path):
    (tmp_path / "cpuinfo").write_text(X86.format(name="Mine", flags="amx_bf16"))
    assert this_cpu(tmp_path / "cpuinfo").bfloat16_instructions == ("amx_bf16",)
    assert this_cpu().name
