/** The style sheet of the page. Ink on paper, one colour besides: it marks bounds, and what was refused. */
export const STYLE = `
:root {
  color-scheme: light dark;
  --ink: #1a1c22; --paper: #ffffff; --soft: #5a5e66; --line: #d5d7db; --wash: #f3f3f4; --fill: #c9ccd3; --mid: #868a93; --accent: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e7e2; --paper: #141518; --soft: #a6a9b0; --line: #383b41; --wash: #1e2024; --fill: #4a4e57; --mid: #83888f; --accent: #ff8b7b; }
}
* { box-sizing: border-box; }
html { font: 16px/1.5 ui-sans-serif, system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { max-width: 74rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
a { color: inherit; text-underline-offset: .2em; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--paper); padding: .5rem; z-index: 2; }
h1, h2, h3 { font-family: ui-serif, "Iowan Old Style", "Palatino Linotype", Palatino, "Noto Serif", "DejaVu Serif", Georgia, serif; font-weight: 600; line-height: 1.2; margin: 0; text-wrap: balance; }
h1 { font-size: clamp(1.7rem, 5vw, 2.6rem); letter-spacing: -.01em; }
h2 { font-size: 1.35rem; }
h3 { font-size: 1.05rem; margin-top: 1.5rem; }
figure h3, #detail h3 { margin-top: 0; }
p { margin: .4rem 0; max-width: 46rem; }
.kicker, .note, figcaption, .cell { color: var(--soft); font-size: .875rem; }
.kicker { margin: 0 0 .5rem; }
.summary { font-size: 1.125rem; margin: 1rem 0 1.75rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 1.5rem 0 0; padding: .5rem 0; border-block: 1px solid var(--line); font-size: .9375rem; }
section { margin-top: 3rem; }
section > h2 { border-top: 2px solid var(--ink); padding-top: .6rem; }
.figures { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1.25rem 1.5rem; margin: 0 0 1.5rem; }
.figures div { border-top: 1px solid var(--ink); padding-top: .35rem; }
.figures dt { color: var(--soft); font-size: .8125rem; }
.figures dd { margin: 0; font-size: 1.55rem; line-height: 1.2; font-weight: 500; letter-spacing: -.01em; }
.figures small { display: block; font-size: .8125rem; line-height: 1.35; font-weight: 400; letter-spacing: 0; color: var(--soft); margin-top: .15rem; }
.facts { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .25rem 1.25rem; margin: .75rem 0; max-width: 60rem; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; }
.bad { color: var(--accent); font-weight: 600; }
.plot { margin: 1rem 0 .5rem; }
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font-size: 12px; fill: var(--ink); }
.chart .axis { fill: var(--soft); font-size: 11px; }
.chart .label { font-weight: 600; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
/* Inside the area. */
.chart .label.cache { stroke: var(--fill); }
.chart .label.budget, .chart .accent { fill: var(--accent); }
.grid { stroke: var(--line); stroke-width: 1; }
.tick { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke: var(--ink); stroke-width: 1.75; stroke-linejoin: round; }
.line.f16 { stroke-dasharray: 2 4; stroke-linecap: round; }
.line.budget, .bound { stroke: var(--accent); stroke-width: 1.5; fill: none; }
.area { fill: var(--fill); stroke: var(--ink); stroke-width: 1.25; stroke-linejoin: round; }
.cursor { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; }
.mark { fill: var(--accent); }
.span { stroke: var(--mid); stroke-width: 6; }
.median { stroke: var(--ink); stroke-width: 2.5; }
.refused { stroke: var(--accent); stroke-width: 2; fill: none; }
.dot { fill: var(--ink); fill-opacity: .55; stroke: none; }
.dot.over { fill: var(--accent); fill-opacity: .9; }
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem 2rem; margin: .75rem 0 0; }
figure { margin: 0; min-width: 0; }
.maps h3 { margin-bottom: .35rem; }
.map { display: block; width: 100%; cursor: crosshair; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .35rem 1.25rem; padding: 0; margin: .75rem 0; font-size: .875rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.swatch { display: inline-grid; place-items: center; width: 1.5rem; height: 1.15rem; font-size: .6875rem; border: 1px solid var(--line); }
.swatch.latent { border: 2px dashed var(--accent); }
.scrub { display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem; align-items: center; position: sticky; bottom: 0; background: var(--paper); padding: .6rem 0; border-top: 1px solid var(--line); }
.scrub output { grid-column: 1 / -1; font-size: .9375rem; }
.cell { min-height: 1.5em; }
input, select, button { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--soft); border-radius: 3px; padding: .3rem .5rem; min-height: 2.25rem; max-width: 100%; }
::placeholder { color: var(--soft); opacity: 1; }
button { cursor: pointer; min-width: 4.5rem; }
button:hover { background: var(--wash); }
input[type=range] { padding: 0; width: 100%; border: 0; accent-color: var(--ink); }
#filters { display: grid; grid-template-columns: repeat(auto-fit, minmax(6rem, 1fr)); gap: .5rem .75rem; margin: .75rem 0; align-items: end; }
#filters label { display: grid; font-size: .8125rem; color: var(--soft); }
#filters :is(select, input) { color: var(--ink); width: 100%; }
.browse { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem 2rem; }
#list { --row: 28px; height: min(34rem, 70vh); overflow-y: auto; overflow-x: hidden; border-block: 1px solid var(--ink); font-size: .875rem; contain: strict; }
.space { position: relative; overflow: hidden; }
.row { display: grid; grid-template-columns: 4.5rem 4.5rem 5.5rem 7.5rem 4rem minmax(5rem, 1fr) 4.5rem 5rem; gap: 0 .75rem; height: var(--row); align-items: center; padding: 0 .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; overflow: hidden; contain: strict; }
.row span { overflow: hidden; text-overflow: ellipsis; }
.row:is(.head) { position: sticky; top: 0; z-index: 1; background: var(--paper); color: var(--soft); font-size: .8125rem; }
.rows .row { cursor: pointer; }
.rows .row:hover { background: var(--wash); }
.rows .row[aria-selected=true] { background: var(--wash); box-shadow: inset 3px 0 var(--ink); }
.c0, .c1, .c6, .c7 { text-align: right; }
.row.no .c4 { color: var(--accent); font-weight: 600; }
#detail { min-width: 0; }
#detail dl { display: grid; grid-template-columns: 6rem 1fr; gap: .35rem 1rem; margin: .5rem 0 1rem; font-size: .9375rem; }
#detail dt { color: var(--soft); }
#detail dd { margin: 0; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; color: var(--soft); padding: .25rem 0; }
th, td { text-align: right; padding: .2rem .75rem .2rem 0; border-bottom: 1px solid var(--line); font-weight: 400; vertical-align: top; }
thead th { color: var(--soft); }
.words :is(th, td):nth-child(n+3) { text-align: left; }
.scroll { overflow-x: auto; max-height: 26rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .875rem; padding: .25rem 0; }
.hidden-text { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.print-only { display: none; }
[hidden] { display: none !important; }
@media (min-width: 72rem) { .browse.open { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); } .browse.open #list { height: 40rem; } .browse.open .row { grid-template-columns: 3.5rem 3.5rem 5rem 6.5rem 3.5rem minmax(4rem, 1fr); } .browse.open :is(.c6, .c7) { display: none; } }
@media screen and (max-width: 46rem) {
  #list { --row: 46px; }
  .row { grid-template-columns: 1fr 1fr 4.25rem; grid-template-areas: "place move verdict" "reason freed tokens"; gap: 0 .5rem; align-content: center; line-height: 1.3; }
  .c0, .c6 { display: none; }
  .c1 { grid-area: tokens; color: var(--soft); } .c2 { grid-area: place; } .c3 { grid-area: move; } .c4 { grid-area: verdict; text-align: right; } .c5 { grid-area: reason; color: var(--soft); } .c7 { grid-area: freed; color: var(--soft); text-align: left; }
  #detail dl, .facts { grid-template-columns: 1fr; gap: 0; }
  #detail dd, .facts dd { margin-bottom: .5rem; }
  .figures { grid-template-columns: 1fr 1fr; }
}
@media print {
  :root { --ink: #000000; --paper: #ffffff; --soft: #444444; --line: #cccccc; --wash: #ffffff; --fill: #cccccc; --mid: #888888; --accent: #a01c14; color-scheme: light; }
  @page { margin: 16mm 14mm; }
  html { font-size: 11px; }
  body { max-width: none; padding: 0; }
  nav, .scrub, #filters, .browse, .maps, .cell, .cursor, .as-table, #map-table, .screen { display: none !important; }
  .print-only { display: block; }
  table.print-only { display: table; font-size: 9px; width: 100%; }
  thead { display: table-header-group; }
  tr, figure, .plot, h2, .figures div { break-inside: avoid; }
  h2, h3, .note, .legend { break-after: avoid; }
  table.print-only :is(th, td):nth-child(n+3):nth-child(-n+6) { text-align: left; }
  section { margin-top: 1.5rem; }
  .swatch { print-color-adjust: exact; }
  .printed { display: grid !important; grid-template-columns: repeat(6, 1fr); gap: .75rem; }
  /* How it ended is large enough to read the number in each cell. */
  .printed figure:nth-last-child(-n+2) { grid-column: span 3; }
  .chart { max-height: 105mm; }
}
`;
