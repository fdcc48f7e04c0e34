"""The search world: scripted policies that read its documents earn 1, and decoys mislead nobody who reads well."""

import asyncio
import dataclasses
import re

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.registry import oracles, toolsets
from k2jax.agents.scaffolds.scripted import turn_of
from k2jax.tasks.item_f1 import item_f1
from k2jax.tasks.search_world.oracle import parallel, value_of
from k2jax.tasks.search_world.world import search_world
from tests.agents.tool_episodes import called
from tests.agents.tool_episodes import task as plain_task
from tests.tasks.conftest import rewards


def test_the_serial_policy_earns_1_on_wide_and_deep_tasks_and_the_null_policy_0(check):
    tasks = load_tasks("search_world", ("count=4", "documents=300", "page=90", "hops=4"))
    check(tasks, oracles.get("search_world"))
    assert {task.domain for task in tasks} == {"search/wide", "search/deep"}


def test_the_parallel_policy_earns_1_in_fewer_turns(play):
    tasks = load_tasks("search_world", ("kinds=wide", "count=3", "rows=6"))
    serial, fast = play(tasks, oracles.get("search_world")), play(tasks, parallel)
    assert rewards(fast) == rewards(serial) == [1.0] * 3
    for slow, quick in zip(serial, fast, strict=True):
        assert turn_of([n.message for n in quick.nodes]) == 3 < turn_of([n.message for n in slow.nodes]) == 13


LARGE = ("kinds=download+long", "count=4", "rows=5", "entries=40", "page=600", "documents=60")


def test_downloads_and_long_documents_give_the_policies_1_and_the_null_policy_0(check, play):
    tasks = load_tasks("search_world", LARGE)
    serial, fast = check(tasks, oracles.get("search_world")), play(tasks, parallel)
    assert rewards(fast) == [1.0] * 4
    for task, slow, quick in zip(tasks, serial, fast, strict=True):
        turns = [turn_of([n.message for n in episode.nodes]) for episode in (slow, quick)]
        assert turns[1] == (4 if task.domain == "search/long" else 3) < turns[0]


def test_receipts_take_a_download_and_counts_a_reader_of_the_whole_chronicle():
    (download,) = load_tasks("search_world", ("kinds=download", "count=1", *LARGE[2:]))
    longs = load_tasks("search_world", ("kinds=long", "count=12", *LARGE[2:]))
    corpus = search_world(60, 0, 40).corpus
    receipts = [receipt for _, receipt in download.metadata["table"]]
    assert len(set(receipts)) == 5 and not any(word in page.text for word in receipts for page in corpus.pages)
    for long in longs:
        counted = long.metadata["counted"]
        (text,) = (page.text for page in corpus.pages if page.title == counted["title"])
        came = [line for line in text.split(". ") if line.startswith("In the") and f" {counted['profession']} " in line]
        years = [int(re.search(r"\d+", line)[0]) for line in came]
        assert long.metadata["answer"] == sum(year >= counted["year"] for year in years)
        assert "It is not true that" in text and len(text) > 4 * 600
    plain = load_tasks("search_world", ("kinds=wide", "count=1", "documents=60"))[0]
    assert set(plain.metadata["world"]) == {"documents", "seed", "results", "page"}


@settings(max_examples=10)
@given(st.integers(20, 120), st.integers(0, 5))
def test_documents_state_every_fact_once_and_links_lead_to_documents(documents, seed):
    world = search_world(documents, seed)
    assert len(world.corpus.pages) == len(world.entities) == documents
    for page in world.corpus.pages:
        facts = world.entities[page.title].facts
        assert {key: value_of(key, page.title, page.text) for key in facts} == facts
        for key in ("founder", "twin", "creator", "home", "birthplace", "teacher"):
            assert key not in facts or world.corpus.page(world.address_of(facts[key])).title == facts[key]
    assert search_world.__wrapped__(documents, seed).corpus.pages == world.corpus.pages


