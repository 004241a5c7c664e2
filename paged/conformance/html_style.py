"""The style of the HTML report; dark where the reader's system is."""

STYLE = """
:root { color-scheme: light dark;
  --ground: #fbfbfa; --panel: #ffffff; --ink: #1c1e21; --faint: #62676f; --line: #dfe1e4;
  --passed: #116329; --passed-ground: #e3f5e8; --failed: #a40e26;
  --failed-ground: #ffe3e3; --refused: #0b4f9e; --refused-ground: #e4effc;
  --not_run: #62676f; --not_run-ground: #f0f1f2;
}
@media (prefers-color-scheme: dark) { :root {
  --ground: #16181b; --panel: #1e2125; --ink: #e4e6e9; --faint: #9aa1ab; --line: #353a41;
  --passed: #7ee2a0; --passed-ground: #12311d; --failed: #ffa3a8;
  --failed-ground: #4b1519; --refused: #9ecbff; --refused-ground: #14304f;
  --not_run: #9aa1ab; --not_run-ground: #26292e;
} }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 78rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; } h2 { margin: 2.5rem 0 .6rem; font-size: 1.25rem; }
h3 { margin: 1.6rem 0 .4rem; font-size: 1.02rem; }
code, pre, .mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: .87em; }
.faint { color: var(--faint); } .right { text-align: right; }
.banner { margin: 1rem 0 0; padding: .7rem 1rem; border-radius: 6px; border-left: 5px solid;
  font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; background: var(--panel); }
th, td { padding: .3rem .65rem; border: 1px solid var(--line); text-align: left;
  vertical-align: top; }
thead th { font-weight: 600; } tbody th { font-weight: 500; }
.matrix td { min-width: 6.5rem; font-size: .92em; white-space: nowrap; }
.matrix td a { color: inherit; } .matrix small { display: block; opacity: .85; }
.passed { color: var(--passed); background: var(--passed-ground); }
.failed { color: var(--failed); background: var(--failed-ground); }
.refused { color: var(--refused); background: var(--refused-ground); }
.not_run { color: var(--not_run); background: var(--not_run-ground); }
.failure { margin: .8rem 0; padding: .8rem 1rem; background: var(--panel);
  border: 1px solid var(--line); border-left: 5px solid var(--failed); border-radius: 6px; }
.failure h4 { margin: 0 0 .25rem; font-size: 1rem; }
.failure p { margin: .25rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
pre { margin: .5rem 0 0; padding: .5rem .7rem; background: var(--not_run-ground);
  border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .8rem 0; } summary { cursor: pointer; font-weight: 600; padding: .2rem 0; }
@media print { details > * { display: block; } body { max-width: none; } }
"""
