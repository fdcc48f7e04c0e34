"""The repository of tools: evolution, what is stored and found again, and tools of servers."""

import asyncio
import copy
import json
from pathlib import Path
import random
import re
import shutil
import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from k2jax.agents.collect.worker import made_by
from k2jax.errors import UserError
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.pipeline import Machines, Synthesis
from k2jax.synthesize.questions import ModelQuestion, ProgramModel
from k2jax.synthesize.settings import AskedModelConfig, RepositoryConfig, SynthesisConfig, ToolUseConfig
from k2jax.synthesize.stages import content_key
from k2jax.synthesize.tool_use.pipeline import tool_use_records, tool_use_stages
from k2jax.synthesize.tools.distinct_domains import distinct_domains
from k2jax.synthesize.tools.evolution import coverage_of, evolved, grown
from k2jax.synthesize.tools.evolution_program import written_repository
from k2jax.synthesize.tools.mcp_servers import (
    LONGEST_TEXT,
    MOST_SCHEMA_DEPTH,
    MOST_SCHEMA_VALUES,
    MOST_TOOLS,
    bounded_tools,
    listed,
    read_servers,
)
from k2jax.synthesize.tools.near_duplicates import duplicate_tools
from k2jax.synthesize.tools.repository_pipeline import (
    export_repository,
    repository_programs,
    repository_records,
    repository_stages,
)
from k2jax.synthesize.tools.tool_picture import draw_tools
from k2jax.synthesize.tools.tool_store import INDEX, TOOLS, ToolRepository, write_repository
from k2jax.tasks.worlds.grammar import generated_world
from k2jax.tasks.worlds.world_spec import changes_state, read_world
from tests.http_server import served

EMPTY = {"parameters": {}, "requires": [], "effects": [], "returns": {"value": "ok"}}
SMALL = SynthesisConfig(pipeline="tools", repository=RepositoryConfig(tools=80, domain_tools=20, rounds=2))
WRITER = ProgramModel("grammar", lambda question, _: {"content": json.dumps(written_repository(question, 0))})


def run(folder, config=SMALL, **machines):
    asyncio.run(Synthesis(folder, config, Machines(**{"workers": 1} | machines), say=lambda line: None).run())


def run_here(folder, config=SMALL):
    """The stages in this process, which starts sooner than workers, and what is exported of them."""
    records, programs, results = repository_records(config), repository_programs(config), {}
    for stage in repository_stages(config):
        work = made_by(stage.maker, **stage.options)
        if stage.is_whole:
            found = [work(records)]
        else:
            askers = [Asker(programs, content_key(stage.name, record)) for record in records]
            found = [asyncio.run(work(record, asker)) for record, asker in zip(records, askers, strict=True)]
        results[stage.name] = [StageResult("", one) for one in found]
        records = [record for one in found for record in one.kept]
    return export_repository(folder, config, results)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    run_here(folder)
    return folder


def entries(folder):
    return [json.loads(line) for line in (folder / TOOLS).read_text().splitlines()]


def test_tools_are_evolved_by_breadth_and_depth_in_worlds_that_hold(made):
    found = entries(made)
    report = json.loads((made / "coverage.json").read_text())
    assert report["tools"] == len(found) == 80 and set(report["domain"].values()) == {20}
    assert all(report["origin"][f"{way} {number}"] > 0 for way in ("breadth", "depth") for number in (1, 2))
    by_id = {entry["id"]: entry for entry in found}
    refined = [entry for entry in found if entry["origin"][0] == "depth"]
    for entry in refined:
        parent = by_id[f"{entry['domain']}/{entry['origin'][2]}"]["tool"]
        new = entry["tool"]
        assert set(new["parameters"]) > set(parent["parameters"])
        assert (
            len(new["requires"]) > len(parent["requires"])
            or new["effects"] != parent["effects"]
            or new["returns"] != parent["returns"]
        )
    for domain in ToolRepository(made).worlds():
        read_world(domain["world"])


