"""Episodes with sub-agents for tests, as runs record them."""

from k2jax.trajectory import Node, Reward, Trajectory
from k2jax.trajectory.steps import AGENT, NO_CALL, ROLE, add_spawned, turns_so_far
from tests.trajectory.trees import call, message, sampled

FACTS = ("population", "area", "founding year", "mayor", "airport", "river", "sister cities", "climate")


def begun(task, instruction, role="", agent="", sample=0):
    """A trajectory with its instruction."""
    trajectory = Trajectory(task, "search", (4, 1, sample), status="finished")
    trajectory.metadata |= {ROLE: role} if role else {}
    trajectory.metadata |= {AGENT: agent} if agent else {}
    trajectory.add(Node.observed(-1, list(range(1, 9)), message("user", instruction)))
    return trajectory


def answer(trajectory, text, calls=(), results=(), tokens=12):
    """Adds an answer with its calls of tools, and their results."""
    turn, number = turns_so_far(trajectory), 100 * turns_so_far(trajectory)
    asked = [call(name, arguments, number + index) for index, (name, arguments) in enumerate(calls)]
    words = message("assistant", text, **({"tool_calls": asked} if asked else {}))
    ids = [1 + index % 7 for index in range(tokens)]
    node = trajectory.add(sampled(len(trajectory.nodes) - 1, ids, turn=turn, message=words))
    for index, result in enumerate(results):
        told = message("tool", result, name=calls[index][0], tool_call_id=asked[index]["id"])
        node = trajectory.add(Node.observed(node, [5, 6, 7], told))
    return node


def searcher(name, steps, *, status="finished", role="worker", fact="population"):
    """A sub-agent that searches so many steps."""
    trajectory = begun(f"cities/{name}", f"Look up the {fact} of every city.", role, name)
    trajectory.status = status
    trajectory.error = "the engine of its role was lost" if status == "masked" else ""
    for step in range(steps - 1):
        answer(trajectory, "", [("search", f'{{"query": "{fact} {step}"}}')], [f"page {step}"], tokens=20 + 5 * step)
    answer(trajectory, f"{fact}: found", tokens=30)
    return trajectory


def assigned(trajectory, children, text=""):
    """Adds an answer that assigns a task to each child, and what each returns."""
    calls = [("assign_task", f'{{"agent": "{child.metadata.get(AGENT)}"}}') for child in children]
    first, turn = len(trajectory.spawned), turns_so_far(trajectory) + 1
    answer(trajectory, text, calls, [child.answer or child.error for child in children], tokens=15 * len(children))
    for index, child in enumerate(children):
        add_spawned(trajectory, first + index, (turn, index), child)


def swarm(sample=0):
    """Eight agents below an orchestrator on three stages: one failed, one was cut, one is another's."""
    main = begun("cities", "Make a table of 40 cities with population, area, mayor and river.", "policy", sample=sample)
    main.reward = Reward(0.8, {"item_f1": 0.8})
    created = [("create_subagent", f'{{"name": "{name}"}}') for name in ("counter", "surveyor", "clerk")]
    answer(main, "", created, ["created"] * 3)
    surveyor = begun("cities/surveyor", "Find the area of every city; divide the work.", "worker", "surveyor")
    assigned(surveyor, [searcher("surveyor of the north", 5, role="reader", fact="area")])
    answer(surveyor, "", [("python", '{"code": "merge()"}')], ["40 rows"])
    answer(surveyor, "area: 40 rows")
    clerk = searcher("clerk", 3, status="masked", fact="mayor")
    assigned(main, [searcher("counter", 7), surveyor, clerk])
    answer(main, "", [("search", '{"query": "list of mayors"}')], ["a page"])
    cut = searcher("hydrologist", 9, status="truncated", fact="river")
    assigned(main, [searcher("clerk of the south", 4, fact="mayor"), cut, searcher("pilot", 6, fact="airport")])
    assigned(main, [searcher("checker", 3, role="reader", fact="climate")])
    answer(main, "| city | population |", tokens=60)
    return main


def serial(sample=0):
    """An orchestrator that waits for one sub-agent after the other."""
    main = begun("chain", "Who taught the architect of the tallest tower?", "policy", sample=sample)
    for index, steps in enumerate((3, 4, 2, 5)):
        assigned(main, [searcher(f"step {index + 1}", steps, fact=FACTS[index])])
    answer(main, "the teacher", tokens=10)
    main.reward = Reward(1.0)
    return main


def unspawned(trajectory):
    """Adds a sub-episode that the environment spawned before any answer."""
    add_spawned(trajectory, len(trajectory.spawned), (0, NO_CALL), searcher("user", 2, role="user"))
    return trajectory
