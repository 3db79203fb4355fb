"""Audio files become samples of one rate, length and number of channels; what is no audio, or no whole one, is told."""

from __future__ import annotations

import functools
import io
import os
import struct
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.sources.audio import AudioDecoder, AudioOptions, audio_kind
from tests.data.epochs import batches_of, bytes_of
from tests.data.sound_files import RATE, pcm, riff, tone, wav, write_wav

STEREO = np.concatenate([tone(440), tone(1000, amplitude=0.25)], 1)


def decode(data: bytes, **options) -> np.ndarray:
    return AudioDecoder(AudioOptions(**{"sample_rate": RATE, "channels": 2, **options})).decode(data, None, None)


def problem_of(data: bytes, **options) -> str:
    with pytest.raises(ValueError, match=".") as caught:
        decode(data, **options)
    return str(caught.value)


class TestWav:
    @pytest.mark.parametrize("bits", [8, 16, 24, 32])
    def test_integers(self, bits):
        integers = pcm(STEREO, bits)
        expected = (integers / 2.0 ** (bits - 1)).astype(np.float32)
        np.testing.assert_array_equal(decode(wav(integers, bits)), expected)

    def test_16_bits_are_as_tensorflow_decodes_them(self):
        data = wav(pcm(STEREO, 16))
        np.testing.assert_array_equal(decode(data), tf.audio.decode_wav(data).audio.numpy())

    @pytest.mark.parametrize("bits", [32, 64])
    @pytest.mark.parametrize("extensible", [False, True])
    def test_floats(self, bits, extensible):
        samples = STEREO.astype(f"<f{bits // 8}")
        data = riff(3, bits, 2, samples.tobytes(), extensible=extensible)
        np.testing.assert_array_equal(decode(data), STEREO.astype(np.float32))

    def test_extensible_integers_behind_other_chunks(self):
        data = riff(1, 16, 2, pcm(STEREO, 16).astype("<i2").tobytes(), extensible=True)
        np.testing.assert_array_equal(decode(data), decode(wav(pcm(STEREO, 16))))

    @pytest.mark.parametrize("size", [0x7FFFF000, 0xFFFFFFFF])
    def test_what_was_written_to_a_pipe_has_no_length(self, size):
        data = bytearray(wav(pcm(STEREO, 16)))
        struct.pack_into("<I", data, 40, size)
        np.testing.assert_array_equal(decode(bytes(data)), decode(wav(pcm(STEREO, 16))))

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
    def test_cut(self, share):
        data = wav(pcm(STEREO, 16))
        assert "the WAV file is truncated: it says 6400 bytes" in problem_of(data[: int(len(data) * share)])

    @pytest.mark.parametrize("size", [*range(12, 44, 4)])
    def test_cut_in_its_header(self, size):
        assert "truncated" in problem_of(wav(pcm(STEREO, 16))[:size])

    def test_no_samples(self):
        assert decode(wav(np.zeros((0, 2), np.int64))).shape == (0, 2)

    def test_kinds_that_are_not_audio_data_are_named(self):
        assert "WAV file is truncated or damaged: " in problem_of(riff(99, 16, 2, bytes(64)))

    def test_more_channels_than_there_can_be(self):
        for bits, size in ((16, 3200), (8, 131_070)):
            data = bytearray(riff(1, bits, 2, bytes(size)))
            struct.pack_into("<H", data, data.index(b"fmt ") + 10, 0xFFFF)
            assert "damaged" in problem_of(bytes(data), channels=1, length_samples=100)

    @pytest.mark.parametrize("rate", [1, 999_983])
    def test_rates_that_nobody_uses_take_no_memory(self, rate):
        assert decode(wav(pcm(tone(440), 16), rate=rate), channels=1, length_samples=100).shape == (100, 1)

    def test_a_file_that_declares_too_many_samples_is_refused(self):
        data = wav(pcm(tone(440), 16), rate=100)
        assert len(decode(data, channels=1, max_samples=256_000)) == 256_000
        with pytest.raises(ValueError, match="declares 256000 samples, more than max_samples=255999.*larger `max_s"):
            decode(data, channels=1, max_samples=255_999)

    def test_random_damage_gives_samples_or_an_error(self):
        rng = np.random.default_rng(0)
        data = wav(pcm(STEREO, 16))
        outcomes = set()
        for _ in range(40):
            damaged = bytearray(data)
            for position in rng.integers(0, 48, 3):
                damaged[position] = rng.integers(0, 256)
            try:
                decode(bytes(damaged), channels=1, length_samples=100)
                outcomes.add("samples")
            except ValueError:
                outcomes.add("error")
        assert outcomes == {"samples", "error"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"RIFF", "WAV, FLAC, Ogg, MP3 and AIFF are, and its first bytes are"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "not an audio file"),
        (b"OggS" + bytes(40), "the OGG file is truncated: its last page is not there, or not whole"),
        (b"fLaC\0\0", "FLAC file is truncated or damaged: "),
        (b"fLaC\x80\0\0\x22" + bytes(34), "FLAC file is truncated or damaged: "),
        (b"ID3\4\0\0\0\0\0\0" + bytes(100), "MP3 file is truncated or damaged: "),
    ],
)
def test_what_is_wrong_is_said(data, message):
    with pytest.raises(ValueError, match=message) as caught:
        decode(data)
    assert "Traceback" not in str(caught.value)


