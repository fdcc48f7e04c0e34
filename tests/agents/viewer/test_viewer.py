"""The page of trajectories: everything is escaped, nothing is loaded, and it says what the trajectories say.

The tests with a browser (``-m external``) need chromium on the path.
"""

import base64
from collections import Counter
import hashlib
from html.parser import HTMLParser
import http.server
import io
import json
import re
import shutil
import subprocess
import threading

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
import numpy as np
import pytest

from k2jax.agents.viewer.curves import nice_ticks
from k2jax.agents.viewer.markup import element, visible
from k2jax.agents.viewer.viewer import write_page
from k2jax.report.metrics import MetricsLog
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.trajectories import decoder
from k2jax.trajectory import Node, Reward, Trajectory, TrajectoryStore, exported
from k2jax.trajectory.annotations import PairVerdict, set_comparisons
from k2jax.trajectory.pass_rates import pass_rates
from tests.command import run_command
from tests.trajectory.trees import chat, message, sampled, trajectories

TAGS = """html head meta title style body input div aside h1 h2 h3 a p label span small main article header section b i
s dl dt dd table tr th td strong details summary pre figure figcaption svg line text polygon polyline circle rect ul li
footer"""
ATTRIBUTES = """charset http-equiv content name lang type id class checked for href title open viewbox role x y x1 x2 y1
y2 cx cy r rx width height points stroke-width"""
OWNED = "document.title='owned'"
HOSTILE = f"</s></script></style></pre></title>--><script>{OWNED}</script><img src=x onerror={OWNED}>"
ADDRESS = (
    f'"><img src="ADDRESS/a"><link rel=stylesheet href=ADDRESS/b><svg onload="{OWNED}"><a href="javascript:{OWNED}">'
)


class Page(HTMLParser):
    """The elements of a page, its text by the class of the element that holds it, and whether all is closed."""

    VOID = ("meta", "input")

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text, self.titles = [], [], Counter(), []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text[self.open[-1] if self.open else "", data] += 1

    def handle_comment(self, data):
        raise AssertionError("a comment")


def check(html):
    """Asserts that a page has the allowed elements and attributes alone, and loads nothing; returns it parsed."""
    page = Page(html)
    for tag, attributes in page.elements:
        assert tag in TAGS.split() and attributes.keys() <= set(ATTRIBUTES.split()), (tag, attributes)
        assert re.fullmatch(r"#(overview|e\d+(a\d+)?(n\d+)?)", attributes.get("href") or "#overview")
        assert re.fullmatch(r"[\w -]*", attributes.get("class") or "")
    (style,) = [data for tag, data in page.text if tag == "style"]
    assert "url(" not in style and "@import" not in style
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return page


def hostile(text):
    """A trajectory with markup wherever a trajectory can hold text."""
    trajectory = Trajectory(
        text, text, (0, 0, 0), status="masked", reward=Reward(1.0, {text: 0.5}, {text: [text, {text: text}]}),
        error=text, metadata={text: text, "training": {text: text}},
    )  # fmt: skip
    said = PairVerdict(1, ("first", "second"), (text, text), (text,))
    set_comparisons(trajectory, [said, said._replace(error=text)])
    trajectory.add(Node.observed(-1, [1, 2], message(text, text, **{text: text})))
    trajectory.add(sampled(0, [3, 4], finish=text, message=message("assistant", text)))
    return trajectory


def page_of(folder, shown, decode=str, **options):
    """The HTML of a page."""
    path = write_page(folder / "page.html", shown, decode, **({"title": "a run"} | options))
    return path.read_text(encoding="utf-8")


def test_a_trajectory_made_of_markup_leaves_no_tag(tmp_path):
    records = [{"step": 1, "reward": 1.0, f"reward/{HOSTILE}": 2.0}, {"step": 2, "reward": 0.5}]
    html = page_of(tmp_path, [hostile(HOSTILE + ADDRESS)], lambda token: HOSTILE, title=HOSTILE, records=records)
    page = check(html)
    assert "<img" not in html and "<script" not in html
    assert page.text["title", HOSTILE] == 1 and page.text["s", HOSTILE] == 4 and page.text["h2", HOSTILE] == 1
    assert any(tag == "pre" and HOSTILE in text for tag, text in page.text)


