"""How the audit's page looks, and the one thing that it does: copying lines of code."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16202e; --soft: #58657a; --line: #dfe4ec; --tint: #eef2f8;
  --accent: #0b63ce; --good: #0c7a50; --good-tint: #e3f5ec; --code: #f3f5f9;
  --input: #d9730d; --dispatch: #7a4fd0; --compute: #0e8f86; --callbacks: #c8386d;
  --checkpoints: #2f6fd0; --unknown: #7b8798;
  --gpu: #0b63ce; --cpu: #5f7189; --baseline: #0b63ce1c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151d; --card: #19202b; --ink: #e7ecf4; --soft: #a0adc0; --line: #2d3746; --tint: #212a38;
    --accent: #6fb0ff; --good: #56d39b; --good-tint: #17352a; --code: #121821;
    --input: #f0964a; --dispatch: #aa8cf2; --compute: #3bc4b8; --callbacks: #f0719c;
    --checkpoints: #7ab0ff; --unknown: #94a1b4;
    --gpu: #6fb0ff; --cpu: #9aabc2; --baseline: #6fb0ff26;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif;
}
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
header { margin-bottom: 28px; }
.brand { color: var(--soft); font-size: 14px; letter-spacing: .02em; overflow-wrap: anywhere; }
.brand b { color: var(--ink); }
h1 { overflow-wrap: anywhere; }
h1 { font-size: clamp(22px, 3.4vw, 32px); line-height: 1.25; margin: 14px 0 0; font-weight: 650; text-wrap: pretty; }
.kind {
  display: inline-block; font-size: 14px; font-weight: 650; line-height: 1; padding: 8px 12px; border-radius: 999px;
  color: var(--card); background: var(--unknown); margin-top: 18px;
}
.kind.input-bound { background: var(--input); } .kind.dispatch-bound { background: var(--dispatch); }
.kind.callback-bound { background: var(--callbacks); } .kind.compute-bound { background: var(--compute); }
.kind.checkpoint-stalls { background: var(--checkpoints); }
.lead { font-size: 18px; color: var(--soft); margin: 10px 0 0; }
.lead b { color: var(--good); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 22px 24px;
  margin: 18px 0; }
h2 { font-size: 19px; margin: 0 0 4px; }
h3 { font-size: 17px; margin: 0; overflow-wrap: anywhere; }
p { margin: 6px 0; }
.hint { color: var(--soft); font-size: 14.5px; margin: 0 0 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 22px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
.tile .figure { font-size: 25px; font-weight: 650; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile .what { color: var(--soft); font-size: 14px; }
.bars { display: grid; grid-template-columns: minmax(84px, max-content) 1fr minmax(64px, max-content);
  gap: 10px 12px; }
.row { display: grid; grid-column: 1 / -1; grid-template-columns: subgrid; align-items: center; }
.row .name { font-size: 14.5px; overflow-wrap: anywhere; }
.row .ms { text-align: right; font-variant-numeric: tabular-nums; font-size: 14.5px; white-space: nowrap; }
.bar { display: flex; height: 26px; min-width: 2px; border-radius: 6px; overflow: hidden; background: var(--good); }
.bar.now { height: 38px; background: none; }
.bar span { display: block; min-width: 1px; }
.input-wait { background: var(--input); } .dispatch { background: var(--dispatch); }
.compute, .dispatch-and-compute { background: var(--compute); } .callbacks { background: var(--callbacks); }
.checkpoints { background: var(--checkpoints); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 22px; margin: 16px 0 0; padding: 0; list-style: none;
  font-size: 14.5px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 7px;
  vertical-align: -1px; }
.legend .share { color: var(--soft); font-variant-numeric: tabular-nums; }
.chart { display: grid; grid-template-columns: 44px 1fr; gap: 0 8px; }
.chart .y { display: flex; flex-direction: column; justify-content: space-between; text-align: right;
  font-size: 12.5px;
  color: var(--soft); line-height: 1; margin: -6px 0; }
.chart svg { display: block; width: 100%; height: 190px; overflow: visible; }
.chart .grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.chart .span { fill: transparent; } .chart .span.baseline { fill: var(--baseline);
  } .chart .span:hover { fill: var(--baseline); }
.chart .curve { fill: none; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.phases { grid-column: 2; position: relative; height: 24px; margin-top: 10px; }
.phases span { position: absolute; top: 0; height: 22px; overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis;
  font-size: 12px; line-height: 22px; padding: 0 5px; background: var(--tint); border-radius: 4px;
  color: var(--soft); }
.x { grid-column: 2; display: flex; justify-content: space-between; font-size: 12.5px; color: var(--soft);
  margin-top: 4px; }
.flow { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 10px 0; padding: 0; list-style: none; }
.flow li { background: var(--tint); border-radius: 8px; padding: 5px 11px; font-size: 14.5px; }
.flow li { position: relative; } .flow li + li { margin-left: 20px; }
.flow li + li::before { content: "→"; color: var(--soft); position: absolute; left: -23px; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
th { text-align: left; color: var(--soft); font-weight: 550; border-bottom: 1px solid var(--line);
  padding: 8px 12px 8px 0; }
td { border-bottom: 1px solid var(--line); padding: 9px 12px 9px 0; vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { overflow-x: auto; }
.share-bar { display: block; height: 8px; border-radius: 4px; background: var(--input); min-width: 2px; }
.share-cell { min-width: 110px; width: 34%; }
.remedy { border-top: 1px solid var(--line); padding: 20px 0 6px; display: grid; grid-template-columns: 130px 1fr;
  gap: 4px 22px; }
.remedy:first-of-type { border-top: 0; padding-top: 10px; }
.times { font-size: 28px; font-weight: 680; color: var(--good); line-height: 1.15;
  font-variant-numeric: tabular-nums; }
.times small { display: block; font-size: 13px; font-weight: 450; color: var(--soft); margin-top: 3px; }
.what { overflow-wrap: anywhere; } .body { min-width: 0; }
.code { display: flex; align-items: flex-start; margin: 12px 0 8px; background: var(--code);
  border: 1px solid var(--line);
  border-radius: 10px; }
pre { flex: 1; min-width: 0; margin: 0; padding: 13px 6px 13px 15px; overflow-x: auto;
  font: 13.5px/1.6 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
button { flex: none; margin: 8px; padding: 7px 11px; font-family: inherit; font-size: 13px; line-height: 1;
  cursor: pointer;
  color: var(--accent); background: var(--card); border: 1px solid var(--line); border-radius: 7px; }
button:hover, button:focus-visible { border-color: var(--accent); outline: none; }
.changes { font-size: 14.5px; color: var(--soft); }
.none { background: var(--tint); border-radius: 10px; padding: 13px 16px; }
footer { color: var(--soft); font-size: 14px; margin-top: 26px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 18px; margin: 0 0 12px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; color: var(--ink); }
@media (max-width: 640px) {
  main { padding: 20px 12px 40px; } section { padding: 18px 15px; }
  .remedy { grid-template-columns: 1fr; }
  .times small { display: inline; margin-left: 8px; }
  .phases { display: none; }
  .code { flex-direction: column; } pre { width: 100%; } button { align-self: flex-end; margin-top: 0; }
  .bars { display: block; } .row { grid-template-columns: 1fr max-content; gap: 4px 12px; margin-bottom: 12px; }
  .row .bar { grid-row: 2; grid-column: 1 / -1; }
}
@media print { body { background: none; } button { display: none; } section { break-inside: avoid; } }
"""

SCRIPT = """
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const selection = getSelection();
      selection.selectAllChildren(code);
      document.execCommand("copy");
      selection.removeAllRanges();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}
"""
