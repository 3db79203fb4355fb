"""The report: exit code, JSON, table."""

from __future__ import annotations

import io
import json

import pytest

from keras_turbo.doctor.findings import Examination, Finding, not_examined

FINE = Finding("GPUs", "ok", "All is well.", figures={"memory_mb": 3.5})
BETTER = Finding("disk", "warning", "It is slow.", "Buy [another] one.")
WRONG = Finding("disk", "error", "It is gone.", "Look for it.")


@pytest.mark.parametrize(("findings", "code"), [([], 0), ([FINE, BETTER], 0), ([FINE, WRONG, BETTER], 1)])
def test_the_exit_code_is_1_if_something_is_wrong(findings, code):
    report = Examination("1.2.3", tuple(findings))
    assert report.exit_code == code
    assert report.to_dict()["exit_code"] == code


def test_json():
    assert json.loads(Examination("1.2.3", (FINE, BETTER)).to_json()) == {
        "keras_turbo": "1.2.3",
        "exit_code": 0,
        "findings": [
            {
                "topic": "GPUs",
                "level": "ok",
                "fact": "All is well.",
                "hint": None,
                "figures": {"memory_mb": 3.5},
                "subject": None,
            },
            {
                "topic": "disk",
                "level": "warning",
                "fact": "It is slow.",
                "hint": "Buy [another] one.",
                "figures": {},
                "subject": None,
            },
        ],
    }


def test_the_table_names_each_topic_once_and_takes_brackets_as_they_are():
    text = io.StringIO()
    Examination("1.2.3", (FINE, BETTER, WRONG)).print(text)
    printed = text.getvalue()
    assert printed.count("disk") == 1
    assert "-> Buy [another] one." in printed
    assert printed.rstrip().endswith("1 ok, 1 warning, 1 error.")


def test_what_is_the_same_of_several_gpus_stands_in_the_table_once():
    text = io.StringIO()
    findings = [Finding("GPUs", "ok", fact, subject=f"GPU {index}") for index in range(2) for fact in "AB"]
    odd = Finding("GPUs", "error", "A", "See.", subject="GPU 2")
    report = Examination("1.2.3", (*findings, odd, FINE, FINE))
    report.print(text)
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines() if line.strip()]
    assert lines[:7] == [
        "GPUs",
        "ok GPU 0, GPU 1: A",
        "ok GPU 0, GPU 1: B",
        "error GPU 2: A",
        "-> See.",
        "ok All is well.",
        "ok All is well.",
    ]
    assert len(report.to_dict()["findings"]) == 7


def test_what_hangs_is_wrong_and_what_fails_is_not_known():
    hanging = not_examined(TimeoutError("The disk did not answer within 20 s."))
    assert hanging.level == "error"
    assert "The disk did not answer within 20 s." in hanging.fact
    failing = not_examined(KeyError("a"))
    assert failing.level == "warning"
    assert failing.fact == "Not examined: KeyError: 'a'"
    assert failing.hint


ODD = Finding("disk", "ok", "/tmp/a\x1b[31mb\nc\udcffé: ext4.", None, {"rate": 1.0})


def test_control_characters_are_shown_and_not_sent():
    text = io.StringIO()
    Examination("1", (ODD,)).print(text)
    assert "/tmp/a\\x1b[31mb\\nc\\udcffé: ext4." in text.getvalue()
    assert (
        json.loads(Examination("1", (ODD,)).to_json())["findings"][0]["fact"] == "/tmp/a\\x1b[31mb\\nc\\udcffé: ext4."
    )


@pytest.mark.parametrize("columns", ["20", "40", "71", "72", "200"])
def test_all_of_the_text_is_there_however_narrow_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    text = io.StringIO()
    Examination("1", (FINE, BETTER, WRONG)).print(text)
    printed = "".join(text.getvalue().split())
    for one in (FINE, BETTER, WRONG):
        for part in (one.topic, one.level, one.fact, one.hint or ""):
            assert "".join(part.split()) in printed
    # The last line is one that terminals break by themselves.
    assert all(len(line) <= int(columns) and line == line.rstrip() for line in text.getvalue().splitlines()[:-1])
