"""The data of two real workers: each example once an epoch, in the batches of one device, and no worker waits."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.distribution import strategies
from keras_turbo.distribution.communication import Communication, communication_of, set_communication, sum_over_replicas
from keras_turbo.distribution.gradient_compression import UNIT_ROUNDOFF
from tests.data.epochs import batches_of
from tests.distribution import data_scenarios
from tests.distribution.data_scenarios import GLOBAL_BATCH_SIZE, NUM_IDS
from tests.distribution.workers import run_workers

# What one worker of two may need for its rows of 12 batches of 8 and one of 4.
ROWS_A_STEP = [GLOBAL_BATCH_SIZE // 2] * 12


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two workers says of all scenarios."""
    folder = tmp_path_factory.mktemp("ids")
    (folder / "ids.txt").write_text("\n".join(map(str, range(NUM_IDS))), encoding="utf-8")
    with tf.io.TFRecordWriter(str(folder / "ids.tfrecord")) as writer:
        for number in range(NUM_IDS):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            example = tf.train.Example(features=tf.train.Features(feature={"id": feature}))
            writer.write(example.SerializeToString())
    return run_workers(data_scenarios.run, str(folder))


def rows_of_epoch(both: list[dict[str, Any]], scenario: str, epoch: int = 0) -> tuple[list[list[int]], ...]:
    """For each worker the rows of each step; the steps are equally many."""
    first, second = (worker[scenario]["epochs"][epoch] for worker in both)
    assert len(first) == len(second)
    return first, second


def batches_together(both: list[dict[str, Any]], scenario: str, epoch: int = 0) -> list[list[int]]:
    return [one + other for one, other in zip(*rows_of_epoch(both, scenario, epoch), strict=True)]


def joined(steps: list[list[int]]) -> list[int]:
    return list(itertools.chain(*steps))


def in_order(number: int = NUM_IDS) -> list[list[int]]:
    ids = list(range(number))
    return [ids[begin : begin + GLOBAL_BATCH_SIZE] for begin in range(0, number, GLOBAL_BATCH_SIZE)]


@pytest.mark.parametrize("scenario", ["of_one_tfrecord", "of_one_text_file", "of_a_generator"])
def test_one_source_is_divided_in_halves(both, scenario):
    first, second = (joined(rows) for rows in rows_of_epoch(both, scenario))
    assert len(first) == len(second) == NUM_IDS // 2
    assert not set(first) & set(second)
    assert batches_together(both, scenario) == in_order()


def test_a_drawn_seed_and_the_epoch_are_those_of_the_chief(both):
    chief, other = (worker["shuffled_without_seed"] for worker in both)
    assert chief["drawn"] != other["drawn"]
    assert chief["seed"] == other["seed"] == chief["drawn"]
    assert chief["begun"] == other["begun"] == 2
    alone = FastDataset(np.arange(NUM_IDS), batch_size=GLOBAL_BATCH_SIZE, shuffle=True, seed=chief["seed"])
    for epoch in range(2):
        expected = [batch.tolist() for batch in batches_of(alone)]
        assert batches_together(both, "shuffled_without_seed", epoch) == expected
        assert [len(rows) for rows in rows_of_epoch(both, "shuffled_without_seed", epoch)[0]] == [*ROWS_A_STEP, 4]


def test_an_epoch_resumed_in_its_middle(both):
    alone = FastDataset(np.arange(NUM_IDS), batch_size=GLOBAL_BATCH_SIZE, shuffle=True, seed=7)
    alone.resume_at(1, 10)
    assert batches_together(both, "resumed") == [batch.tolist() for batch in batches_of(alone)]


