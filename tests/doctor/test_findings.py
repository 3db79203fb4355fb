"""The report: exit code, JSON, table."""

from __future__ import annotations

import io
import json
import sys

import pytest

from keras_turbo.doctor.findings import Finding, Report, not_examined, version_tuple
from keras_turbo.wording import listed, quoted

FINE = Finding("GPUs", "fine", "All is well.", figures={"memory_mb": 3.5})
BETTER = Finding("disk", "could be better", "It is slow.", "Buy [another] one.")
WRONG = Finding("disk", "wrong", "It is gone.", "Look for it.")


@pytest.mark.parametrize(("findings", "code"), [([], 0), ([FINE, BETTER], 0), ([FINE, WRONG, BETTER], 1)])
def test_the_exit_code_is_1_if_something_is_wrong(findings, code):
    report = Report("1.2.3", tuple(findings))
    assert report.exit_code == code
    assert report.to_dict()["exit_code"] == code


def test_json():
    assert json.loads(Report("1.2.3", (FINE, BETTER)).to_json()) == {
        "keras_turbo": "1.2.3",
        "exit_code": 0,
        "findings": [
            {
                "topic": "GPUs",
                "level": "fine",
                "fact": "All is well.",
                "to_do": None,
                "figures": {"memory_mb": 3.5},
                "subject": None,
            },
            {
                "topic": "disk",
                "level": "could be better",
                "fact": "It is slow.",
                "to_do": "Buy [another] one.",
                "figures": {},
                "subject": None,
            },
        ],
    }


def test_the_table_names_each_topic_once_and_takes_brackets_as_they_are():
    text = io.StringIO()
    Report("1.2.3", (FINE, BETTER, WRONG)).print(text)
    printed = text.getvalue()
    assert printed.count("disk") == 1
    assert "-> Buy [another] one." in printed
    assert printed.rstrip().endswith("1 wrong, 1 could be better, 1 fine.")


def test_what_is_the_same_of_several_gpus_stands_in_the_table_once():
    text = io.StringIO()
    findings = [Finding("GPUs", "fine", fact, subject=f"GPU {index}") for index in range(2) for fact in "AB"]
    odd = Finding("GPUs", "wrong", "A", "See.", subject="GPU 2")
    report = Report("1.2.3", (*findings, odd, FINE, FINE))
    report.print(text)
    table = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert table[:6] == [
        "GPUs fine GPU 0, GPU 1: A",
        "fine GPU 0, GPU 1: B",
        "wrong GPU 2: A",
        "-> See.",
        "fine All is well.",
        "fine All is well.",
    ]
    assert len(report.to_dict()["findings"]) == 7


def test_what_hangs_is_wrong_and_what_fails_is_not_known():
    hanging = not_examined("disk", TimeoutError("The disk did not answer within 20 s."))
    assert hanging.level == "wrong"
    assert "The disk did not answer within 20 s." in hanging.fact
    failing = not_examined("disk", KeyError("a"))
    assert failing.level == "could be better"
    assert failing.fact == "Not examined: KeyError: 'a'"
    assert failing.to_do


ODD = Finding("disk", "fine", "/tmp/a\x1b[31mb\nc\udcffé: ext4.", None, {"rate": 1.0})


class Closed(io.StringIO):
    def write(self, text):
        if text:
            raise BrokenPipeError
        return 0


def test_control_characters_are_shown_and_not_sent():
    text = io.StringIO()
    Report("1", (ODD,)).print(text)
    assert "/tmp/a\\x1b[31mb\\nc\\udcffé: ext4." in text.getvalue()
    assert json.loads(Report("1", (ODD,)).to_json())["findings"][0]["fact"] == "/tmp/a\\x1b[31mb\\nc\\udcffé: ext4."


def test_what_the_encoding_can_not_take_is_escaped():
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding="ascii")
    Report("1", (ODD,)).print(text)
    assert b"\\xe9: ext4." in raw.getvalue()
    assert all(byte < 128 for byte in raw.getvalue())


def test_json_has_no_numbers_that_json_does_not_know():
    with pytest.raises(ValueError, match="JSON"):
        Report("1", (Finding("disk", "fine", "", figures={"rate": float("nan")}),)).to_json()


@pytest.mark.parametrize("columns", ["20", "40", "71", "72", "200"])
def test_all_of_the_text_is_there_however_narrow_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    text = io.StringIO()
    Report("1", (FINE, BETTER, WRONG)).print(text)
    printed = "".join(text.getvalue().split())
    for one in (FINE, BETTER, WRONG):
        for part in (one.topic, one.level, one.fact, one.to_do or ""):
            assert "".join(part.split()) in printed
    assert all(len(line) <= int(columns) and line == line.rstrip() for line in text.getvalue().splitlines())


def test_a_pipe_that_is_closed_is_an_error_of_its_own():
    with pytest.raises(BrokenPipeError):
        Report("1", (FINE,)).print(Closed())


def test_no_output_at_all(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    Report("1", (FINE,)).print()


def test_long_lists_and_values_are_cut():
    assert listed([1, 2, 3]) == "1, 2, 3"
    assert listed(range(9), most=2) == "0, 1 and 7 more"
    assert listed([1, 2], most=2) == "1, 2"
    assert quoted("a") == "'a'"
    assert quoted("a" * 500, most=4) == "'aaa... (502 characters)"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.21.0", (2, 21, 0)), ("2.17.0rc1", (2, 17, 0)), ("9", (9,)), ("12.5.1", (12, 5, 1)), ("dev", ()), ("", ())],
)
def test_version_tuple(text, numbers):
    assert version_tuple(text) == numbers
