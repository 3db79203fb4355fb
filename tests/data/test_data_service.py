"""`service`: batches that workers of a tf.data service make, in processes of their own, are those of this process."""

from __future__ import annotations

import signal
import socket
import threading
import time

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from PIL import Image

from keras_turbo import FastDataset
from keras_turbo.cli import main
from keras_turbo.data import service_pipeline
from keras_turbo.data.python_function import PythonFunction
from keras_turbo.data.service import batch_stream
from keras_turbo.data.service.address import DataServiceError, ServiceAddress
from keras_turbo.data.service.batch_stream import BatchStream
from keras_turbo.data.service.job import NothingArrivedError
from tests.data.epochs import batches_of, bytes_of
from tests.data.service_parts import free_port, running_service

ROWS = np.arange(101 * 3, dtype="float32").reshape(101, 3)
LABELS = np.arange(101)


def with_noise(x, y, seed):
    return x + tf.random.stateless_uniform([3], seed), y


def doubled_until_large(x, y):
    # AutoGraph makes a loop of TensorFlow of it.
    while tf.reduce_sum(x) < 1000:
        x = 2 * x + 1
    return x, y


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running_service(tmp_path_factory.mktemp("dispatcher")) as running:
        yield running


def test_the_parts_say_where_they_listen(service):
    assert service.said[0] == f"dispatcher {service.address}"
    for line in service.said[1:]:
        assert line.startswith("worker localhost:")
        assert line.endswith(f" of {service.address}")


