"""The time line of an episode with sub-agents, against its records; any links at all give a page."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.viewer.swarm_schedule import swarm_schedule
from k2jax.agents.viewer.swarm_section import MOST_AGENTS
from k2jax.agents.viewer.viewer import write_page
from k2jax.trajectory.steps import AGENT, SPAWNED
from k2jax.trajectory.swarm import swarm_record
from tests.agents.viewer.test_viewer import ADDRESS, HOSTILE, browse, check, page_of
from tests.trajectory.swarms import answer, assigned, begun, searcher, serial, swarm, unspawned
from tests.trajectory.trees import JSON

EXPECTED = {  # name: begin, critical steps, own steps, whether on the critical path
    "orchestrator": (0, 26, 6, True),
    "counter": (2, 7, 7, False),
    "surveyor": (2, 8, 3, True),
    "surveyor of the north": (3, 5, 5, True),
    "clerk": (2, 3, 3, False),
    "clerk of the south": (12, 4, 4, False),
    "hydrologist": (12, 9, 9, True),
    "pilot": (12, 6, 6, False),
    "checker": (22, 3, 3, True),
}
COUNTS = st.integers(-1, 3) | st.sampled_from([10**9, 10**30, True, 1.5, None, "1", [1]])
NAMES = ("turn", "call", AGENT, "role", "task", "status", "steps", "critical_steps", "total_steps", "tokens")
LINKS = st.dictionaries(
    st.sampled_from(["0", "1", "2", "7", "-1", "x", "٣", "9" * 30]),
    st.dictionaries(st.sampled_from(NAMES), COUNTS | st.text(max_size=3), max_size=8) | JSON,
    max_size=4,
)


@st.composite
def swarms(draw, depth=2):
    """Episodes of agents that spawn others, two levels deep at most."""
    main = begun("task", "do it", "policy", draw(st.sampled_from("abc")))
    for _ in range(draw(st.integers(0, 3))):
        if depth and draw(st.booleans()):
            assigned(main, draw(st.lists(swarms(depth - 1), min_size=1, max_size=3)))
        else:
            calls = [(draw(st.sampled_from(["search", "create_subagent"])), "{}")] * draw(st.integers(0, 3))
            answer(main, "", calls, ["page"] * len(calls))
    return unspawned(main) if draw(st.booleans()) else main


def test_agents_lie_where_the_stages_that_spawn_them_end():
    agents = swarm_schedule(swarm())
    assert {a.name: (a.begin, a.critical_steps, a.steps, a.is_critical) for a in agents} == EXPECTED
    assert [agent.name for agent in agents] == list(EXPECTED)
    assert agents[0].work == [(0, 2), (10, 12), (21, 22), (25, 26)]
    assert [agent.depth for agent in agents] == [0, 1, 1, 2, 1, 1, 1, 1, 1]
    assert all(agent.is_critical for agent in swarm_schedule(serial()))


@settings(max_examples=20)
@given(trajectory=swarms())
def test_the_schedule_has_the_figures_of_the_record(trajectory):
    agents, record = swarm_schedule(trajectory), swarm_record(trajectory)
    main = agents[0]
    figures = (record.total_steps, record.critical_steps, record.peak)
    assert (main.total_steps, main.critical_steps, main.peak) == figures
    works = [end - begin for agent in agents if agent.is_critical for begin, end in agent.work]
    assert sum(works) == main.critical_steps, "one agent of the critical path is at work at a time"
    for agent in agents:
        assert sum(end - begin for begin, end in agent.work) <= agent.critical_steps <= agent.total_steps
        if agent.parent >= 0:
            parent = agents[agent.parent]
            assert parent.begin <= agent.begin
            assert agent.begin + agent.critical_steps <= parent.begin + parent.critical_steps
            works = [(parent.begin + begin, parent.begin + end) for begin, end in parent.work]
            end = agent.begin + agent.critical_steps
            assert all(last <= agent.begin or first >= end for first, last in works), "the parent waits"


def test_the_page_draws_every_agent_and_leads_to_its_conversation(tmp_path):
    page = check(page_of(tmp_path, [swarm(), serial(1)]))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    links = {a["href"][1:] for tag, a in page.elements if tag == "a"}
    assert len(ids) == len(set(ids)) and links <= set(ids)
    assert {f"e0a{index}" for index in range(1, 9)} | {"e0a3n1"} <= links
    figures = [text for tag, text in page.text.elements() if tag == "dd"]
    assert {"46", "26", "1.77", "1.00"} <= set(figures)  # 46 / 26; the serial one has parallelism 1
    bars = [a["class"] for tag, a in page.elements if tag == "rect" and a["class"].startswith("bar")]
    assert sum("failed" in bar for bar in bars) == 1 and sum("cut" in bar for bar in bars) == 1
    assert page.text["text", "✕"] == 1 and sum(a.get("class") == "hatch" for _, a in page.elements) == 1
    assert len([bar for bar in bars if "path" in bar]) == 4 + 4 + 1 + 5 + 4
    titles = [text for tag, text in page.text if tag == "title"]
    words = "hydrologist: role worker, truncated, 9 steps from 12 to 21 of the critical path, 330 tokens sampled"
    assert f"{words}, on the critical path\nLook up the river of every city." in titles
    assert page.text["p", "the engine of its role was lost"] == 1
    assert page.text["p", "spawns "] == 3 + 1 + 4
    assert check(page_of(tmp_path, [searcher("alone", 2)])).text["text", "orchestrator"] == 0


def test_a_swarm_made_of_markup_leaves_no_tag(tmp_path):
    text = HOSTILE + ADDRESS
    child = searcher(text, 3, role=text, fact=text)
    child.error, child.task = text, text
    main = begun(text, text, text)
    assigned(main, [child])
    main.metadata[SPAWNED]["0"] |= {AGENT: text, "status": text}
    main.metadata[SPAWNED]["1"] = {AGENT: text, "role": text, "status": text, "turn": 1}
    html = page_of(tmp_path, [main], lambda token: text, title=text)
    page = check(html)
    assert "<img" not in html and "<script" not in html
    assert page.text["b", text] == 2 and page.text["title", text] == 1


@settings(max_examples=8)
@example(links=5, below={})
@example(links={"0": {"turn": 10**9, "call": 10**9}, "5": {"turn": 1, "critical_steps": 10**9}}, below={"0": {}})
@given(links=LINKS | JSON, below=LINKS)
def test_malformed_links_give_a_page_whose_bars_lie_in_the_picture(tmp_path_factory, links, below):
    main, middle = begun("task", "do it"), begun("task/0", "a part")
    assigned(middle, [searcher("last", 2)])
    assigned(main, [middle, searcher("other", 3)])
    middle.metadata[SPAWNED], main.metadata[SPAWNED] = below, links
    main.nodes[1].message["tool_calls"] = 3
    page = check(page_of(tmp_path_factory.mktemp("page"), [main]))
    boxes = [a for tag, a in page.elements if tag == "rect" and a["class"].startswith("bar")]
    assert boxes and all(196 <= float(a["x"]) <= float(a["x"]) + float(a["width"]) <= 1060 for a in boxes)
    assert all(re.fullmatch(r"[\d.]+", a[key]) for a in boxes for key in ("x", "y", "width", "height"))
    names = sum(a.get("class", "").startswith("card agent") for _, a in page.elements)
    assert names == len(swarm_schedule(main)) - 1 >= 3, "no stored sub-agent is left out"


def test_a_page_of_a_hundred_agents_of_a_hundred_steps_is_small(tmp_path):
    main = begun("task", "do it")
    for _ in range(10):
        children = [begun(f"task/{index}", "look up", "worker", f"agent {index}") for index in range(10)]
        for child in children:
            for _ in range(5):
                answer(child, "", [("search", "{}")] * 20, ["page"])
        assigned(main, children)
    record = swarm_record(main)
    assert (record.total_steps, record.critical_steps) == (10_010, 1010)
    html = page_of(tmp_path, [main], max_tokens=500)
    assert len(html) < 400_000
    left_out = check(html).text["p", "The tokens are left out of this page: raise --tokens, or name its prompt."]
    assert 95 < left_out <= 101, "sub-agents count as tokens of the page"


def test_agents_beyond_the_rows_of_a_picture_are_counted(tmp_path):
    main = begun("task", "do it")
    answer(main, "", [("assign_task", "{}")] * 5)
    main.metadata[SPAWNED] = {str(n): {"turn": 1, "call": 0, AGENT: f"a{n}"} for n in range(MOST_AGENTS + 7)}
    page = check(page_of(tmp_path, [main]))
    assert page.text["p", "8 more sub-agents are left out"] == 1 and page.text["text", "a398"] == 1


@pytest.mark.external
def test_a_browser_opens_the_conversation_that_a_row_leads_to(tmp_path):
    write_page(tmp_path / "page.html", [swarm()], str, title="a run")
    dom = browse("--dump-dom", f"file://{tmp_path}/page.html#e0a3n1")
    states = re.findall(r'<details class="card agent[^>]*?>', dom)
    assert [" open" in state for state in states] == [False, False, True] + [False] * 5