def test_every_document_holds_a_decoy_that_is_not_the_answer():
    world = search_world(200, 0)
    rumour = re.compile(
        r"wrongly names (.+?) as|wrongly ascribed to (.+?)\.|That (.+?) was the teacher is|birthplace is (.+?) has"
    )
    for page in world.corpus.pages:
        (decoy,) = (next(filter(None, found)) for found in rumour.findall(page.text))
        assert decoy in world.entities and decoy not in world.entities[page.title].facts.values()


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("A | x | 1\nB | y | 2", 1.0),
        ("| name | c | d |\n|---|---|---|\n| a | X | 1 |\n| B |  y| 2 |", 1.0),
        ("A | x | 1", 2 * 2 / (2 + 4)),
        ("A | x | 9\nB | y | 2", 2 * 3 / (4 + 4)),
        ("A | x | 1\nB | y | 2\nA | x | 1", 2 * 4 / (6 + 4)),
        ("A | x | 1\nB | y | 2\nC | z | 3", 2 * 4 / (6 + 4)),
        ("A | 1 | x", 0.0),
        ("A\nB", 0.0),
        ("", 0.0),
    ],
)
def test_item_f1_counts_cells(answer, value):
    rows = plain_task(metadata={"table": [["A", "x", "1"], ["B", "y", "2"]]})
    assert item_f1(rows, answer).value == pytest.approx(value)


class Window:
    """The results of one call after another in an episode of a task with a browser."""

    async def __aenter__(self):
        self._environment = ToolEnvironment()
        return self

    async def __aexit__(self, *error):
        await self._environment.close()

    async def begin(self, task):
        await self._environment.reset(dataclasses.replace(task, tools=("search_browser",)), 0)

    async def __call__(self, name, **arguments):
        step = await self._environment.step({"tool_calls": [called(name, arguments)]})
        return step.observation.messages[0]["content"]


def browsing(script, *options):
    """Follows a script, ``async script(window, task)``, in each task."""

    async def follow():
        async with Window() as window:
            for task in load_tasks("search_world", options):
                await window.begin(task)
                await script(window, task)

    asyncio.run(follow())


def test_links_of_a_browser_lead_to_the_answers_of_deep_tasks():
    async def script(window, task):
        name, links = task.metadata["start"], task.metadata["links"]
        both = await window("search", queries=[name, "no such words"])
        first, second = both.split("\n\n")
        assert first.splitlines()[0] == f"{name}:" and second == "no such words:\nnothing was found"
        shown = await window("open", address=first.splitlines()[1].split(" | ")[0])
        for link in links:
            name = value_of(link, name, shown)
            shown = await window("click", link=name)
            assert shown.splitlines()[0] == name
        assert value_of(task.metadata["fact"], name, shown) == str(task.metadata["answer"])
        assert "shows no link 'Nobody'" in await window("click", link="Nobody")
        typed = await window("input", text=name)
        assert typed.splitlines()[1] == name and (await window("click", link=name)) == shown

    browsing(script, "kinds=deep", "count=4", "documents=300", "hops=3")


def test_the_window_of_a_browser_shows_every_part_of_a_long_document_and_what_is_found():
    async def script(window, task):
        (page,) = [
            page for page in search_world(60, 0, 40).corpus.pages if page.title == task.metadata["counted"]["title"]
        ]
        shown, text = await window("open", address=page.address), ""
        parts = int(re.search(r"\[part 1 of (\d+)\]", shown)[1])
        for part in range(1, parts + 1):
            text += shown.split("\n")[1]
            assert f"\n[part {part} of {parts}]\n[links: " in shown
            shown = await window("scroll")
        assert text == page.text and f"shows part {parts} of {parts}" in shown
        assert (await window("scroll", parts=1 - parts)).split("\n")[1] == text[:600]
        place = text.find("In the year", 1500)
        words = text[place : place + 60]
        assert f"[part {place // 600 + 1} of {parts}]" in await window("find", text=words)
        assert "does not have" in await window("find", text=text[:60])
        assert "there is no query" in await window("search", queries=[])
        assert "one call takes 32 at most" in await window("search", queries=["founder"] * 33)

    browsing(script, "kinds=long", "count=2", *LARGE[2:])


def test_tasks_of_the_world_keep_their_tools_and_a_browser_downloads_where_they_do():
    (task,) = load_tasks("search_world", ("kinds=download", "count=1", *LARGE[2:]))
    assert task.tools == ("search_world",)
    names = [tool["function"]["name"] for tool in toolsets.make("search_browser").tools]
    assert names == ["search", "open", "click", "input", "find", "scroll"]

    async def script(window, task):
        name, receipt = task.metadata["table"][0]
        address = (await window("search", queries=[name])).splitlines()[1].split(" | ")[0]
        assert (await window("download", address=address)).endswith(receipt)

    browsing(script, "kinds=download", "count=1", *LARGE[2:])