class TestBatches:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"shuffle": True, "augment_fn": with_noise},
            {"shuffle": True, "map_fn": lambda x: x * 2, "drop_remainder": True},
            {"shuffle": True, "reshuffle_each_epoch": False, "workers": 3},
            {"shuffle": True, "map_fn": doubled_until_large, "augment_fn": with_noise},
        ],
        ids=["in order", "shuffled and augmented", "mapped, full batches", "one order", "AutoGraph"],
    )
    def test_are_those_of_this_process_epoch_by_epoch(self, service, options):
        here = FastDataset(ROWS, LABELS, batch_size=8, seed=3, **options)
        there = FastDataset(ROWS, LABELS, batch_size=8, seed=3, service=service.address, **options)
        assert int(there.cardinality()) == int(here.cardinality())
        tf.nest.assert_same_structure(there.element_spec, here.element_spec)
        for _ in range(2):
            assert bytes_of(there) == bytes_of(here)

    def test_every_example_comes_once_an_epoch_in_another_order(self, service):
        data = FastDataset(ROWS, LABELS, batch_size=8, shuffle=True, seed=0, service=service.address)
        first, second = ([label for _, labels in batches_of(data) for label in labels] for _ in range(2))
        assert sorted(first) == sorted(second) == list(range(101))
        assert first != second

    def test_resuming_begins_at_any_batch(self, service):
        data = FastDataset(
            ROWS, LABELS, batch_size=8, shuffle=True, seed=1, augment_fn=with_noise, service=service.address
        )
        batches_of(data)
        whole = batches_of(data)
        data.resume_at(1, 5)
        rest = batches_of(data)
        assert len(rest) == len(whole) - 5
        for ours, theirs in zip(rest, whole[5:], strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
        data.resume_at(1, 99)
        assert batches_of(data) == []

    def test_an_epoch_that_is_left_does_not_disturb_the_next(self, service):
        here = FastDataset(ROWS, batch_size=8, shuffle=True, seed=1)
        there = FastDataset(ROWS, batch_size=8, shuffle=True, seed=1, service=service.address)
        for data in (here, there):
            next(iter(data))
        assert bytes_of(there) == bytes_of(here)

    def test_shards_are_disjoint_and_complete(self, service):
        data = FastDataset(LABELS, batch_size=8, shuffle=True, seed=1, service=service.address)
        shards = [data.shard(2, index) for index in range(2)]
        parts = [np.concatenate(batches_of(shard)) for shard in shards]
        assert sorted(np.concatenate(parts)) == list(range(101))
        assert [len(part) for part in parts] == [51, 50]

    def test_fit_takes_them_with_class_weight(self, service):
        def loss_of(data):
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(4, activation="softmax")])
            model.compile("sgd", "sparse_categorical_crossentropy")
            return model.fit(data, epochs=2, class_weight={0: 2.0}, verbose=0).history["loss"]

        options = {"batch_size": 16, "shuffle": True, "seed": 5}
        assert loss_of(FastDataset(ROWS / 300, LABELS % 4, service=service.address, **options)) == loss_of(
            FastDataset(ROWS / 300, LABELS % 4, **options)
        )

    def test_images_in_a_folder_that_all_reach(self, service, tmp_path, monkeypatch):
        rng = np.random.default_rng(0)
        for index in range(10):
            folder = tmp_path / "fotos, größer" / "ab"[index % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (12, 10, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.{('png', 'jpg')[index % 3 == 0]}")
        # Relative paths are those of this process.
        monkeypatch.chdir(tmp_path)
        options = {"image_size": (8, 8), "batch_size": 4, "shuffle": True, "seed": 2}
        here = FastDataset.from_image_folder("fotos, größer", cache=False, **options)
        there = FastDataset.from_image_folder("fotos, größer", service=service.address, **options)
        assert bytes_of(there) == bytes_of(here)
        assert there.class_names == ["a", "b"]

        # Workers have begun the next epoch, so others are asked for what has changed.
        damaged = tmp_path / "fotos, größer" / "a" / "4.png"
        damaged.write_bytes(damaged.read_bytes()[:60])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"4\.png: .*A worker of the data service could not"):
            batches_of(FastDataset.from_image_folder("fotos, größer", service=service.address, **options))
        deleted = FastDataset.from_image_folder("fotos, größer", service=service.address, **options)
        damaged.unlink()
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"4\.png; No such file.*could not load it either"):
            batches_of(deleted)
        Image.fromarray(pixels).save(damaged, "gif")
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"4\.png: a data service's workers decode JPEG and PNG"
        ):
            batches_of(FastDataset.from_image_folder("fotos, größer", service=service.address, **options))

    def test_records(self, service, tmp_path):
        for file in range(2):
            with tf.io.TFRecordWriter(str(tmp_path / f"{file}.tfrecord")) as writer:
                for number in range(9):
                    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[10 * file + number]))
                    example = tf.train.Example(features=tf.train.Features(feature={"n": feature}))
                    writer.write(example.SerializeToString())
        features = {"n": tf.io.FixedLenFeature([], tf.int64)}
        options = {"x": "n", "batch_size": 4, "shuffle": True, "seed": 1}
        here = FastDataset.from_tfrecord(tmp_path, features, cache=False, **options)
        there = FastDataset.from_tfrecord(tmp_path, features, service=service.address, **options)
        assert bytes_of(there) == bytes_of(here)

    def test_tables_in_memory(self, service, tmp_path):
        rows = {"n": list(range(30)), "word": [f"wört {number % 7}" for number in range(30)]}
        pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=10)
        options = {"label": "n", "batch_size": 4, "shuffle": True, "seed": 1}
        here = [(x["word"].tolist(), y.tolist()) for x, y in batches_of(FastDataset.from_parquet(tmp_path, **options))]
        there = FastDataset.from_parquet(tmp_path, service=service.address, **options)
        assert [(x["word"].tolist(), y.tolist()) for x, y in batches_of(there)] == here
        for option in ({"cache": False}, {"shuffle_row_groups": 2}):
            with pytest.raises(ValueError, match="on other machines, and .*row groups .*by Python of this one"):
                FastDataset.from_parquet(tmp_path, service=service.address, **options, **option)


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda options: FastDataset(ROWS, cache="memory", **options), "cache='memory' keeps examples"),
            (lambda options: FastDataset(ROWS, on_error="skip", **options), "on_error='skip' needs an account"),
            (lambda options: FastDataset(ROWS, **options | {"batch_size": None}), "sends batches"),
            (lambda options: FastDataset(tf.data.Dataset.range(9), **options), "a tf.data.Dataset has none"),
            (lambda options: FastDataset(lambda: iter(ROWS), workers=0, **options), "Python code of this process"),
            (
                lambda options: FastDataset(ROWS, map_fn=PythonFunction(np.negative), workers=0, **options),
                "Python code of this process",
            ),
            (
                lambda options: FastDataset(
                    ROWS, map_fn=lambda x: tf.ensure_shape(tf.py_function(lambda y: y, [x], tf.float32), [3]), **options
                ),
                r"it calls Python \(EagerPyFunc\)",
            ),
            (
                lambda options: FastDataset([[1], [1, 2]], bucket_by_length=[2], **options),
                "not possible together with `service`",
            ),
        ],
        ids=["cache", "skip", "no batches", "dataset", "generator", "PythonFunction", "py_function", "buckets"],
    )
    def test_what_needs_this_process(self, make, message):
        with pytest.raises(ValueError, match=message):
            make({"service": "grpc://localhost:1", "batch_size": 4})

    def test_arrays_that_are_too_large(self, monkeypatch):
        monkeypatch.setattr(service_pipeline, "LARGEST_GRAPH_BYTES", 1000)
        with pytest.raises(ValueError, match="would go to the dispatcher and to each worker"):
            FastDataset(ROWS, service="grpc://localhost:1")

    @pytest.mark.parametrize(
        "text",
        ["localhost:5000", "http://localhost:5000", "grpc://localhost", "grpc://:5000", "grpc://a:0", "grpc://a:99999"],
    )
    def test_an_address_in_another_form(self, text):
        with pytest.raises(ValueError, match=r"as 'grpc://host:port'.*Received: "):
            FastDataset(ROWS, service=text)
        with pytest.raises(TypeError, match="address of a dispatcher"):
            FastDataset(ROWS, service=5000)

    def test_where_nothing_answers(self):
        with pytest.raises(DataServiceError, match=r"No data service answers at grpc://localhost:\d+"):
            FastDataset(ROWS, service=f"grpc://localhost:{free_port()}")

    def test_where_something_else_answers(self):
        with socket.create_server(("localhost", 0)) as server:
            thread = threading.Thread(target=lambda: server.accept()[0].close())
            thread.start()
            with pytest.raises(DataServiceError, match="it is no data service|No data service answers"):
                FastDataset(ROWS, service=f"grpc://localhost:{server.getsockname()[1]}")
            thread.join()

    def test_where_a_worker_answers(self, service):
        address = service.said[1].split()[1]
        with pytest.raises(tf.errors.OpError, match=f"What answers at grpc://{address} is no dispatcher"):
            batches_of(FastDataset(ROWS, service=f"grpc://{address}"))

    def test_report(self, service):
        with pytest.raises(ValueError, match="of a data service can't be told apart"):
            FastDataset(ROWS, service=service.address).report()