class TestOptions:
    def test_mono_is_the_mean(self):
        expected = decode(wav(pcm(STEREO, 16))).mean(1, keepdims=True)
        np.testing.assert_allclose(decode(wav(pcm(STEREO, 16)), channels=1), expected, atol=1e-7)

    def test_another_number_of_channels_is_refused(self):
        message = problem_of(wav(pcm(tone(440), 16)))
        assert "the file has 1 channel, and channels=2 was asked for" in message

    @pytest.mark.parametrize(
        ("align", "length", "expected"),
        [
            ("start", 5, [1, 2, 3, 0, 0]),
            ("center", 5, [0, 1, 2, 3, 0]),
            ("center", 6, [0, 1, 2, 3, 0, 0]),
            ("end", 5, [0, 0, 1, 2, 3]),
            ("start", 2, [1, 2]),
            ("center", 1, [2]),
            ("end", 2, [2, 3]),
            ("center", 3, [1, 2, 3]),
        ],
    )
    def test_lengths(self, align, length, expected):
        data = wav(np.array([[1], [2], [3]]) * 2**10)
        samples = decode(data, channels=1, length_samples=length, align=align) * 2**5
        assert samples[:, 0].tolist() == expected

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"sample_rate": 0}, ValueError, "`sample_rate` must be at least 1"),
            (
                {"sample_rate": 16e3},
                TypeError,
                "`sample_rate` must be a positive integer. Received: sample_rate=16000.0",
            ),
            ({"sample_rate": True}, TypeError, "sample_rate=True"),
            ({"channels": None}, TypeError, "`channels` must be a positive integer"),
            ({"length_samples": 1.5}, TypeError, "`length_samples` must be a positive integer"),
            ({"length_samples": 0}, ValueError, "`length_samples` must be at least 1"),
            ({"length_seconds": 0}, ValueError, "`length_seconds` must be the length of a sample"),
            ({"length_seconds": float("inf")}, ValueError, "`length_seconds`"),
            ({"length_seconds": "1"}, TypeError, "`length_seconds` must be a number"),
            ({"length_seconds": 1, "length_samples": 3}, ValueError, "not both"),
            ({"align": "middle"}, ValueError, "`align` must be one of start, center, end"),
        ],
    )
    def test_impossible_ones(self, options, error, message):
        with pytest.raises(error, match=message):
            AudioOptions(**{"sample_rate": RATE, **options})

    def test_seconds_are_rounded_to_samples(self):
        assert AudioOptions(44_100, length_seconds=np.float32(0.1)).length_samples == 4410


PACKED = ["flac", "ogg", "mp3", "aiff"]


@functools.cache
def packed(kind: str, bits: int = 16) -> bytes:
    """Half a second of two channels."""
    import soundfile

    samples = np.concatenate([tone(440, 0.5), tone(1000, 0.5, amplitude=0.25)], 1)
    file = io.BytesIO()
    exact = pcm(samples, bits).astype("int16") if kind in ("flac", "aiff") else samples
    soundfile.write(file, exact, RATE, format=kind.upper(), subtype="VORBIS" if kind == "ogg" else None)
    return file.getvalue()