@settings(max_examples=6)
@given(shown=st.lists(trajectories(), max_size=3), text=st.text())
def test_any_trajectory_gives_a_page_without_foreign_tags(tmp_path_factory, shown, text):
    check(page_of(tmp_path_factory.mktemp("page"), [*shown, hostile(text)], lambda token: text, title=text))


def test_characters_that_hide_or_turn_text_are_shown():
    assert visible("a\u202eb\0\x1b[1m\u200b\ud800\x7f\n\té中") == "a\\u{202e}b␀␛[1m\\u{200b}\\u{d800}␡\n\té中"
    assert element("p", "\u202e<b>", title='"\u2066') == '<p title="\\u{2066}">\\u{202e}&lt;b&gt;</p>'.replace(
        'title="', 'title="&quot;'
    )


def test_tokens_have_their_text_probability_version_and_mask(tmp_path):
    trajectory = chat()
    trajectory.nodes[3].versions[:] = [4, 5, 5]
    trajectory.nodes[3].mask[2] = False
    trajectory.nodes[1].versions[1] = -1
    trajectory.nodes[3].logprobs[:] = [-0.005, -0.3, -5]
    page = check(page_of(tmp_path, [trajectory], {token: f"t{token}" for token in range(11)}.get))
    texts = [text for tag, text in page.text if tag == "s" and text.startswith("t")]
    assert texts == [f"t{token}" for token in range(1, 11)]
    boxes = [attributes for tag, attributes in page.elements if tag == "s" and "title" in attributes]
    assert boxes[0] == {"title": "token 0, id 1, not sampled"}
    assert boxes[6:9] == [
        {"title": "token 0, id 7, -log p 0.005 nats (p 0.995), version 4", "class": "b0"},
        {"title": "token 1, id 8, -log p 0.300 nats (p 0.741), version 5", "class": "b3"},
        {"title": "token 2, id 9, -log p 5.000 nats (p 0.007), version 5, not trained", "class": "b7 off"},
    ]
    assert [text for tag, text in page.text.elements() if tag == "i" and text[0] == "v"] == [
        "v3",
        "v4",
        "v4",
        "v4",
        "v5",
    ]
    assert [page.text["i", f"turn {turn}"] for turn in range(3)] == [1, 1, 2]  # the legend names turn 2, too
    assert any("turn 1 · 3 tokens · version 4 to 5 · temperature 1 · stop · 1 not trained" in t for _, t in page.text)
    assert any("turn 2 · 1 tokens · version 4 · temperature 0.5 · length" in t for _, t in page.text)
    assert page.text["strong", "1"] == 1 and page.text["th", "right"] == 1


def test_lists_are_in_the_orders_that_they_name(tmp_path):
    shown = [chat(sample, reward) for sample, reward in enumerate([0.5, 1.0, -1.0])]
    shown[1].add(sampled(0, [5, 5, 5], turn=3, version=4))
    masked = chat(3)
    masked.status, masked.reward, masked.error = "masked", None, "a machine failed"
    page = check(page_of(tmp_path, [*shown, masked]))
    items = [a for tag, a in page.elements if tag == "a" and a.get("class", "").startswith("item")]
    hrefs = [a["href"] for a in items]
    assert hrefs[:4] == ["#e0", "#e1", "#e2", "#e3"]
    assert hrefs[4:8] == ["#e1", "#e0", "#e2", "#e3"]
    assert hrefs[8:] == ["#e1", "#e0", "#e2", "#e3"]
    kinds = [a["class"] for a in items[:4]]
    assert kinds == ["item rewarded d0", "item rewarded d0", "item unrewarded d0", "item unscored d0"]
    cells = [a["class"] for tag, a in page.elements if a.get("class", "").startswith("cell ")]
    assert cells == ["cell r3", "cell r4", "cell r0", "cell rx"]


def test_tokens_beyond_the_limit_are_left_out_with_a_word(tmp_path):
    html = page_of(tmp_path, [chat(sample) for sample in range(3)], max_tokens=20)
    assert html.count("The tokens are left out of this page") == 1 and html.count('title="token 0, id 1,') == 2