@pytest.mark.slow
def test_a_second_run_does_nothing_and_a_killed_one_gives_the_same_bytes(tmp_path):
    made = tmp_path / "first"
    run(made)
    before = {path.name: path.read_bytes() for path in made.iterdir() if path.suffix in (".jsonl", ".npz")}
    run(made)
    assert {name: (made / name).read_bytes() for name in before} == before
    shutil.copytree(made, tmp_path / "again")
    for log in sorted((tmp_path / "again" / "stages").glob("*/results.log"))[3:]:
        data = log.read_bytes()  # a kill leaves what was written, and a part of the record behind it
        log.write_bytes(data[: len(data) // 2])
    run(tmp_path / "again")
    assert {name: (tmp_path / "again" / name).read_bytes() for name in before} == before


def test_a_round_asks_for_what_is_covered_least():
    world = generated_world("culture", "museum", 1).spec.to_json()
    record = {"category": "culture", "setting": "museum", "about": "number 1", "name": world["name"], "world": world}
    asked = []

    class Noted(ProgramModel):
        async def reply(self, question, seed):
            asked.append(question)
            return await super().reply(question, seed)

    asker = Asker({"writer": Noted("grammar", WRITER._answer)}, "record")
    [grown_up] = asyncio.run(evolved(1, 1, len(world["tools"]) + 6)(record, asker)).kept
    assert [question.purpose for question in asked] == ["breadth", "depth"]
    assert all(
        json.dumps(coverage_of(question.inputs["world"])) in question.messages[0]["content"] for question in asked
    )
    assert len(grown_up["world"]["tools"]) == len(world["tools"]) + 6
    totals = [sum(counts.values()) for counts in coverage_of(grown_up["world"]).values()]
    assert totals == sorted(totals)


def test_an_answer_that_is_none_is_counted_and_the_domain_goes_on():
    def answer(question, _):
        is_depth = question.purpose == "depth"
        return {"content": "I refine nothing." if is_depth else json.dumps(written_repository(question, 0))}

    world = generated_world("culture", "museum", 1).spec.to_json()
    record = {"category": "culture", "setting": "museum", "about": "number 1", "name": world["name"], "world": world}
    asker = Asker({"writer": ProgramModel("half", answer)}, "record")
    [left], dropped = asyncio.run(evolved(1, 1, len(world["tools"]) + 6)(record, asker))
    assert len(left["world"]["tools"]) == len(world["tools"]) + 3
    assert [(reason, lost["way"]) for reason, lost in dropped] == [("malformed answer", "depth")]
    assert {way for way, _, _ in left["origins"].values()} == {"seed", "breadth"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [{"name": "get_gift"}]}, "must have the keys"),
        ({"of": ["nothing"]}, "must name an old tool"),
        ({"collections": "first"}, "may get optional fields and nothing else"),
        ({"collections": "field"}, "may get optional fields and nothing else"),
        ({"tools": "first"}, "give a new one another name"),
    ],
)
def test_an_evolution_that_breaks_its_world_is_refused_in_one_line(change, message):
    world = generated_world("culture", "museum", 1).spec.to_json()
    first = world["tools"][0]
    answer = {"collections": {}, "tools": [{**copy.deepcopy(first), "name": "another"}], "of": [first["name"]]}
    assert len(grown(world, answer, "depth")["tools"]) == len(world["tools"]) + 1
    name = next(iter(world["collections"]))
    named = {"tools": [first], "collections": {name: {**world["collections"][name], "prefix": "zz"}}}
    needed = {**world["collections"][name]["fields"], "colour": {"type": "string"}}
    named["field"] = {name: {**world["collections"][name], "fields": needed}}
    changed = {key: named[key if value == "first" else value] if isinstance(value, str) else value
               for key, value in change.items()}  # fmt: skip
    with pytest.raises(UserError, match=message) as error:
        grown(world, {**answer, **changed}, "depth")
    assert "\n" not in str(error.value)


