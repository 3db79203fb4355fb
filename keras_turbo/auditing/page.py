"""The audit's page: one HTML file that needs no network and no other file, with every text escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from keras_turbo.auditing.charts import step_bars, utilization_chart
from keras_turbo.auditing.page_style import SCRIPT, STYLE
from keras_turbo.auditing.remedies.remedy import Remedy
from keras_turbo.auditing.report import AuditReport


def page_of(report: AuditReport) -> str:
    """The page as a text."""
    # Nothing that a name in the report could hold would run: only this script may.
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    body = "".join(
        (
            _header(report),
            _step(report),
            _remedies(report),
            _input(report),
            _utilization(report),
            _others(report),
            _footer(report),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.verdict.kind)}: keras_turbo audit</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _header(report: AuditReport) -> str:
    verdict = report.verdict
    text = verdict.text[:1].upper() + verdict.text[1:]
    told = [escape(report.advice)] if report.advice else []
    if report.gains:
        best = report.gains[0]
        what = "the steps between saves run" if report.parts.checkpoints_ms else "it runs"
        told.append(f"With {escape(best.name)} {what} <b>{best.times:.1f} times as fast</b>, measured here.")
    elif not told:
        told.append("No remedy that was measured gained anything.")
    lead = " ".join(told)
    return (
        f'<header><div class="brand"><b>keras_turbo audit</b> · {escape(report.facts.get("model", ""))}</div>'
        f'<div class="kind {escape(verdict.kind)}">{escape(verdict.kind)}</div>'
        f'<h1 id="verdict">{escape(text)}</h1><p class="lead">{lead}</p>{_tiles(report)}</header>'
    )


def _tiles(report: AuditReport) -> str:
    parts, use = report.parts, report.utilization
    tiles = [
        (f"{parts.whole_ms:.3g} ms", "a step of fit"),
        (f"{100 * min(1.0, parts.input_wait_ms / parts.whole_ms):.0f} %", "of it waiting for input"),
    ]
    if parts.dispatch_ms is not None:
        tiles.append((f"{100 * min(1.0, parts.dispatch_ms / parts.whole_ms):.0f} %", "between steps, in Python"))
    if use.baseline_gpu_percent:
        mean = sum(use.baseline_gpu_percent) / len(use.baseline_gpu_percent)
        tiles.append((f"{mean:.0f} %", "mean use of the GPUs"))
    elif use.baseline_cpu_percent is not None:
        tiles.append((f"{use.baseline_cpu_percent:.0f} %", "of the CPU cores in use"))
    shown = "".join(
        f'<div class="tile"><div class="figure">{escape(figure)}</div><div class="what">{escape(what)}</div></div>'
        for figure, what in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _step(report: AuditReport) -> str:
    callbacks = "".join(
        f"<tr><td>{escape(name)}</td><td class=number>{ms:.3g} ms</td></tr>"
        for name, ms in sorted(report.parts.callbacks_ms.items(), key=lambda item: -item[1])
    )
    table = f"<table><tr><th>callback</th><th class=number>a step</th></tr>{callbacks}</table>" if callbacks else ""
    return (
        '<section id="step"><h2>Where a step goes</h2><p class="hint">One step of a stock fit on your data, in '
        "milliseconds; below it the same step with each remedy that gained, to the same scale.</p>"
        f"{step_bars(report)}{table}</section>"
    )


def _remedies(report: AuditReport) -> str:
    if not report.gains:
        shown = '<p class="none">None of the remedies that were measured gained anything: see below for each.</p>'
    else:
        shown = "".join(_remedy(each) for each in report.gains)
    return (
        '<section id="remedies"><h2>What to change</h2><p class="hint">Each was tried in fit on your model and '
        f"data, in turns with the training as it is.</p>{shown}</section>"
    )


def _remedy(remedy: Remedy) -> str:
    reason = f" ({escape(remedy.reason)})" if remedy.reason else ""
    return (
        f'<div class="remedy"><div class="times">{remedy.times:.1f} &times;<small>{remedy.before_ms:.3g} → '
        f"{remedy.after_ms:.3g} ms</small></div>"
        f'<div class="body"><h3>{escape(remedy.name)}</h3>'
        f'<p class="what">Measured: {escape(remedy.measured)}{reason}.</p>'
        f"{_code(remedy.code)}"
        f'<p class="changes">It changes: {escape(remedy.changes or "nothing about the results")}.</p></div></div>'
    )


def _code(code: str) -> str:
    return (
        f'<div class="code"><pre tabindex="0"><code>{escape(code)}</code></pre>'
        '<button type="button" data-copy>Copy</button></div>'
    )


def _input(report: AuditReport) -> str:
    alone = report.parts.input_alone_ms
    told = [] if alone is None else [f"By itself the input takes {alone:.3g} ms for a batch."]
    told.append(f"On batches that are ready a step takes {report.parts.ready_ms:.3g} ms.")
    inside = f"<p>{escape(' '.join(told))}</p>"
    if report.stages is not None:
        rows = "".join(
            f"<tr><td>{escape(stage.name)}{' (slowest)' if stage.name == report.stages.slowest else ''}</td>"
            f"<td class=number>{stage.examples_per_second:,.0f}</td>"
            f"<td class=number>{stage.microseconds_per_example:,.1f}</td>"
            f'<td class="share-cell"><span class="share-bar" style="width:{100 * stage.share_of_time:.1f}%">'
            "</span></td></tr>"
            for stage in report.stages.stages
        )
        inside += (
            '<div class="scroll"><table><tr><th>stage</th><th class=number>examples/s alone</th>'
            f"<th class=number>µs an example</th><th>share of time</th></tr>{rows}</table></div>"
            f"<p>{escape(report.stages.advice)}</p>"
        )
    elif report.pipeline:
        inside += f'<ul class="flow">{"".join(f"<li>{escape(stage)}</li>" for stage in report.pipeline)}</ul>'
    return (
        '<section id="input"><h2>The input pipeline</h2>'
        f'<p class="hint">{escape(report.facts.get("data", ""))}</p>{inside}</section>'
    )


def _utilization(report: AuditReport) -> str:
    use = report.utilization
    chart = utilization_chart(use)
    if not chart:
        return ""
    problem = f"<p>{escape(use.problem)}</p>" if use.problem else ""
    return (
        '<section id="utilization"><h2>Utilization while it was measured</h2><p class="hint">The shaded spans are the '
        f"training as it is; in the others remedies were tried.</p>{chart}{problem}</section>"
    )


def _others(report: AuditReport) -> str:
    measured = [each for each in report.remedies if each.status == "no gain"]
    other = [each for each in report.remedies if each.after_ms is None]
    rows = _rows(measured, other)
    if not rows:
        return ""
    return (
        '<section id="others"><h2>What would not help</h2><div class="scroll"><table><tr><th>remedy</th>'
        f"<th class=number>before</th><th class=number>after</th><th>why</th></tr>{rows}</table></div></section>"
    )


def _rows(measured: Sequence[Remedy], other: Sequence[Remedy]) -> str:
    shown = [
        f"<tr><td>{escape(each.name)}</td><td class=number>{each.before_ms:.3g} ms</td>"
        f"<td class=number>{each.after_ms:.3g} ms</td><td>no gain: {escape(each.measured)}</td></tr>"
        for each in measured
    ]
    shown += [
        f"<tr><td>{escape(each.name)}</td><td></td><td></td><td>{escape(each.status)}: {escape(each.reason)}</td></tr>"
        for each in other
    ]
    return "".join(shown)


def _footer(report: AuditReport) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.facts.items())
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    return (
        f"<footer><dl>{facts}</dl>{notes}<p>The audit took {report.seconds:.0f} s. Model, data and random states are "
        "as they were before.</p></footer>"
    )