def test_curves_go_through_the_values(tmp_path):
    records = [{"step": step, "reward": value} for step, value in [(1, 0.0), (2, None), (3, 1.0), (5, 0.5)]]
    page = check(page_of(tmp_path, [], records=records))
    lines = [attributes["points"].split() for tag, attributes in page.elements if tag == "polyline"]
    assert [len(line) for line in lines] == [1, 2]  # the missing value is a gap
    (first,), (second, third) = [[tuple(map(float, point.split(","))) for point in line] for line in lines]
    assert first[0] < second[0] < third[0] and second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.2)
    assert first[1] > third[1] > second[1] and first[1] - third[1] == pytest.approx(third[1] - second[1], abs=0.2)
    assert page.text["li", "reward 0.5"] == 1
    assert "polyline" not in {tag for tag, _ in check(page_of(tmp_path, [chat()], records=[])).elements}


def test_the_panel_of_accuracies_has_every_one_as_a_line_and_intervals_as_bands(tmp_path):
    names = ("eval/greedy", "eval/avg@1", "eval/pass^8")
    values = {"eval/greedy": 0.5, "eval/avg@1": 0.4, "eval/pass^8": 0.2}
    bounds = {f"{name}/{end}": values[name] + d for name in names[:2] for end, d in (("low", -0.1), ("high", 0.1))}
    page = check(page_of(tmp_path, [], records=[{"step": step, **values, **bounds} for step in (0, 10)]))
    tags = [tag for tag, _ in page.elements]
    assert tags.count("polyline") == 3 and tags.count("polygon") == 2
    assert all(page.text["li", f"{name} {values[name]:.4g}"] == 1 for name in names)
    band = next(attributes["points"].split() for tag, attributes in page.elements if tag == "polygon")
    heights = [float(point.split(",")[1]) for point in band]
    assert len(band) == 4 and heights[0] == heights[1] > heights[2] == heights[3]


def test_agents_have_panels_of_their_own(tmp_path):
    values = {
        "swarm/parallelism": 2.5,
        "swarm/critical_steps": 4,
        "swarm/total_steps": 10,
        "swarm/used": 3,
        "swarm/finish": 1,
    }
    page = check(page_of(tmp_path, [], records=[{"step": step, **values} for step in (0, 10)]))
    titles = [text for tag, text in page.text if tag == "figcaption"]
    assert titles == [
        "parallelism of agents", "steps of agents", "sub-agents of an episode", "terms of sub-agents and their weights",
    ]  # fmt: skip
    assert all(page.text["li", f"{name} {value:.4g}"] == 1 for name, value in values.items())


@settings(max_examples=25)
@given(low=st.floats(-1e9, 1e9), span=st.floats(0, 1e9))
def test_ticks_are_few_and_cover_the_range(low, span):
    high = low + span
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 7 and ticks == sorted(set(ticks))
    slack = 1e-9 * max(abs(low), abs(high), 1e-9)
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack


def test_a_token_that_is_part_of_a_character_is_shown_in_hexadecimal():
    tokenizer = byte_tokenizer()
    decode = decoder(tokenizer)
    parts = [decode(token) for token in tokenizer.encode("aé\n")]
    assert parts == ["a", "\\xc3", "\\xa9", "\n"]
    assert decode(tokenizer.eos) == "[EOS]" and decode(10**6) == "[1000000]"


@pytest.fixture
def workdir(tmp_path):
    """A run's folder with two iterations."""
    byte_tokenizer().save(tmp_path / "tokenizer")
    with TrajectoryStore(tmp_path / "trajectories") as store:
        for step in (7, 8):
            store.write(step, [chat(sample, float(sample)) for sample in range(2)])
    with MetricsLog(tmp_path, resume_step=0, tensorboard=False) as log:
        for step in range(1, 9):
            log.write(step, {"reward": step / 8})
    return tmp_path


def test_the_command_shows_an_iteration(workdir):
    done = run_command("k2jax.trajectories", str(workdir))
    assert (done.returncode, done.stdout) == (0, f"{workdir / 'trajectories.html'}\n"), done.stderr
    page = check((workdir / "trajectories.html").read_text())
    assert page.text["title", f"{workdir.name}, iteration 8"] == 1 and page.text["li", "reward 1"] == 1
    assert run_command("k2jax.trajectories", str(workdir), "--step=7", f"--out={workdir / 'a.html'}").returncode == 0
    assert "iteration 7" in (workdir / "a.html").read_text()