def test_tools_are_found_by_words_and_drawn_by_domain(made):
    tools, found = ToolRepository(made), entries(made)
    assert len(tools) == len(found) and [tools.entry(place) for place in range(len(found))] == found
    wanted = next(entry for entry in found if not entry["like"] and entry["origin"][0] == "breadth")
    [best, *_] = tools.search(f"{wanted['tool']['name'].replace('_', ' ')} {wanted['tool']['description']}")
    assert best.entry["id"] == wanted["id"]
    assert tools.search("zzz qqq") == []
    for seed, domain in enumerate(tools.domains):
        drawn = tools.sample(domain, 5, random.Random(seed))
        mine = [entry for entry in found if entry["domain"] == domain]
        assert 5 <= len(drawn) <= 10 and all(entry in mine for entry in drawn)
        changing = {effect[kind][0] for entry in drawn for effect in entry["tool"]["effects"] for kind in effect}
        looking = json.dumps([entry["tool"]["returns"] for entry in drawn if not changes_state(entry["tool"])])
        known = json.dumps([entry["tool"]["returns"] for entry in mine if not changes_state(entry["tool"])])
        assert all(f'"{name}"' in looking or f'"{name}"' not in known for name in changing)
    with pytest.raises(UserError, match="has no domain 'nowhere'"):
        tools.tools_of("nowhere")


def test_a_rare_word_counts_more_than_common_ones(tmp_path):
    tools = [{**EMPTY, "name": f"show_list_{number}", "description": "Shows a list."} for number in range(20)]
    tools[7] = {**EMPTY, "name": "zebra", "description": "Feeds animals."}
    world = {"tools": tools}
    record = {"name": "zoo", "category": "culture", "setting": "zoo", "about": "", "world": world, "like": {}}
    write_repository(tmp_path, [{**record, "like": {"show_list_3": "zoo/show_list_2"}}])
    tools = ToolRepository(tmp_path)
    assert tools.search("show a list of a zebra")[0].entry["id"] == "zoo/zebra"
    assert "zoo/show_list_3" not in [found.entry["id"] for found in tools.search("show list", 20)]


def test_doubled_domains_leave_and_single_copies_are_marked():
    worlds = [generated_world("culture", "museum", number).spec.to_json() for number in (1, 2)]
    first, second = ({"name": f"d{number}", "world": world} for number, world in enumerate(worlds))
    second["world"]["tools"] = [*second["world"]["tools"], {**first["world"]["tools"][0], "name": "copied"}]
    kept, dropped = distinct_domains(0.92)([first, second, {**first, "name": "d2"}])
    assert [record["name"] for record in kept] == ["d0", "d1"] and [record["name"] for _, record in dropped] == ["d2"]
    assert kept[1]["like"]["copied"] == f"d0/{first['world']['tools'][0]['name']}"
    assert len(kept[1]["like"]) <= len(second["world"]["tools"]) / 2


def test_what_has_its_fields_in_other_places_is_no_duplicate():
    def raised(one, other):
        value, most = {"field": ["bikes", {"arg": "id"}, one]}, {"field": ["bikes", {"arg": "id"}, other]}
        needs = {"condition": {"at_least": [{"arg": "most"}, most]}, "error": ""}
        number = {"type": "integer"}
        return {
            "name": f"raise_{one}_up_to_{other}",
            "description": f"Raises the {one} of a bike by an amount if its {other} is not above another one.",
            "parameters": {"id": {"type": "string"}, "amount": number, "most": number},
            "requires": [needs],
            "effects": [{"set": ["bikes", {"arg": "id"}, one, {"plus": [value, {"arg": "amount"}]}]}],
            "returns": {"record": ["bikes", {"arg": "id"}]},
        }

    first = raised("price", "weight")
    assert duplicate_tools([first, raised("weight", "price"), {**first, "name": "add_to_price_up_to_weight"}], 0.9) == [
        -1,
        -1,
        0,
    ]


def test_a_repository_with_another_index_is_refused(made, tmp_path):
    with pytest.raises(UserError, match="has no repository of tools"):
        ToolRepository(tmp_path)
    shutil.copy(made / INDEX, tmp_path)
    (tmp_path / TOOLS).write_bytes((made / TOOLS).read_bytes()[:-1])
    with pytest.raises(UserError, match="is not of the"):
        ToolRepository(tmp_path)


