"""The page, in a real browser."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_turbo.auditing.page import page_of
from keras_turbo.auditing.parts import StepParts
from keras_turbo.auditing.remedies.remedy import Remedy, does_not_apply
from keras_turbo.auditing.report import AuditReport
from keras_turbo.auditing.utilization import BASELINE, Phase, Utilization
from keras_turbo.data.profile import PipelineReport, StageFigures
from keras_turbo.monitor.verdict import judge
from tests.auditing.browser import run_browser

HOSTILE = "<script>document.title='taken'</script>"
LONG = "classifier_of_" + 60 * "something"


def report_of(**changes) -> AuditReport:
    parts = StepParts(12.0, 11.0, 2.0, 0.5, {"SlowCallback": 1.0})
    use = Utilization(
        seconds=tuple(0.1 * i for i in range(40)),
        cpu_percent=tuple(float(50 + 40 * np.sin(i / 5)) for i in range(40)),
        gpu_names=(),
        gpu_percent=(),
        phases=(Phase(BASELINE, 0.5, 1.5), Phase("cache", 1.5, 3.0)),
        problem="No NVIDIA driver on this machine.",
        baseline_cpu_percent=40.0,
        baseline_gpu_percent=(),
        throttled_percent=None,
        throttle_reasons=(),
    )
    stages = (StageFigures("read", 1000.0, 1000.0, 0.4), StageFigures("decode", 700.0, 1500.0, 0.6))
    report = AuditReport(
        verdict=judge(parts.figures(steps_per_execution=1, reads_fast_dataset=False)),
        parts=parts,
        remedies=(
            Remedy("cache", "gain", 12.0, 3.0, "fit on cached batches", "", "train = train.cache()  # 1 < 2"),
            Remedy("XLA", "no gain", 12.0, 11.9, "fit with XLA", "sums in another order", "tune(model, train)"),
            does_not_apply("workers", "a FastDataset has them"),
        ),
        utilization=use,
        pipeline=(),
        stages=PipelineReport(stages, 400.0, 500.0, 9000.0, "decode", "Keep decoded examples."),
        facts={"model": "classifier (Sequential), 195 parameters", "data": "FastDataset, 32 examples a batch"},
        notes=("Not run: ModelCheckpoint.",),
        seconds=42.0,
    )
    return dataclasses.replace(report, **changes)


def text_of(markup: str) -> str:
    class Texts(html.parser.HTMLParser):
        found: tuple = ()

        def handle_data(self, data):
            self.found += (data,)

    texts = Texts()
    texts.feed(re.sub(r"<(style|script)\b.*?</\1>", "", markup, flags=re.DOTALL))
    return " ".join(" ".join(texts.found).split())


def test_what_to_do_about_saves_is_told_with_the_verdict():
    parts = StepParts(12.0, 11.0, 10.0, 9.0, {}, {"ModelCheckpoint": 30.0})
    verdict = judge(parts.figures(steps_per_execution=1, reads_fast_dataset=False))
    report = report_of(parts=parts, verdict=verdict)
    advice = (
        'callbacks=[keras_turbo.AsyncCheckpoint("checkpoints")] in place of ModelCheckpoint writes in the background.'
    )
    assert f"{advice} cache made the steps between saves 4.0 times as fast." in report.headline
    text = text_of(page_of(report))
    assert "checkpoint-stalls" in text
    assert advice in text
    assert "checkpoints 30 ms, 71 %" in text
    assert report_of(parts=parts, verdict=verdict, remedies=()).headline.endswith(advice)
    assert report.to_dict()["step"]["whole_ms"] == 42


def hostile_report() -> AuditReport:
    plain = report_of()
    gain = dataclasses.replace(plain.remedies[0], name=HOSTILE, measured=HOSTILE, code=HOSTILE, changes=HOSTILE)
    return report_of(
        verdict=dataclasses.replace(plain.verdict, text=HOSTILE),
        parts=dataclasses.replace(plain.parts, callbacks_ms={HOSTILE: 1.0, LONG: 0.0}),
        remedies=(gain, dataclasses.replace(gain, status="no gain"), does_not_apply(HOSTILE, LONG)),
        utilization=dataclasses.replace(
            plain.utilization,
            problem=HOSTILE,
            gpu_names=(HOSTILE,),
            gpu_percent=(plain.utilization.cpu_percent,),
            phases=(Phase(f'"{HOSTILE}', 0.0, 3.0),),
        ),
        pipeline=(HOSTILE,),
        stages=None,
        facts={HOSTILE: HOSTILE, "model": LONG, "data": HOSTILE},
        notes=(HOSTILE,),
    )


@dataclasses.dataclass(frozen=True)
class Shown:
    """A page as a browser shows it: its pixels, and the document that it made of it."""

    width: int
    pixels: np.ndarray
    document: str
    console: list[str]


def shown(report: AuditReport, folder: Path, width: int, scheme: str) -> Shown:
    report.save(folder / "audit.html")
    shot = folder / "shot.png"
    # One start of the browser takes longer than all that is looked at.
    done = run_browser(
        folder / "audit.html",
        f"--blink-settings=preferredColorScheme={'1' if scheme == 'light' else '0'}",
        f"--window-size={width},1600",
        f"--screenshot={shot}",
        "--dump-dom",
        folder=folder,
    )
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB"))
    return Shown(width, pixels, done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    return shown(report_of(), tmp_path_factory.mktemp("light"), 1200, "light")


@pytest.fixture(scope="module")
def dark_and_hostile(tmp_path_factory):
    return shown(hostile_report(), tmp_path_factory.mktemp("dark"), 400, "dark")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "is_background", "wait"),
    [
        ("light", lambda mean: mean > 200, (0xD9, 0x73, 0x0D)),
        ("dark_and_hostile", lambda mean: mean < 60, (0xF0, 0x96, 0x4A)),
    ],
)
def test_it_is_rendered_whole(request, page, is_background, wait):
    seen = request.getfixturevalue(page)
    assert seen.console == []
    # Width is what was asked for, or the least that the browser has.
    assert seen.pixels.shape[1] >= seen.width
    assert len(np.unique(seen.pixels.reshape(-1, 3), axis=0)) > 50
    assert is_background(seen.pixels[5, 5].mean())
    # The bar of a step shows its parts: the colour of the input's wait is there, in much of a row.
    alike = np.abs(seen.pixels.astype(int) - np.array(wait)).sum(axis=-1) < 12
    assert alike.sum(axis=1).max() > 0.4 * seen.width


@pytest.mark.slow
def test_the_browser_finds_verdict_and_remedies(light):
    text = text_of(light.document)
    assert "Fit waits 9 of a step's 12 ms for its next batch (75 %)." in text
    assert "With cache it runs 4.0 times as fast" in text
    assert "train = train.cache() # 1 < 2" in text
    for part in ("input wait 9 ms", "dispatch 1.5 ms", "compute 0.5 ms", "callbacks 1 ms", "decode (slowest)", "XLA"):
        assert part in text
    assert "does not apply: a FastDataset has them" in text
    assert "ModelCheckpoint" in text
    assert light.document.count("<path") == 1


@pytest.mark.slow
def test_hostile_names_stay_text(dark_and_hostile):
    assert "<script>document" not in page_of(hostile_report())
    document = dark_and_hostile.document
    assert re.search(r"<title>(.*?)</title>", document)[1] == "input-bound: keras_turbo audit"
    assert document.count("<script") == 1
    assert text_of(document).count(HOSTILE) >= 13


def test_it_needs_nothing_else():
    page = page_of(report_of())
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?:", page)
    assert "default-src 'none'" in page.replace("&#x27;", "'")


def test_it_is_made_of_json_s_types():
    values = report_of().to_dict()
    assert json.loads(json.dumps(values))["remedies"][0]["times"] == 4.0
    assert sum(values["step"]["timeline_ms"].values()) == pytest.approx(12.0)
    assert values["verdict"]["kind"] == "input-bound"


def test_the_terminal_shows_the_same():
    text = str(report_of())
    assert (
        "input-bound: fit waits 9 of a step's 12 ms for its next batch (75 %). cache made it 4.0 times as fast." in text
    )
    assert "    train = train.cache()  # 1 < 2" in text
    assert "Does not apply: workers: a FastDataset has them." in text
    # Names are no markup.
    hostile = report_of(remedies=(dataclasses.replace(report_of().remedies[0], name="[red]x[/red]"),))
    assert "[red]x[/red]" in str(hostile)


def test_a_narrow_terminal_shortens_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = str(report_of())
    assert "…" not in text
    assert "gains" in text


def test_nothing_gained():
    text = text_of(page_of(report_of(remedies=(does_not_apply("cache", "no"),))))
    assert "None of the remedies that were measured gained anything" in text