@pytest.mark.parametrize("scenario", ["tf_data_with_seed", "arrays_of_keras_with_seed"])
def test_shuffles_with_a_seed_are_shuffled_alike(both, scenario):
    for epoch in range(2):
        rows = joined(batches_together(both, scenario, epoch))
        assert sorted(rows) == list(range(NUM_IDS))
        assert rows != list(range(NUM_IDS))
    assert both[0][scenario]["warnings"] == []


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("tf_data_without_seed", "set_random_seed"),
        ("arrays_of_keras_without_seed", "set_random_seed"),
        ("of_a_generator", "a generator, a PyDataset"),
        ("fewer_examples_than_workers", "batch_size=1 for 2 replicas"),
    ],
)
def test_what_may_go_wrong_is_warned_of_once(both, scenario, message):
    for worker in both:
        (warning,) = worker[scenario]["warnings"]
        assert message in warning


@pytest.mark.parametrize("scenario", ["shuffled_without_seed", "of_one_tfrecord", "of_one_text_file", "without_end"])
def test_what_is_right_is_not_warned_of(both, scenario):
    assert [worker[scenario]["warnings"] for worker in both] == [[], []]


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("other_seeds", "0 on worker 0 and 1 on worker 1.*Give the same seed"),
        ("mapped_with_other_seeds", "Give the same seed"),
        ("other_data", "num_examples=100 on worker 0, 99 on worker 1"),
        ("sharded_by_hand", r"without shard\(\).*distribute_datasets_from_function"),
        ("one_has_another_kind", "1 FastDatasets on worker 0 and of 0 on worker 1"),
    ],
)
def test_other_data_are_refused_on_all_workers(both, scenario, message):
    chief, other = (worker[scenario] for worker in both)
    assert chief == other
    assert re.search(message, chief["error"])


def test_fewer_examples_than_workers_leave_one_without(both):
    assert batches_together(both, "fewer_examples_than_workers") == [[0], [1], [2]]
    assert rows_of_epoch(both, "fewer_examples_than_workers")[1] == [[], [], []]


def test_epochs_without_end(both):
    assert batches_together(both, "without_end") == [[*range(8)], [*range(8, 12)]] * 2


def test_data_of_their_own_from_a_function(both):
    first, second = rows_of_epoch(both, "of_a_function")
    assert [len(rows) for rows in first] == [len(rows) for rows in second] == [*ROWS_A_STEP, 2]
    assert sorted(joined(first + second)) == list(range(NUM_IDS))


@pytest.fixture(scope="module")
def two_devices() -> tf.distribute.Strategy:
    return strategies.mirrored(["CPU:0", "CPU:1"])


@functools.cache
def alone_on_one_device(name: str) -> dict[str, Any]:
    return data_scenarios.fit(None, name)