def test_the_synthesis_of_tool_use_takes_domains_of_a_repository(made):
    sizes = ToolUseConfig(tools=30, agents=2, tasks=4, repository=str(made))
    config = SynthesisConfig(tool_use=sizes)
    assert [len(record["world"]["tools"]) for record in tool_use_records(config)] == [20, 20]
    assert next(stage.name for stage in tool_use_stages(config)) == "distinct_worlds"


@pytest.mark.slow
def test_tasks_of_a_repository_s_domains_are_solved(made, tmp_path):
    run(tmp_path, SynthesisConfig(tool_use=ToolUseConfig(tools=30, agents=2, tasks=4, repository=str(made))))
    tasks = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert len(tasks) == 4 and all(len(task["metadata"]["world"]["spec"]["tools"]) == 20 for task in tasks)


def function(name="f", **schema):
    return {"name": name, "description": "", "parameters": {"type": "object", "properties": {}, **schema}}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return function(properties={"a": schema})


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (nested(MOST_SCHEMA_DEPTH - 2), "too deep"),
        (nested(100_000), "too deep"),
        (function(properties={f"a{number}": {"type": "string"} for number in range(MOST_SCHEMA_VALUES)}), "too large"),
        (function(properties={"a": {"type": "string", "default": "x" * 40_000}}), "too large"),
        (function(name="<b>"), "no name"),
        (function(properties=[]), "no schema of an object"),
        (function(properties={"a": True}), "no schema of an object"),
        (function(required=[1]), "no schema of an object"),
    ],
)
def test_what_a_server_declares_has_limits(declared, reason):
    fine = function(name="fine")
    tools, dropped = bounded_tools([fine, declared])
    assert [tool["name"] for tool in tools] == ["fine"]
    [(said, _)] = dropped
    assert reason in said


def test_texts_and_numbers_of_a_server_s_tools_have_limits():
    many = [function(name=f"f{number}") for number in range(MOST_TOOLS + 5)]
    assert len(bounded_tools(many)[0]) == MOST_TOOLS and len(bounded_tools(many)[1]) == 5
    long = {**function(properties={"a": {"description": "y" * 9999}}), "description": "x" * 9999}
    [tool] = bounded_tools([long])[0]
    assert len(tool["description"]) == len(tool["schema"]["properties"]["a"]["description"]) == LONGEST_TEXT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "needs mcpServers"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', "its name has characters"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://y"}}}', "either url or command"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "no list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "no list of texts"),
    ],
)
def test_a_file_of_servers_with_a_mistake_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_servers(path)
    assert "\n" not in str(error.value)


def servers(folder, **named):
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": named}))
    return folder / "mcp.json"


@pytest.mark.slow
def test_tools_of_a_server_stand_in_the_repository_and_near_duplicates_among_them_are_marked(tmp_path):
    program = (Path(__file__).parents[1] / "agents" / "mcp_line_server.py").read_text(encoding="utf-8")
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", program]}
    path = servers(tmp_path, one=server, two=server)
    sizes = RepositoryConfig(tools=12, domain_tools=12, rounds=1, mcp=str(path))
    manifest = run_here(tmp_path, SynthesisConfig(pipeline="tools", repository=sizes))
    tools = ToolRepository(tmp_path)
    of_one = tools.tools_of("one")
    assert of_one and all(entry["source"] == "mcp" and "schema" in entry["tool"] for entry in of_one)
    assert "two" not in tools.domains  # all of its tools are those of the other one
    assert len(list(tools.worlds())) == 2 and len(tools.sample("one", 2, random.Random(0))) == 2
    assert manifest["source"]["mcp"] == len(of_one)


@pytest.mark.slow
def test_a_server_that_does_not_start_is_one_line(tmp_path):
    [record] = read_servers(servers(tmp_path, one={"command": "/nowhere/server"}))
    with pytest.raises(UserError, match=r"MCP server '/nowhere/server' cannot be used: .*does not start") as error:
        asyncio.run(listed()(record, Asker({}, "record")))
    assert "\n" not in str(error.value)