class ScriptedJob:
    """Gives what it is told to."""

    def __init__(self, script):
        self._script = iter(script)
        self.is_closed = False

    def next(self, seconds):
        result = next(self._script)
        if isinstance(result, Exception):
            raise result
        return None if result is None else [np.int64(result), np.full(2, result)]

    def close(self):
        self.is_closed = True


class TestOrder:
    def stream(self, *scripts, check=lambda: None):
        self.jobs, self.firsts = [ScriptedJob(script) for script in scripts], []

        def start_job(first):
            self.firsts.append(first)
            return self.jobs[len(self.firsts) - 1]

        return BatchStream(start_job, check, 5)

    def numbers(self, stream, count):
        return [int(stream.next()[0]) for _ in range(count)]

    def test_batches_are_put_in_order_and_none_is_given_twice(self):
        assert self.numbers(self.stream([7, 5, 5, 4, 6, 8]), 4) == [5, 6, 7, 8]

    def test_what_is_lost_is_made_again(self, monkeypatch):
        monkeypatch.setattr(batch_stream, "_MOST_EARLY", 3)
        monkeypatch.setattr(batch_stream, "_FEWEST_EARLY", 3)
        stream = self.stream([5, 7, 8, 9], [7, 6, 8, 9, 10])
        assert self.numbers(stream, 6) == [5, 6, 7, 8, 9, 10]
        assert self.firsts == [5, 6]
        assert [job.is_closed for job in self.jobs] == [True, False]

    def test_a_service_that_was_started_again(self):
        gone = tf.errors.NotFoundError(None, None, "job not found")
        assert self.numbers(self.stream([5, gone], [6]), 2) == [5, 6]

    def test_it_waits_for_slow_workers_and_not_for_none(self):
        waits = [NothingArrivedError("")] * 3
        assert self.numbers(self.stream([*waits, 5]), 1) == [5]

        def nobody():
            raise DataServiceError("no worker")

        with pytest.raises(DataServiceError, match="no worker"):
            self.stream([*waits, 5], check=nobody).next()

    def test_what_never_comes_is_an_error(self):
        gone = [tf.errors.UnavailableError(None, None, "gone")]
        with pytest.raises(DataServiceError, match="did not make batch 5 in 4 attempts: gone"):
            self.stream(gone, gone, gone, gone, gone).next()
        # Of a file that is not there, the session tells which one it is.
        missing = [tf.errors.NotFoundError(None, None, "a.png; No such file or directory")]
        with pytest.raises(tf.errors.NotFoundError, match="a.png"):
            self.stream(missing, missing, missing).next()