def test_the_command_checks_and_exports(workdir):
    done = run_command("k2jax.trajectories", str(workdir), "--verify")
    assert (done.returncode, done.stdout) == (0, "4 trajectories, 0 of them inconsistent\n")
    out = workdir / "rows.jsonl"
    done = run_command("k2jax.trajectories", str(workdir), "--format=turns", f"--out={out}")
    assert (done.returncode, done.stdout) == (0, f"{out}: 6 lines\n")
    assert len(out.read_text().splitlines()) == len(list(exported([chat(), chat()], "turns")))
    done = run_command("k2jax.trajectories", str(workdir), "--filters=finished,correct_answer", f"--out={out}")
    assert (done.returncode, done.stdout) == (0, f"{out}: 4 lines\n")
    done = run_command("k2jax.trajectories", str(workdir), "--pass_rates", f"--out={out}")
    assert (done.returncode, done.stdout) == (0, f"{out}: 1 tasks\n")
    assert json.loads(out.read_text()) == pass_rates([chat(0, 0.0), chat(1, 1.0)] * 2)
    bad = chat()
    bad.nodes[1].logprobs[0] = 1
    TrajectoryStore(workdir / "trajectories").write(9, [bad])
    done = run_command("k2jax.trajectories", str(workdir), "--verify")
    assert done.returncode == 1 and "node 1: log-probabilities are above 0" in done.stdout


MISTAKES = {
    ("--step=3",): "stored iterations: 7, 8",
    ("--verify", "--format=tree"): "exclude each other",
    ("--format=tree",): "--out is required",
    ("--format=trees", "--out=x.jsonl"): "did you mean 'tree'",
    ("--filters=finish", "--out=x.jsonl"): "did you mean 'finished'",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_told_in_one_line(workdir, words):
    done = run_command("k2jax.trajectories", str(workdir), *words, cwd=workdir)
    assert done.returncode == 2 and MISTAKES[words] in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_without_trajectories_is_told(tmp_path):
    done = run_command("k2jax.trajectories", str(tmp_path))
    assert done.returncode == 2 and "has no trajectories" in done.stderr


def browse(*arguments):
    """Runs the browser without a window; returns what it prints."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "these tests need chromium on the path"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1600"]
    return subprocess.run([program, *options, *arguments], capture_output=True, text=True, timeout=120).stdout


@pytest.mark.external
def test_a_browser_runs_and_loads_nothing_of_a_hostile_page(tmp_path):
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    text = HOSTILE + ADDRESS.replace("ADDRESS", address)
    write_page(tmp_path / "page.html", [hostile(text)], lambda token: text, title="a run")
    dom = browse("--dump-dom", f"file://{tmp_path}/page.html#e0")
    assert asked == []
    control = tmp_path / "control.html"
    control.write_text(f"<title>a run</title><p>{text}")
    owned = browse("--dump-dom", f"file://{control}")
    server.shutdown()
    assert {tag for tag, _ in Page(dom).elements} <= {*TAGS.split(), "tbody"}
    assert Page(dom).text["title", "a run"] == 1
    assert "<title>owned</title>" in owned and "/a" in asked  # the same text does harm where it is not escaped


@pytest.mark.external
def test_a_browser_shows_the_overview_or_the_chosen_trajectory(workdir):
    assert run_command("k2jax.trajectories", str(workdir)).returncode == 0
    pictures = {}
    for name, target in (("overview", ""), ("first", "#e0"), ("second", "#e1"), ("node", "#e0n3")):
        browse(f"--screenshot={workdir / name}.png", f"file://{workdir}/trajectories.html{target}")
        pictures[name] = np.round(255 * imread(io.BytesIO((workdir / f"{name}.png").read_bytes()))[..., :3]).astype(int)

    def pixels(name, color):
        return int((pictures[name] == color).all(-1).sum())

    blue, green, red = (0x35, 0x68, 0xB0), (0x2A, 0x84, 0x68), (0xC2, 0x50, 0x3C)
    box = (0xF9, 0xC3, 0x7C)  # a token of -log p between 0.5 and 1
    assert pixels("overview", green) > 100 and pixels("overview", red) > 100  # the style sheet is in force
    assert pixels("overview", blue) > 30 > pixels("first", blue)  # a curve; its legend's point is a part of it
    assert pixels("first", box) > pixels("overview", box)
    assert (pictures["first"] != pictures["second"]).any()
    assert pixels("node", box) >= pixels("first", box) and pixels("node", blue) < 30  # a node's episode is shown
    assert pixels("node", (0x2C, 0x6E, 0x8F)) > pixels("first", (0x2C, 0x6E, 0x8F)) + 500  # and the node has a frame
