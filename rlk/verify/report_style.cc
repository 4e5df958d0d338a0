#include "rlk/verify/report_style.h"

namespace rlk {

// Series 0 is blue and series 1 orange: far apart in every kind of colour blindness, and in
// lightness. The theme follows the system; the switch in the header inverts it without a script.
const char* const kReportStyle = R"css(
:root { color-scheme: light;
  --bg: #fbfbfa; --card: #ffffff; --ink: #16181d; --soft: #5b6270; --line: #e4e5e8;
  --grid: #eceef1; --zero: #9aa1ad; --good: #0f7b4f; --good-bg: #e7f5ee; --bad: #a8460b;
  --bad-bg: #fdf0e6; --s0: #1f5fd0; --s1: #d2691e; --s2: #6b7280; --s3: #7c3aed;
  --p0: #2f6fdd; --p1: #94a3b8; --p2: #14919b; --p3: #7c5cd6; --p4: #c2548c; --p5: #d29922;
  --on-part: #ffffff; }
@media (prefers-color-scheme: dark) { :root:not(:has(#theme:checked)) { color-scheme: dark;
  --bg: #0f1115; --card: #171a20; --ink: #e9ebef; --soft: #9aa3b2; --line: #2a2f38;
  --grid: #232831; --zero: #6b7484; --good: #57d39b; --good-bg: #12291f; --bad: #ffab70;
  --bad-bg: #2e1f14; --s0: #6ea8ff; --s1: #ff9a4d; --s2: #9aa3b2; --s3: #b794f6;
  --p0: #4d86e8; --p1: #64748b; --p2: #1a8a93; --p3: #8466dd; --p4: #bf5590; --p5: #b98516; } }
@media (prefers-color-scheme: light) { :root:has(#theme:checked) { color-scheme: dark;
  --bg: #0f1115; --card: #171a20; --ink: #e9ebef; --soft: #9aa3b2; --line: #2a2f38;
  --grid: #232831; --zero: #6b7484; --good: #57d39b; --good-bg: #12291f; --bad: #ffab70;
  --bad-bg: #2e1f14; --s0: #6ea8ff; --s1: #ff9a4d; --s2: #9aa3b2; --s3: #b794f6;
  --p0: #4d86e8; --p1: #64748b; --p2: #1a8a93; --p3: #8466dd; --p4: #bf5590; --p5: #b98516; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--bg); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans",
  sans-serif; }
main, header { max-width: 1120px; margin: 0 auto; padding: 0 24px; }
header { display: flex; align-items: center; justify-content: space-between; padding-top: 22px; }
header b { letter-spacing: -.01em; font-size: 17px; }
header label { color: var(--soft); font-size: 14px; cursor: pointer; border-radius: 99px;
  border: 1px solid var(--line); padding: 4px 13px; }
header label:hover { color: var(--ink); }
#theme { position: absolute; opacity: 0; }
header:has(#theme:focus-visible) label { outline: 2px solid var(--s0); }
h1, summary { overflow-wrap: anywhere; }
h1 { font-size: clamp(28px, 4.6vw, 44px); line-height: 1.14; letter-spacing: -.022em;
  margin: 30px 0 12px; font-weight: 680; max-width: 21em; text-wrap: balance; }
h2 { font-size: 22px; letter-spacing: -.012em; margin: 56px 0 6px; }
h3 { font-size: 16px; margin: 0; }
p { margin: 0 0 12px; }
.lead { font-size: 17px; color: var(--soft); max-width: 46em; text-wrap: pretty; }
.soft { color: var(--soft); }
.verdicts { display: grid; gap: 18px; margin: 30px 0 8px;
  grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); }
.verdict, figure, .panel { background: var(--card); border: 1px solid var(--line);
  border-radius: 14px; }
.verdict { padding: 22px 26px 20px; border-top: 4px solid var(--c); }
.verdict .route { display: flex; justify-content: space-between; align-items: center;
  font-weight: 600; }
.verdict .big { font-size: clamp(44px, 7vw, 68px); line-height: 1.05; font-weight: 700;
  letter-spacing: -.03em; margin: 14px 0 2px; font-variant-numeric: tabular-nums; }
.verdict .of { margin: 0 0 14px; }
.verdict dl { display: grid; grid-template-columns: 1fr auto; gap: 3px 14px; margin: 0;
  font-size: 15px; border-top: 1px solid var(--line); padding-top: 13px; }
.verdict dt { color: var(--soft); }
.verdict dd { margin: 0; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.chip { font-size: 13px; font-weight: 600; padding: 3px 11px; border-radius: 99px; }
.good { color: var(--good); background: var(--good-bg); }
.bad { color: var(--bad); background: var(--bad-bg); }
.figures { display: grid; gap: 18px; margin-top: 18px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure { margin: 0; padding: 18px 20px 12px; min-width: 0; display: flex;
  flex-direction: column; justify-content: space-between; }
figure:has(.wide) { grid-column: 1 / -1; }
.lone { grid-column: 1 / -1; }
@media (min-width: 900px) { .lone figure { display: grid; grid-template-columns: 1fr 516px;
  gap: 24px; } .lone svg { margin-top: -4px; } .lone .legend { margin-top: 14px; } }
figcaption p { color: var(--soft); font-size: 14px; margin: 2px 0 0; line-height: 1.4; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 14px; margin: 8px 0 6px; }
.legend i { display: inline-block; margin-right: 7px; vertical-align: middle; }
i.line { width: 18px; height: 3px; border-radius: 2px; background: var(--c); }
i.dot { width: 9px; height: 9px; transform: rotate(45deg); background: var(--c); }
i.box { width: 12px; height: 12px; border-radius: 3px; background: var(--c); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
svg .e { text-anchor: end; } svg .m { text-anchor: middle; }
svg .n { fill: var(--ink); font-weight: 600; font-size: 14px; } svg .v { fill: var(--on-part); }
svg .g { stroke: var(--grid); } svg .z { stroke: var(--zero); }
svg .b { stroke: var(--zero); stroke-width: 1.4; }
svg .h { fill: transparent; } svg .h:hover { fill: var(--zero); fill-opacity: .35; }
svg [class^=s] { fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round;
  stroke-linecap: round; }
svg .r { stroke-width: 1; stroke-opacity: .32; } svg .k { fill: var(--c); stroke: var(--card);
  stroke-width: 1.5; }
svg g[class^=p] rect { fill: var(--c); stroke: var(--card); stroke-width: 1.5; }
.s0, .c0 { --c: var(--s0); } .s1, .c1 { --c: var(--s1); } .s2, .c2 { --c: var(--s2); }
.s3, .c3 { --c: var(--s3); }
.p0 { --c: var(--p0); } .p1 { --c: var(--p1); } .p2 { --c: var(--p2); } .p3 { --c: var(--p3); }
.p4 { --c: var(--p4); } .p5 { --c: var(--p5); }
.panel { padding: 6px 20px; margin-top: 16px; }
.scroll { overflow-x: auto; }
.scroll svg.wide { min-width: 720px; }
table { border-collapse: collapse; width: 100%; font-size: 15px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 9px 14px 9px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
tr:last-child td, tr:last-child th { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 500; font-size: 14px; white-space: nowrap; }
tbody th { font-weight: 500; }
td.num, th.num { text-align: right; white-space: nowrap; }
td.zero { color: var(--good); font-weight: 650; }
code, pre, td.text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; font-size: 13.5px; }
td.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
pre { overflow-x: auto; margin: 0 0 14px; line-height: 1.45; }
details { border-bottom: 1px solid var(--line); }
details:last-child { border-bottom: 0; }
summary { cursor: pointer; padding: 12px 0; font-weight: 550; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; background: var(--c);
  margin-right: 8px; }
footer { color: var(--soft); font-size: 14px; margin: 48px 0 40px; }
@media (max-width: 620px) { main, header { padding-left: 16px; padding-right: 16px; }
  figure { padding: 16px 12px 10px; } .panel { padding: 4px 14px; } h2 { margin-top: 44px; }
  svg text { font-size: 16px; } svg.wide text { font-size: 14px; } th, td { padding-right: 10px; }
  td.num, th.num { white-space: normal; } }
@media print { header label { display: none; } figure, .verdict { break-inside: avoid; } }
)css";

}  // namespace rlk