class TestParts:
    def test_a_worker_whose_dispatcher_does_not_answer_says_so(self, capsys):
        address = f"grpc://localhost:{free_port()}"
        with pytest.raises(SystemExit) as exit_info:
            main(["data-service", "worker", "--dispatcher", address, "--timeout", "1"])
        assert exit_info.value.code == 2
        assert f"No data service answers at {address}" in (printed := capsys.readouterr().err)
        assert "Waited 1 s for it." in printed

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["worker", "--dispatcher", "localhost:1"], "as 'grpc://host:port'"),
            (["worker"], "--dispatcher"),
            (["dispatcher", "--port", "70000"], "must be a port from 0 to 65535. Received: '70000'"),
        ],
    )
    def test_arguments_that_can_not_be(self, capsys, arguments, message):
        with pytest.raises(SystemExit) as exit_info:
            main(["data-service", *arguments])
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err

    def test_a_port_that_is_taken(self, capsys):
        with socket.create_server(("", 0)) as server, pytest.raises(SystemExit):
            main(["data-service", "dispatcher", "--port", str(server.getsockname()[1])])
        assert "can't be used: " in capsys.readouterr().err

    def test_no_part_prints_the_help(self, capsys):
        assert main(["data-service"]) == 2
        assert "dispatcher" in capsys.readouterr().err

    def test_ipv6(self):
        address = ServiceAddress.parse("grpc://[::1]:5000")
        assert (address.host, address.port, str(address)) == ("::1", 5000, "grpc://[::1]:5000")


def test_workers_that_die_and_a_service_that_ends(service, monkeypatch):
    """The last of this module: when it is through, nobody makes batches any more."""
    monkeypatch.setattr(batch_stream, "PATIENCE_SECONDS", 1.0)
    rows = np.arange(4_000).reshape(-1, 2)
    options = {"batch_size": 8, "shuffle": True, "seed": 1}
    here, there = FastDataset(rows, **options), FastDataset(rows, service=service.address, **options)

    # One of two dies: the epoch is complete, and in its order.
    expected = batches_of(here)
    for number, batch in enumerate(there.as_numpy_iterator()):
        if number == 20:
            service.workers[0].kill()
        np.testing.assert_array_equal(batch, expected[number])
    assert number == len(expected) - 1

    monkeypatch.setattr(service_pipeline, "ANSWER_SECONDS", 10.0)
    # The other is told to end, and does: an error, and no epoch that is short.
    given = 0
    with pytest.raises(tf.errors.OpError, match="answers, but no worker does"):
        for _ in there:
            given += 1
            if given == 20:
                service.workers[1].terminate()
                assert service.workers[1].wait(60) == 0
    assert given < len(expected)

    service.dispatcher.send_signal(signal.SIGINT)
    assert service.dispatcher.wait(60) == 130
    before = time.monotonic()
    with pytest.raises(tf.errors.OpError, match="No data service answers"):
        batches_of(there)
    assert time.monotonic() - before < 60
