"""Text and tables in a terminal, JSON, pages."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import os
import re
import sys

import pytest

from keras_turbo.report import Code, Heading, Report, Table, listed, printable, quoted, show

HOSTILE = "[red]<script>x</script>[/red]"


@dataclasses.dataclass(frozen=True)
class Found(Report):
    name: str
    rate: float = 1.5

    def blocks(self):
        yield Heading(f"What {self.name} found")
        yield Table(
            "a step", ("part", "ms", ""), [(self.name, "1.5", "███"), ("rest", "10", "█")], [("all", "11.5", "")]
        )
        yield Table("", ("", ""), [("error", "two\nlines")], words=(0, 1), styles={"error": "bold red"})
        yield Code(f"train = {self.name!r}\n\treturn")
        yield f"Note on {self.name}."


def test_text():
    lines = str(Found("x")).splitlines()
    assert lines[0] == "What x found"
    words = [line.split() for line in lines]
    for row in (["a", "step"], ["part", "ms"], ["x", "1.5", "███"], ["all", "11.5"], ["error", "two"], ["lines"]):
        assert row in words
    # Numbers stand right.
    assert len(next(line for line in lines if "1.5 " in line).split("1.5")[0]) > len("x ")
    assert "    train = 'x'" in lines
    assert "        return" in lines
    assert lines[-1] == "Note on x."


def test_names_are_no_markup_and_no_control_characters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert str(Found(HOSTILE)).count(HOSTILE) == 4
    text = str(Found("a\x1b[31mb\udcff"))
    assert "a\\x1b[31mb\\udcff" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("columns", ["20", "40", "200"])
def test_all_of_a_table_is_there_however_narrow_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    text = io.StringIO()
    show([Table("", ("", ""), [("warning", "some long words of text" * 4)], words=(0, 1))], text)
    assert "".join(text.getvalue().split()) == "warning" + "somelongwordsoftext" * 4
    assert all(len(line) <= int(columns) for line in text.getvalue().splitlines())
    assert "…" not in str(Found("x"))


def test_what_the_encoding_can_not_take_is_escaped():
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding="ascii")
    Found("größe").print(text)
    assert b"gr\\xf6\\xdfe" in raw.getvalue()


def test_outputs_that_take_nothing(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            if text:
                raise BrokenPipeError
            return 0

    with pytest.raises(BrokenPipeError):
        Found("x").print(Closed())
    monkeypatch.setattr(sys, "stdout", None)
    Found("x").print()


def test_json():
    assert json.loads(Found("größe").to_json()) == {"name": "größe", "rate": 1.5}
    assert json.loads(Found("x", float("inf")).to_json()) == {"name": "x", "rate": None}
    assert Found("größe").to_json().isascii()


def test_a_page(tmp_path, monkeypatch):
    target = tmp_path / "found.html"
    Found(HOSTILE).save(target)
    page = target.read_text(encoding="utf-8")
    assert "<script" not in page
    assert html.unescape(re.sub(r"<[^>]*>", "", page)).count(HOSTILE) >= 3
    assert not re.search(r"(src|href)\s*=|@import|url\(", page)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        Found("x").save(target)
    assert target.read_text(encoding="utf-8") == page
    assert os.listdir(tmp_path) == ["found.html"]


def test_where_a_page_can_not_be_written(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist.*Make it first"):
        Found("x").save(tmp_path / "nowhere" / "found.html")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        Found("x").save(tmp_path)


def test_long_lists_and_values_are_cut():
    assert listed([1, 2, 3]) == "1, 2, 3"
    assert listed(range(9), most=2) == "0, 1 and 7 more"
    assert listed([1, 2], most=2) == "1, 2"
    assert quoted("a") == "'a'"
    assert quoted("a" * 500, most=4) == "'aaa... (502 characters)"
    assert printable("größe\n\t\x00", keep="") == "größe\\n\\t\\x00"