def test_tools_without_semantics_are_compared_by_their_texts_and_parameters():
    def tool(name, description, **properties):
        return {"name": name, "description": description, "schema": {"properties": properties}}

    text = {"type": "string", "description": "Path of the file."}
    read = tool("read_file", "Reads the whole content of a file.", path=text)
    same = tool("read-file", "Reads the whole content of a file", path=text)
    other = tool("read_file", "Reads the whole content of a file.", path=text, lines={"type": "integer"})
    apart = tool("weather", "Tells the weather of a town.", town=text)
    assert duplicate_tools([read, same, other, apart], 0.8) == [-1, 0, -1, -1]


def test_a_picture_without_its_library_says_what_to_install(made, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(UserError, match=r"pip install 'k2jax\[synthesize\]'"):
        draw_tools(entries(made), tmp_path / "tools.png")


@pytest.mark.external
def test_three_official_servers_are_listed(tmp_path):
    """Needs npm and its registry; ``npm install`` puts 40 MB into a temporary folder."""
    names = ("everything", "filesystem", "memory")
    packages = [f"@modelcontextprotocol/server-{name}@2026.8.31" for name in names]
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), *packages], check=True)
    shown = tmp_path / "shown"
    shown.mkdir()
    commands = {name: {"command": f"{tmp_path}/node_modules/.bin/mcp-server-{name}"} for name in names}
    commands["filesystem"]["args"] = [str(shown)]
    path = servers(tmp_path, **commands)
    sizes = RepositoryConfig(tools=24, domain_tools=24, rounds=1, mcp=str(path))
    run(tmp_path / "run", SynthesisConfig(pipeline="tools", repository=sizes))
    tools = ToolRepository(tmp_path / "run")
    for name, known in (("everything", "get-sum"), ("filesystem", "read_text_file"), ("memory", "create_entities")):
        assert known in {entry["tool"]["name"] for entry in tools.tools_of(name)}
    assert tools.search("create entities in the knowledge graph")[0].entry["id"] == "memory/create_entities"


@pytest.mark.external
def test_a_picture_is_drawn(made, tmp_path):
    """Needs scikit-learn."""
    assert "80 of 80 tools" in draw_tools(entries(made), tmp_path / "tools.png")
    assert (tmp_path / "tools.png").read_bytes()[:4] == b"\x89PNG"


def written_by_text(text):
    """What the program answers where it has the text of a question alone, as a model has."""

    def found(pattern):
        return re.search(pattern, text, re.DOTALL)

    if asked := found(r"^Name (\d+) different places or services of the category '(\w+)'.*this is round (\d+)"):
        purpose, inputs = "domains", {"count": int(asked[1]), "category": asked[2], "round": int(asked[3]) - 1}
    else:
        asked = found(r"service desk of a ([\w ]+) \((\w+)\)")
        inputs = {"setting": asked[1], "category": asked[2]}
        if asked := found(r"as a JSON object:\n(\{.*?\})\nWhat tools .*the fewest first: (\{.*?\}); add to"):
            inputs |= {"world": json.loads(asked[1]), "coverage": json.loads(asked[2]), "round": 1}
            asked = found(r"\n(Add|Refine) (\d+) ")
            purpose, inputs["count"] = {"Add": "breadth", "Refine": "depth"}[asked[1]], int(asked[2])
        else:
            inputs["about"] = found(r"\): (number \d+)\n")[1]
            asked = found(r"\nName (\d+) other")
            purpose, inputs["count"] = ("neighbours", int(asked[1])) if asked else ("world", 0)
    return written_repository(ModelQuestion("writer", purpose, (), inputs), 0)


@pytest.mark.slow
def test_a_served_writer_makes_the_same_tools(tmp_path):
    async def answer(request):
        question = (await request.json())["messages"][-1]["content"]
        content = f"Here it is.\n```json\n{json.dumps(written_by_text(question))}\n```"
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": {}})

    sizes = RepositoryConfig(tools=60, domain_tools=20, rounds=1)
    run(tmp_path / "program", SynthesisConfig(pipeline="tools", repository=sizes))
    with served(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as (host, port):
        writer = AskedModelConfig(url=f"http://{host}:{port}", name="writer")
        run(tmp_path / "served", SynthesisConfig(pipeline="tools", repository=sizes, models={"writer": writer}))
    assert (tmp_path / "served" / TOOLS).read_bytes() == (tmp_path / "program" / TOOLS).read_bytes()