class TestPacked:
    @pytest.mark.parametrize("kind", PACKED)
    def test_kinds(self, kind):
        assert audio_kind(packed(kind)[:64]) == kind

    @pytest.mark.parametrize("kind", ["flac", "aiff"])
    def test_these_are_exact(self, kind):
        integers = pcm(np.concatenate([tone(440, 0.5), tone(1000, 0.5, amplitude=0.25)], 1), 16)
        np.testing.assert_array_equal(decode(packed(kind)), (integers / 2**15).astype(np.float32))

    @pytest.mark.parametrize(("kind", "tolerance"), [("ogg", 0.05), ("mp3", 0.05)])
    def test_others_are_what_was_encoded(self, kind, tolerance):
        samples = decode(packed(kind), channels=2)
        wanted = np.concatenate([tone(440, 0.5), tone(1000, 0.5, amplitude=0.25)], 1)
        # An MP3 begins with the delay of its encoder and decoder.
        delay = max(
            range(3000), key=lambda d: float(samples[d : d + 4000, 0] @ wanted[: len(samples[d : d + 4000]), 0])
        )
        np.testing.assert_allclose(samples[delay + 500 : delay + 4000], wanted[500:4000], atol=tolerance)

    @pytest.mark.parametrize("kind", PACKED)
    def test_mono_and_another_rate(self, kind):
        samples = decode(packed(kind), channels=1, sample_rate=8000, length_samples=4000)
        assert samples.shape == (4000, 1)
        assert 0.1 < np.abs(samples).max() < 0.6

    @pytest.mark.parametrize("kind", ["flac", "ogg"])
    @pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
    def test_cut(self, kind, share):
        data = packed(kind)
        with pytest.raises(ValueError, match=r"\w"):
            decode(data[: int(len(data) * share)])

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("kind", PACKED)
    def test_random_damage_never_hangs(self, kind):
        rng = np.random.default_rng(0)
        data = packed(kind)
        failed = 0
        for number in range(30):
            damaged = bytearray(data)
            begin = rng.integers(60, len(data) - 60)
            if number % 2:
                del damaged[begin : begin + 50]
            else:
                damaged[begin : begin + 50] = rng.bytes(50)
            try:
                decode(bytes(damaged))
            except ValueError:
                failed += 1
        assert failed or kind in ("mp3", "aiff")  # one goes on at the next frame, the other has no checksums

    def test_a_class_folder_of_all_kinds(self, tmp_path):
        """What they are is told by content, not by name."""
        write_wav(tmp_path / "a" / "1.mp3")
        for number, kind in enumerate(PACKED):
            (tmp_path / "a" / f"{number + 2}.wav").write_bytes(packed(kind))
        dataset = FastDataset.from_audio_folder(tmp_path, sample_rate=RATE, length_seconds=0.5, shuffle=False)
        ((samples, labels),) = batches_of(dataset)
        assert samples.shape == (5, 8000, 1)
        assert labels.tolist() == [0] * 5
        assert (np.abs(samples).max(axis=(1, 2)) > 0.1).all()