@pytest.mark.parametrize("name", list(data_scenarios.FITS))
@pytest.mark.parametrize("where", ["two devices", "two workers"])
def test_fit_is_that_of_one_device(both, two_devices, name, where):
    """The same batches, hence the same losses, weights and predictions; and the epochs are counted alike."""
    alone = alone_on_one_device(name)
    if where == "two workers":
        fitted = [worker["fits"][name] for worker in both]
    else:
        fitted = [data_scenarios.fit(two_devices, name)]
    tolerance = 2e-3 if name == "compressed" else 1e-6
    for one in fitted:
        # Without an end, the next epoch may be begun ahead of the step that needs it.
        assert one["begun"] == alone["begun"] or name == "endless"
        assert one["history"].keys() == alone["history"].keys()
        for key, values in alone["history"].items():
            np.testing.assert_allclose(one["history"][key], values, rtol=tolerance, atol=tolerance, err_msg=key)
        np.testing.assert_allclose(one["weights"], alone["weights"], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(one["predicted"], alone["predicted"], rtol=tolerance, atol=10 * tolerance)
    if name == "compressed":
        assert np.abs(fitted[0]["weights"] - alone["weights"]).max() > 1e-6
    np.testing.assert_array_equal(fitted[0]["weights"], fitted[-1]["weights"])


@pytest.fixture(scope="module")
def exact() -> dict[str, np.ndarray]:
    """The sums of the workers' gradients in double precision."""
    locally = [data_scenarios.local_gradients(worker) for worker in range(2)]
    return {name: sum(np.asarray(one[name], np.float64) for one in locally) for name in locally[0]}


@pytest.fixture(scope="module")
def magnitudes() -> dict[str, np.ndarray]:
    """The sums of their magnitudes."""
    locally = [data_scenarios.local_gradients(worker) for worker in range(2)]
    return {name: sum(np.abs(np.asarray(one[name], np.float64)) for one in locally) for name in locally[0]}


@pytest.mark.parametrize("make", [lambda: FastDataset(np.arange(4), batch_size=None), lambda: tf.data.Dataset.range(4)])
def test_elements_that_are_no_batches_are_refused(two_devices, make):
    dataset = make()
    with pytest.raises(ValueError, match="no batch axis.*batch_size"):
        two_devices.experimental_distribute_dataset(dataset)


def test_two_strategies_of_one_process_have_exchanges_of_their_own():
    """TensorFlow fails where the first exchanges of two strategies differ in shape."""
    for size in (3, 5):
        strategy = strategies.mirrored(["CPU:0", "CPU:1"])

        @tf.function
        def summed(size=size, strategy=strategy) -> Any:
            return strategy.run(lambda: sum_over_replicas([tf.ones([size])])[0])

        for one in strategy.experimental_local_results(summed()):
            np.testing.assert_array_equal(one, np.full(size, 2.0))


class TestGradients:
    @pytest.mark.parametrize("setting", list(data_scenarios.SETTINGS))
    def test_all_workers_have_the_same_sums(self, both, setting):
        for name, value in both[0]["gradients"][setting].items():
            np.testing.assert_array_equal(value, both[1]["gradients"][setting][name])

    @pytest.mark.parametrize("setting", ["as they are", "ring in packs"])
    def test_sums_are_exact(self, both, exact, setting):
        for name, value in exact.items():
            largest = np.abs(value).max(initial=0, where=np.isfinite(value))
            np.testing.assert_allclose(both[0]["gradients"][setting][name], value, rtol=2e-7, atol=1e-6 * largest)

    @pytest.mark.parametrize("setting", ["float16", "bfloat16"])
    @pytest.mark.parametrize("name", ["usual", "large", "small", "mixed", "zero", "one", "nothing", "double"])
    def test_compressed_sums_are_within_the_stated_bound(self, both, exact, magnitudes, setting, name):
        got = both[0]["gradients"][setting][name]
        bound = 2 * UNIT_ROUNDOFF[setting] * magnitudes[name]
        if setting == "float16":
            # Elements far below the largest are rounded to multiples of a share of it.
            bound = bound + 2.0**-37 * 2 * magnitudes[name].max(initial=0)
        assert (np.abs(got - exact[name]) <= bound * 1.01).all()
        assert got.dtype == data_scenarios.local_gradients(0)[name].dtype
        if name in ("usual", "large", "small"):
            # It is compressed: exact sums would be another thing.
            assert np.abs(got - exact[name]).max() > 1e-6 * np.abs(exact[name]).max()

    def test_what_goes_over_the_wire(self, both):
        """Half the bytes, but for a number a tensor; and as many packs as were asked for."""
        values = data_scenarios.local_gradients(0).values()
        single = sum(one.size for one in values if one.dtype == np.float32)
        double = sum(one.size for one in values if one.dtype == np.float64)
        num_scaled = sum(one.dtype != np.int32 for one in values) + 1  # with the sparse one

        def sent(setting: str) -> dict[str, int]:
            elements: dict[str, int] = {}
            for dtype, number in both[0]["gradients"][setting]["sent"]:
                elements[dtype] = elements.get(dtype, 0) + number
            return elements

        assert sent("as they are") == sent("ring in packs") == {"float32": single, "float64": double, "int32": 2}
        assert sent("float16") == {"float16": single + double, "float32": num_scaled, "int32": 2}
        assert sent("bfloat16") == {"bfloat16": single + double, "int32": 2}
        packs = {setting: len(both[0]["gradients"][setting]["sent"]) for setting in data_scenarios.SETTINGS}
        assert packs["as they are"] < packs["ring in packs"]
        assert packs["float16"] < packs["bfloat16"]

    @pytest.mark.parametrize("setting", list(data_scenarios.SETTINGS))
    def test_what_is_not_finite_stays_so(self, both, setting):
        sums = both[0]["gradients"][setting]
        assert np.isposinf(sums["infinite"][0])
        assert np.isnan(sums["nan"][1])

    @pytest.mark.parametrize("setting", list(data_scenarios.SETTINGS))
    def test_integers_are_sent_as_they_are(self, both, setting):
        np.testing.assert_array_equal(both[0]["gradients"][setting]["whole"], [1, 4])

    @pytest.mark.parametrize("setting", list(data_scenarios.SETTINGS))
    def test_sparse_gradients(self, both, setting):
        expected = np.zeros((5, 2))
        for worker in range(2):
            rows = data_scenarios.local_gradients(worker)["large"][:6].reshape(3, 2)
            for row, index in zip(rows, [worker, 2, 4], strict=True):
                expected[index] += row
        tolerance = UNIT_ROUNDOFF.get(setting, 1e-7)
        got = both[0]["gradients"][setting]["sparse"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=4 * tolerance * np.abs(expected).max())


class TestSettings:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"implementation": "mpi"}, ValueError, "'auto', 'ring' or 'nccl'.*'mpi'"),
            ({"bytes_per_pack": -1}, ValueError, "bytes_per_pack=-1"),
            ({"bytes_per_pack": 1.5}, TypeError, "an integer"),
            ({"bytes_per_pack": True}, TypeError, "an integer"),
            ({"timeout_seconds": 0}, ValueError, "above 0"),
            ({"timeout_seconds": float("inf")}, ValueError, "above 0"),
            ({"timeout_seconds": float("nan")}, ValueError, "above 0"),
            ({"timeout_seconds": "60"}, TypeError, "number of seconds"),
            ({"timeout_seconds": True}, TypeError, "number of seconds"),
            ({"gradient_compression": "float8"}, ValueError, "'float16', 'bfloat16' or None"),
            ({"gradient_compression": True}, ValueError, "'float16', 'bfloat16' or None"),
        ],
    )
    def test_what_can_not_be_is_refused(self, arguments, error, message):
        with pytest.raises(error, match=message):
            Communication(**arguments)

    def test_nccl_needs_gpus(self):
        nccl = Communication(implementation="nccl")
        with pytest.raises(ValueError, match="replicas are on CPU.*'auto' or 'ring'"):
            nccl.cross_device_ops(["CPU", "CPU"])
        nccl.require_devices(["GPU", "GPU"])
        assert nccl.cross_device_ops(["GPU", "GPU"]) is None
        ring = Communication(implementation="ring")
        assert ring.cross_device_ops(["CPU", "CPU"]) is None
        assert isinstance(ring.cross_device_ops(["GPU", "GPU"]), tf.distribute.HierarchicalCopyAllReduce)

    def test_options_are_those_of_tensorflow(self):
        options = Communication(implementation="ring", bytes_per_pack=5, timeout_seconds=2.5).options()
        assert (options.bytes_per_pack, options.timeout_seconds) == (5, 2.5)
        assert options.implementation == tf.distribute.experimental.CommunicationImplementation.RING

    def test_of_a_strategy(self):
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        assert communication_of(strategy) == Communication()
        set_communication(strategy, Communication(bytes_per_pack=1))
        assert communication_of(strategy).bytes_per_pack == 1

    def test_as_text(self):
        assert str(Communication()) == "auto"
        full = Communication(
            implementation="ring", bytes_per_pack=50_000_000, timeout_seconds=60.0, gradient_compression="float16"
        )
        assert str(full) == "ring, packs of 50 MB, gradients as float16, timeout 60 s"
