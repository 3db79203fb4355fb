"""The drawings of the audit's page, as HTML and SVG without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from keras_turbo.auditing.report import AuditReport
from keras_turbo.auditing.utilization import BASELINE, Utilization

_WIDTH, _HEIGHT = 1000.0, 100.0
_TICKS = (100, 75, 50, 25, 0)
# A phase narrower than this share of the chart has no room for its name.
_LEAST_NAMED_PERCENT = 4.0


def step_bars(report: AuditReport) -> str:
    """The parts of a step in one bar, and under it the step with each remedy that gained, on the same scale."""
    timeline = {part: ms for part, ms in report.parts.timeline().items() if ms > 0}
    total = sum(timeline.values())
    segments = "".join(
        f'<span class="{_class_of(part)}" style="width:{100 * ms / total:.3f}%" '
        f'title="{escape(part)}: {ms:.3g} ms"></span>'
        for part, ms in timeline.items()
    )
    longest = max([total, *(each.after_ms or 0.0 for each in report.gains)])
    rows = [_bar_row("now", f'<div class="bar now" style="width:{100 * total / longest:.2f}%">{segments}</div>', total)]
    for each in report.gains:
        ms = each.after_ms or 0.0
        rows.append(_bar_row(each.name, f'<div class="bar" style="width:{100 * ms / longest:.2f}%"></div>', ms))
    legend = "".join(
        f'<li><i class="{_class_of(part)}"></i>{escape(part)} '
        f'<span class="share">{ms:.3g} ms, {100 * ms / total:.0f} %</span></li>'
        for part, ms in timeline.items()
    )
    return f'<div class="bars">{"".join(rows)}</div><ul class="legend">{legend}</ul>'


def utilization_chart(use: Utilization) -> str:
    """The use of each GPU and of the CPU over time, with what was measured when; empty without samples."""
    if len(use.seconds) < 2:
        return ""
    end = max([use.seconds[-1], *(phase.end_seconds for phase in use.phases)])
    curves = [
        (f"GPU {i}: {name}", "var(--gpu)", percents)
        for i, (name, percents) in enumerate(zip(use.gpu_names, use.gpu_percent, strict=True))
    ]
    curves.append(("CPU, this process's share of its cores", "var(--cpu)", use.cpu_percent))
    grid = "".join(f'<line class="grid" x1="0" x2="{_WIDTH:g}" y1="{100 - y}" y2="{100 - y}"/>' for y in _TICKS)
    spans = "".join(
        f'<rect class="span{" baseline" if phase.name == BASELINE else ""}" y="0" height="{_HEIGHT:g}" '
        f'x="{_WIDTH * phase.begin_seconds / end:.2f}" '
        f'width="{_WIDTH * (phase.end_seconds - phase.begin_seconds) / end:.2f}">'
        f"<title>{escape(phase.name)}</title></rect>"
        for phase in use.phases
    )
    lines = "".join(_curve(use.seconds, percents, end, colour) for _, colour, percents in curves)
    names = "".join(
        f'<span title="{escape(phase.name)}" style="left:{100 * phase.begin_seconds / end:.2f}%;'
        f'width:calc({100 * (phase.end_seconds - phase.begin_seconds) / end:.2f}% - 1px)">{escape(phase.name)}</span>'
        for phase in use.phases
        if phase.name != BASELINE and 100 * (phase.end_seconds - phase.begin_seconds) / end >= _LEAST_NAMED_PERCENT
    )
    ticks = "".join(f"<span>{percent} %</span>" for percent in _TICKS)
    seconds = "".join(f"<span>{end * part / 4:.0f} s</span>" for part in range(5))
    legend = "".join(f'<li><i style="background:{colour}"></i>{escape(name)}</li>' for name, colour, _ in curves)
    return (
        f'<div class="chart"><div class="y">{ticks}</div>'
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="Utilization over time">{grid}{spans}{lines}</svg>'
        f'<div class="phases">{names}</div><div class="x">{seconds}</div></div>'
        f'<ul class="legend">{legend}<li><i style="background:var(--baseline)"></i>the training as it is</li></ul>'
    )


def _bar_row(name: str, bar: str, ms: float) -> str:
    return f'<div class="row"><div class="name">{escape(name)}</div>{bar}<div class="ms">{ms:.3g} ms</div></div>'


def _curve(seconds: Sequence[float], percents: Sequence[float | None], end: float, colour: str) -> str:
    """Lines through the samples that are there; where some are missing, a gap."""
    path, pen_is_up = [], True
    for at, percent in zip(seconds, percents, strict=True):
        if percent is None:
            pen_is_up = True
            continue
        path.append(f"{'M' if pen_is_up else 'L'}{_WIDTH * at / end:.1f} {100 - min(100.0, percent):.1f}")
        pen_is_up = False
    return f'<path class="curve" stroke="{colour}" d="{" ".join(path)}"/>' if path else ""


def _class_of(part: str) -> str:
    return part.replace(" ", "-")