def test_without_the_library_the_command_is_told_when_the_dataset_is_built(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    write_wav(tmp_path / "a" / "1.wav")
    dataset = FastDataset.from_audio_folder(tmp_path, sample_rate=RATE, length_seconds=0.1, shuffle=False)
    assert batches_of(dataset)[0][0].shape == (1, 1600, 1)
    (tmp_path / "a" / "2.flac").write_bytes(packed("flac"))
    with pytest.raises(ImportError, match=r"needs the library soundfile: pip install 'keras_turbo\[audio\]'"):
        FastDataset.from_audio_folder(tmp_path, sample_rate=RATE, length_seconds=0.1, on_error="skip", shuffle=False)


@pytest.fixture
def sounds(tmp_path):
    """Two classes: three tones of 440, 450 and 460 Hz, two of 1000 and 1010."""
    folder = tmp_path / "größe und so"
    for number in range(3):
        write_wav(folder / "low" / f"{number}.wav", 440 + 10 * number)
    for number in range(2):
        write_wav(folder / "high" / "more" / f"{number} ü.WAV", 1000 + 10 * number)
    return folder


def sounds_in(folder, **options):
    return FastDataset.from_audio_folder(
        folder, **{"sample_rate": RATE, "length_samples": 1600, "batch_size": 2, "shuffle": False, **options}
    )


class TestFolder:
    def test_samples_labels_and_paths_belong_together(self, sounds):
        dataset = sounds_in(sounds, shuffle=True, seed=1, reshuffle_each_epoch=False)
        assert dataset.element_spec[0].shape.as_list() == [None, 1600, 1]
        assert dataset.element_spec[0].dtype == tf.float32
        assert dataset.class_names == ["high", "low"]
        batches = batches_of(dataset)
        assert [batch.shape[0] for batch, _ in batches] == [2, 2, 1]
        labels = np.concatenate([labels for _, labels in batches])
        assert labels.tolist() == [int("low" in path) for path in dataset.file_paths] == dataset.labels.tolist()
        for path, samples in zip(dataset.file_paths, np.concatenate([batch for batch, _ in batches]), strict=True):
            with open(path, "rb") as file:
                np.testing.assert_array_equal(samples, tf.audio.decode_wav(file.read()).audio)

    def test_as_keras_reads_it(self, sounds):
        theirs = keras.utils.audio_dataset_from_directory(
            sounds, batch_size=2, output_sequence_length=2000, shuffle=False, verbose=False
        )
        for (ours, labels), (expected, expected_labels) in zip(
            batches_of(sounds_in(sounds, length_samples=2000)), theirs.as_numpy_iterator(), strict=True
        ):
            np.testing.assert_array_equal(ours, expected)
            np.testing.assert_array_equal(labels, expected_labels)

    def test_files_of_other_rates_are_resampled(self, sounds):
        write_wav(sounds / "low" / "9.wav", 440, rate=44_100)
        batches = batches_of(sounds_in(sounds, class_names=["low"], batch_size=4))
        np.testing.assert_allclose(batches[0][0][3][300:1300], tone(440)[300:1300], atol=1e-3)

    def test_case_1_damaged_ones_are_skipped_or_raised(self, sounds):
        cut, empty = sounds / "low" / "0.wav", sounds / "low" / "1.wav"
        cut.write_bytes(cut.read_bytes()[:1600])
        empty.write_bytes(b"")
        skipping = sounds_in(sounds, on_error="skip")
        with pytest.warns(UserWarning, match="was left out"):
            assert [batch.shape[0] for batch, _ in batches_of(skipping)] == [2, 1]
        assert [batch.shape[0] for batch, _ in batches_of(skipping)] == [2, 1]
        assert {example.path: example.reason.split(":")[0] for example in skipping.skipped} == {
            str(cut): "the WAV file is truncated",
            str(empty): "the file is empty (0 bytes). Write it again, or remove it.",
        }
        with pytest.raises(ExampleLoadError, match="0.wav: the WAV file is truncated"):
            batches_of(sounds_in(sounds))

    def test_case_3_others_are_counted(self, sounds):
        for name in ("low/.DS_Store", "low/._0.wav", ".git/a.wav"):
            (sounds / name).parent.mkdir(exist_ok=True)
            (sounds / name).write_bytes(b"x")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sounds_in(sounds).cardinality() == 3
        (sounds / "low" / "notes.txt").write_text("440 Hz")
        (sounds / "low" / "a.aac").write_bytes(b"\xff\xf1")
        (sounds / "low" / "no ending").write_bytes((sounds / "low" / "0.wav").read_bytes())
        with pytest.warns(UserWarning, match=r"2 files under .* are not among the audio files .* 1 \.txt") as caught:
            assert len(sounds_in(sounds).file_paths) == 6
        assert [warning.filename for warning in caught] == [__file__]

    def test_case_4_changed_files_are_not_taken_from_the_store(self, sounds, tmp_path):
        options = {"cache": "disk", "cache_dir": tmp_path / "cache", "class_names": ["low"], "batch_size": 3}
        batches_of(sounds_in(sounds, **options).take(1))
        expected = write_wav(sounds / "low" / "1.wav", 700)
        ((samples, _),) = batches_of(sounds_in(sounds, **options))
        np.testing.assert_array_equal(samples[1], expected)
        other = sounds_in(sounds, **options, align="end", length_seconds=0.2, length_samples=None)
        assert batches_of(other)[0][0].shape == (3, 3200, 1)

    def test_case_5_files_are_decoded_once_and_noise_differs(self, sounds):
        dataset = sounds_in(sounds, augment_fn=lambda x: x + tf.random.normal(tf.shape(x)), cache="memory", seed=1)
        first = bytes_of(dataset)
        for path in sounds.rglob("*.*"):
            if path.is_file():
                path.unlink()
        assert len({first, bytes_of(dataset), bytes_of(dataset)}) == 3

    def test_case_6_a_seed_decides_all(self, sounds):
        options = {"shuffle": True, "augment_fn": lambda x: x + tf.random.normal(tf.shape(x))}
        one, other = sounds_in(sounds, seed=7, **options), sounds_in(sounds, seed=7, **options)
        epochs = [bytes_of(one), bytes_of(one)]
        assert epochs == [bytes_of(other), bytes_of(other)]
        assert len({*epochs, bytes_of(sounds_in(sounds, seed=8, **options))}) == 3

    def test_other_channels_are_told_when_the_dataset_is_built(self, sounds):
        with pytest.raises(ValueError, match=r"\.WAV: the file has 1 channel, and channels=2 was asked for.*'skip'"):
            sounds_in(sounds, channels=2)
        for path in (sounds / "high").rglob("*.WAV"):
            path.write_bytes(wav(pcm(STEREO, 16)))
        # One that can't be looked into is told when it is read.
        (sounds / "high" / "more" / "0 ü.WAV").write_bytes(b"RIFF")
        with pytest.raises(ValueError, match=r"low.*\.wav: the file has 1 channel"):
            sounds_in(sounds, channels=2)
        skipping = sounds_in(sounds, channels=2, on_error="skip")
        with pytest.warns(UserWarning, match="was left out"):
            assert [samples.shape for samples, _ in batches_of(skipping)] == [(1, 1600, 2)]
        assert len(skipping.skipped) == 4

    def test_case_13_nothing_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="There is no folder '.*none'"):
            sounds_in(tmp_path / "none")
        (tmp_path / "a").mkdir()
        with pytest.raises(ValueError, match=r"No audio files under .* Looked for \.aif, \.aifc"):
            sounds_in(tmp_path)

    def test_a_split_is_disjoint_and_complete(self, sounds):
        training, validation = sounds_in(
            sounds, validation_split=0.4, subset="both", seed=3, shuffle=True, augment_fn=lambda x: x * 0
        )
        assert not np.concatenate([batch for batch, _ in batches_of(training)]).any()
        assert np.concatenate([batch for batch, _ in batches_of(validation)]).any()
        assert len(validation.file_paths) == 2
        alone = sounds_in(sounds, validation_split=0.4, subset="training", seed=3)
        assert sorted([*validation.file_paths, *alone.file_paths]) == sorted(sounds_in(sounds).file_paths)

    def test_labels_may_be_given(self, sounds):
        dataset = sounds_in(sounds, labels=lambda path: os.path.getsize(path) / 2, label_mode="raw")
        assert dataset.labels.tolist() == [1622.0] * 5
        assert sounds_in(sounds, labels=None).element_spec.shape.as_list() == [None, 1600, 1]

    def test_own_lengths_one_by_one(self, sounds):
        write_wav(sounds / "low" / "0.wav", seconds=0.05)
        dataset = sounds_in(sounds, length_samples=None, batch_size=None)
        assert [len(samples) for samples, _ in batches_of(dataset)] == [1600, 1600, 800, 1600, 1600]
        with pytest.raises(ValueError, match="Without `length_seconds` or `length_samples`"):
            sounds_in(sounds, length_samples=None)

    def test_random_crops_of_spectrograms(self, sounds):
        """As docs/audio.md has them."""
        mel = keras.layers.MelSpectrogram(fft_length=256, sequence_stride=64, num_mel_bins=16, sampling_rate=RATE)

        def cropped(spectrogram, seed):
            return tf.image.stateless_random_crop(spectrogram, [16, 10], seed)

        dataset = sounds_in(sounds, map_fn=lambda audio: mel(audio[:, 0]), augment_fn=cropped, seed=1, batch_size=5)
        ((first, _),), ((second, _),) = batches_of(dataset), batches_of(dataset)
        assert first.shape == (5, 16, 10)
        assert not np.array_equal(first, second)

    def test_a_model_trains_on_it(self, sounds):
        model = keras.Sequential(
            [keras.Input((1600, 1)), keras.layers.AveragePooling1D(100), keras.layers.Flatten(), keras.layers.Dense(2)]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = model.fit(sounds_in(sounds, shuffle=True), epochs=2, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
