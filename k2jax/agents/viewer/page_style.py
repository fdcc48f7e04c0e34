"""The style sheet of the pages of trajectories.

State needs no script: order and filter of the lists follow radio buttons, the trajectory that is shown is the target
of the address.
"""

STYLE = """
:root{color-scheme:light dark;--ink:#1d232b;--soft:#68717d;--line:#dfe3e8;
--paper:#fff;--ground:#f4f6f8;--accent:#2c6e8f;
--good:#2f9270;--bad:#c0392b;--obs:#eef1f4;--chip:#e7ecf0;
--treeobs:#cfd6de;--share:#e3e9fb;--shareink:#33508f}
*{box-sizing:border-box}
html{scroll-behavior:auto}
body{margin:0;font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
color:var(--ink);background:var(--ground)}
a{color:inherit;text-decoration:none}
h1{font-size:17px;margin:0}h2{font-size:17px;margin:0;overflow-wrap:anywhere}
.soft{color:var(--soft)}.number{text-align:right;font-variant-numeric:tabular-nums}
.radio{position:absolute;opacity:0;pointer-events:none}
.layout{display:grid;grid-template-columns:320px minmax(0,1fr);min-height:100vh}
aside{background:var(--paper);border-right:1px solid var(--line);position:sticky;top:0;height:100vh;display:flex;
flex-direction:column}
.top{padding:16px 16px 10px;border-bottom:1px solid var(--line)}
.top p{margin:2px 0 10px;color:var(--soft);overflow-wrap:anywhere}
.choice{display:flex;flex-wrap:wrap;gap:4px;margin-top:6px}
.choice label{padding:1px 9px;border-radius:99px;background:var(--chip);cursor:pointer;font-size:12.5px}
.lists{overflow-y:auto;flex:1;padding:6px 8px 24px}
.list{display:none}
.heading{margin:10px 8px 3px;font-size:12px;color:var(--soft);display:flex;justify-content:space-between;gap:8px}
.heading span:first-child{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.item{display:grid;grid-template-columns:48px minmax(0,1fr) auto;gap:10px;align-items:center;padding:4px 8px;
border-radius:7px}
.item:hover{background:var(--chip)}
.item .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.item small{color:var(--soft);font-variant-numeric:tabular-nums;white-space:nowrap}
.score{font-weight:600;font-size:12.5px;text-align:center;border-radius:6px;padding:1px 0;color:#fff;
font-variant-numeric:tabular-nums}
.r0{background:#c2503c}.r1{background:#cf8142}.r2{background:#a8953d}.r3{background:#5f9a58}.r4{background:#2a8468}
.rx{background:#8d96a1}
main{padding:26px 34px 80px;max-width:1180px}
.episode,#overview{scroll-margin-top:40px}.episode{display:none}.episode:target{display:block}
.episode:target~#overview{display:none}
.episode:has(:target){display:block}
.episode:has(:target)~#overview{display:none}
header{display:flex;flex-wrap:wrap;gap:6px 12px;align-items:baseline;margin-bottom:14px}
.back{margin-left:auto;color:var(--accent)}
.tag{background:var(--chip);border-radius:99px;padding:1px 10px;font-size:12.5px}
.tag.finished{background:#dcefe7;color:#1b5c46}.tag.masked{background:#f6dcd8;color:#8a2a1d}
.tag.truncated,.tag.unfinished{background:#f6ebd3;color:#7a5510}
.alert{color:var(--bad);margin:4px 0 10px;overflow-wrap:anywhere}
.verdict{display:flex;flex-wrap:wrap;gap:14px 30px;align-items:flex-start;background:var(--paper);
border:1px solid var(--line);border-radius:10px;padding:12px 18px;margin-bottom:12px}
.reward small{display:block;color:var(--soft)}.reward strong{font-size:26px;line-height:1.15}
table{border-collapse:collapse}th{text-align:left;font-weight:400;color:var(--soft);padding:1px 18px 1px 0}
td{padding:1px 0}
details{min-width:0;max-width:100%}summary{cursor:pointer;color:var(--soft);font-size:12.5px}
pre{margin:4px 0 0;white-space:pre-wrap;overflow-wrap:anywhere;font:12px/1.5 ui-monospace,Menlo,Consolas,monospace}
.figures{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0 0 16px}
.figures dt{color:var(--soft);font-size:12px}.figures dd{margin:0;font-variant-numeric:tabular-nums}
.node{position:relative;scroll-margin-top:14px;
background:var(--paper);border:1px solid var(--line);border-left:4px solid #b4bcc6;border-radius:9px;
padding:9px 14px 11px;margin:0 0 9px}
.node.sampled{border-left-color:var(--accent)}
.node:target{outline:2px solid var(--accent);outline-offset:1px}
.node h3{font-size:12.5px;font-weight:400;color:var(--soft);margin:0 0 5px}
.node h3 b{color:var(--ink);margin-right:9px}
.node details{margin-top:7px}
.node h3 a,.fork a{color:var(--accent)}
.branch,.shared{float:right;border-radius:99px;padding:0 9px;margin-left:6px;background:var(--chip)}
.shared{background:var(--share);color:var(--shareink)}
.fork{margin:7px 0 0;font-size:12.5px;color:var(--soft)}
.node::before{content:"";position:absolute;top:-1px;bottom:-10px;right:100%;margin-right:4px;
background:repeating-linear-gradient(270deg,transparent 0 13px,var(--line) 13px 15px,transparent 15px 26px)}
.i1::before{width:26px}.i2::before{width:52px}.i3::before{width:78px}.i4::before{width:104px}.i5::before{width:130px}
.i6::before{width:156px}
.i1{margin-left:26px}.i2{margin-left:52px}.i3{margin-left:78px}.i4{margin-left:104px}.i5{margin-left:130px}
.i6{margin-left:156px}
.tokens{margin:0;font:13px/1.85 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.tokens s{text-decoration:none;white-space:pre-wrap;border-radius:4px;padding:1.5px 2px;margin:0 1px 0 0;
background:var(--obs);color:#5d6671;box-shadow:inset 0 0 0 1px rgba(60,70,85,.10)}
.tokens s[class]{color:#1d232b}
.tokens s:hover{outline:2px solid var(--accent)}
.tokens .b0{background:#eaf5f1}.tokens .b1{background:#fdf8e2}.tokens .b2{background:#fdeec0}
.tokens .b3{background:#fcdd9b}.tokens .b4{background:#f9c37c}.tokens .b5{background:#f3a263}
.tokens .b6{background:#e67a52}.tokens s.b7{background:#c94b41;color:#fff}.tokens s.bad{background:#7a2bc0;color:#fff}
.tokens .clip{box-shadow:inset 0 -3px 0 #d81b60}
.tokens .zero{text-decoration:line-through 2px #6a3fc4}
.tokens i.turn{background:#57616d}
.tokens .off{box-shadow:none;outline:1px dashed #8d96a1;outline-offset:-1px}
.tokens i{font:600 10px system-ui,sans-serif;color:#fff;background:var(--accent);border-radius:4px;padding:1px 5px;
margin:0 4px 0 2px;vertical-align:1px}
footer{border-top:1px solid var(--line);margin-top:26px;padding-top:10px;font-size:12.5px}
footer h3{font-size:12.5px;margin:0 0 4px}footer p{margin:4px 0}
.tokens.legend-line{font-size:12px}
.card{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:14px 18px;margin-bottom:16px}
.card h3{margin:0 0 8px;font-size:14px}
summary b{color:var(--ink);font-size:14px;margin-right:8px}details.card{margin-bottom:16px}
.card table{margin-top:6px}
.card h3 span{font-weight:400;color:var(--soft);font-size:12.5px;margin-left:8px}.card h3 .hint{float:right}
.tree{width:100%;height:auto;display:block}.tree a{outline-offset:-2px}
.tree rect.observed{fill:var(--treeobs)}.tree rect.model{fill:#2f7fa3}
.tree a:hover rect{stroke:var(--ink);stroke-width:2}
.tree text{font:11px system-ui,sans-serif;fill:var(--ink);pointer-events:none}.tree text.model{fill:#fff}
.tree text.tick{fill:var(--soft)}
.tree line{stroke-width:1.3}.tree .clipped{stroke:#ff5c93}.tree .zeroed{stroke:#cdb7ff}
.swarm{width:100%;height:auto;display:block}.swarm .row{fill:transparent}
.swarm a:hover .row{fill:var(--chip)}.swarm a:hover .bar{filter:brightness(1.12)}
.swarm text{font:11.5px system-ui,sans-serif;fill:var(--ink);pointer-events:none}.swarm .facts{font-size:11px}
.swarm .facts,.swarm text.tick{fill:var(--soft)}.swarm .middle{text-anchor:middle}
.swarm .words{font-size:10.5px;fill:#fff}.swarm .words.failed{fill:var(--ink)}
.swarm .cross{fill:var(--bad);font-weight:700}
.swarm .spawn{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 2}.swarm .wait{stroke-width:2;opacity:.55}
.swarm .hatch{stroke:var(--paper);stroke-dasharray:2.5 3.5;opacity:.8}
.swarm .bar.path{stroke:var(--ink);stroke-width:2}
.swarm .bar.failed{fill:var(--paper);stroke:var(--bad);stroke-width:1.6;stroke-dasharray:4 2.5}
.swarm .c0{fill:#3568b0}.swarm .c1{fill:#b8691a}.swarm .c2{fill:#2f9270}.swarm .c3{fill:#a8447d}
.swarm .c4{fill:#6f58a8}.swarm .c5{fill:#8a6a42}.roles .swatch.c1{background:#b8691a}
.swarm line.c0{stroke:#3568b0}.swarm line.c1{stroke:#b8691a}.swarm line.c2{stroke:#2f9270}.swarm line.c3{stroke:#a8447d}
.swarm line.c4{stroke:#6f58a8}.swarm line.c5{stroke:#8a6a42}
.key{display:inline-block;width:20px;height:9px;border-radius:2px;margin-right:5px}
.key.path{border:2px solid var(--ink)}.key.failed{border:1.6px dashed var(--bad)}
.key.cut{background:repeating-linear-gradient(90deg,var(--soft) 0 3px,transparent 3px 5px)}
.key.wait{height:2px;vertical-align:3px;background:var(--soft)}
.agent>div{scroll-margin-top:70px;padding-top:8px}.agent:has(>:target){outline:2px solid var(--accent)}
.agent>summary{font-size:13px}.agent .swatch{vertical-align:0}
.turns,.comparisons{width:100%;font-variant-numeric:tabular-nums}
.turns th,.comparisons th{font-size:12px;padding:0 12px 3px 0}
.turns td,.comparisons td{padding:2px 12px 2px 0;border-top:1px solid var(--line);vertical-align:top}
.wide{overflow-x:auto}
.comparisons td{padding:5px 12px 5px 0}
.tag.won{background:#dcefe7;color:#1b5c46}.tag.lost{background:#f6dcd8;color:#8a2a1d}
.tag.unknown{background:#f6ebd3;color:#7a5510}
.card p{margin:0 0 8px}.chips{display:flex;flex-wrap:wrap;gap:5px;align-items:baseline;color:var(--soft)}
.matrices{display:flex;flex-wrap:wrap;gap:18px 34px}
.matrices figcaption{font-weight:400;font-size:12.5px;color:var(--soft);max-width:180px;overflow:hidden;
text-overflow:ellipsis;white-space:nowrap;margin-bottom:3px}
.matrix{border-collapse:separate;border-spacing:3px;margin-left:-3px}.matrix th{font-size:11.5px;padding:0 5px 0 0}
.matrix td{width:15px;height:15px;border-radius:4px;padding:0;background:var(--chip)}
.matrix .won{background:#2a8468}.matrix .lost{background:#c2503c}.matrix .tied{background:#c9b458}
.matrix .unknown{background:#8d96a1}
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(310px,1fr));gap:16px 24px}
figure{margin:0}figcaption{font-weight:600;font-size:13px}
.curve{width:100%;height:auto;display:block}
.grid{stroke:var(--line);stroke-width:1}.tick{font:10.5px system-ui,sans-serif;fill:var(--soft)}.end{text-anchor:end}
polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}
.legend{list-style:none;
display:flex;flex-wrap:wrap;gap:0 14px;margin:2px 0 0;padding:0;font-size:12px;color:var(--soft)}
.swatch{display:inline-block;width:9px;height:9px;border-radius:3px;margin-right:5px}
.band{stroke:none;fill-opacity:.15}
.band.c0{fill:#3568b0}.band.c1{fill:#d98324}.band.c2{fill:#2f9270}.band.c3{fill:#a8447d}.band.c4{fill:#6f58a8}
.band.c5{fill:#8a6a42}
polyline.c0{stroke:#3568b0}polyline.c1{stroke:#d98324}polyline.c2{stroke:#2f9270}polyline.c3{stroke:#a8447d}
polyline.c4{stroke:#6f58a8}polyline.c5{stroke:#8a6a42}
circle.c0,.swatch.c0{fill:#3568b0;background:#3568b0}circle.c1,.swatch.c1{fill:#d98324;background:#d98324}
circle.c2,.swatch.c2{fill:#2f9270;background:#2f9270}circle.c3,.swatch.c3{fill:#a8447d;background:#a8447d}
circle.c4,.swatch.c4{fill:#6f58a8;background:#6f58a8}circle.c5,.swatch.c5{fill:#8a6a42;background:#8a6a42}
.groups{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:5px 26px}
.row{display:grid;grid-template-columns:minmax(0,1fr) auto 40px;gap:10px;align-items:center;font-size:12.5px}
.row .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;color:var(--soft)}
.cells{display:flex;flex-wrap:wrap;gap:3px}
.cell{width:15px;height:15px;border-radius:4px;display:block}.cell:hover{outline:2px solid var(--ink)}
@media(max-width:800px){.layout{display:block}aside{position:static;height:auto}.lists{max-height:40vh}
main{padding:18px 14px}}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ed;--soft:#97a1ad;--line:#333b45;--paper:#1d2229;--ground:#15191e;
--accent:#4c9cc2;--obs:#2a313a;--chip:#2b323b;--treeobs:#434d59;--share:#27324d;--shareink:#a9c0f5}
.tokens s{color:#aab3bd}}
"""


def choice_rules(domains: int) -> str:
    """The rules that make lists follow the page's radio buttons, for a number of domains."""
    orders = ("group", "reward", "length")
    rules = [f"#by-{order}:checked~.layout .list.{order}{{display:block}}" for order in orders]
    chosen = [f"by-{order}" for order in orders]
    for name in ("rewarded", "unrewarded", "unscored"):
        rules.append(f"#only-{name}:checked~.layout .item:not(.{name}){{display:none}}")
        chosen.append(f"only-{name}")
    for index in range(domains):
        rules.append(f"#domain-{index}:checked~.layout .item:not(.d{index}){{display:none}}")
        chosen.append(f"domain-{index}")
    chosen += ["only-all", "domain-all"]
    labels = ",".join(f'#{name}:checked~.layout label[for="{name}"]' for name in chosen)
    focus = ",".join(f'#{name}:focus-visible~.layout label[for="{name}"]' for name in chosen)
    return "\n".join([*rules, f"{labels}{{background:var(--accent);color:#fff}}", f"{focus}{{outline:2px solid}}"])
