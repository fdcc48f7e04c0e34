"""Near-duplicates of tools that are planted at five strengths, and tools of the same words that do something else.

Nothing of the search for near-duplicates is used here: copies are made by tables of words and by rewritings of the
semantics that are right by the language's definition.
"""

from collections.abc import Mapping
import copy
import json
import random
import re

STRENGTHS = ("identical", "renamed", "reworded", "reworded and renamed", "paraphrased, other schema")
BEYOND = "synonyms for all that it is about"
"""A sixth strength, which is measured and not asked for."""
WORDS = {
    "shows": ("displays", "retrieves"), "lists": ("returns", "gives a list of"), "changes": ("modifies", "updates"),
    "removes": ("deletes", "erases"), "raises": ("increases", "adds to"), "lowers": ("decreases", "reduces"),
    "moves": ("transfers", "shifts"), "closes": ("ends", "finishes"), "cancels": ("calls off", "revokes"),
    "opens": ("starts", "creates"), "sets": ("puts", "adjusts"), "registers": ("enrolls", "signs in"),
    "adds": ("inserts", "puts in"), "records": ("notes", "writes in"), "tells": ("reports", "says"),
    "another": ("a different", "some other"), "somebody": ("a person", "someone"), "all": ("every one of the", "the"),
    "amount": ("quantity", "number"), "given": ("specified", "stated"), "needs": ("requires", "has to have"),
    "how many": ("the number of", "what quantity of"), "who": ("the person who", "which person"),
}  # fmt: skip
OBJECTS = {
    "second-hand": "used", "large": "big", "broken": "defective", "price": "cost", "owner": "proprietor",
    "place": "location", "rented": "leased", "antique": "vintage", "urgent": "pressing", "weight": "mass",
    "technician": "engineer", "booking": "reservation", "complaint": "grievance", "clerk": "employee",
    "bicycle": "bike",
    "label": "tag", "supplier": "vendor", "duration": "length of time", "reason": "cause", "note": "remark",
}  # fmt: skip
PHRASES = (
    (r"^Makes (an? .+?) that is (\w+) (\w+)", r"Turns \1 from \2 into \3"),
    (r"^Gives (an? .+?) another (\w+)", r"Replaces the \2 of \1"),
    (r"^Gives (an? .+?) the (\w+) of another one", r"Copies the \2 of one \1 to a different one"),
    (r"^Looks (an? .+?) up by its id", r"Retrieves \1 with the given identifier"),
    (r"by an amount (in \w+)", r"by as much as is asked for, \1"),
    (r", if its ([\w ]+) is at least a given number", r", provided that the \1 is not below a threshold"),
    (r", if its ([\w ]+) is at most a given number", r", provided that the \1 is not above a threshold"),
    (r", if its ([\w ]+) is the (given|expected) one", r", only when the \1 matches what is \2"),
    (r", and writes the ([\w ]+) down", r", and notes the \1"),
    (r"Makes another (.+) like one that exists", r"Creates a copy of an existing \1"),
)
PARAMETERS = (
    ("_id", "_key"),
    ("_id", "_number"),
    ("amount", "quantity"),
    ("expected_", "required_"),
    ("least_", "min_"),
)
VERBS = {
    "get": "fetch", "find": "search", "list": "enumerate", "change": "edit", "remove": "delete", "raise": "increase",
    "lower": "decrease", "copy": "duplicate", "register": "enroll", "add": "insert", "enter": "put_in",
    "tell": "report",
    "move": "shift", "open": "create", "close": "finish", "book": "reserve", "cancel": "revoke", "assign": "hand",
    "transfer": "send", "record": "note_down", "take_over": "adopt", "freeze": "block", "unfreeze": "unblock",
}  # fmt: skip


def planted(tool: Mapping, strength: int, rng: random.Random) -> dict:
    """A tool that does the same as another one; ``strength`` is a place of ``STRENGTHS``, or 5: ``BEYOND``."""
    made = copy.deepcopy(dict(tool))
    if strength in (1, 3, 4, 5):
        made = renamed(made, rng)
    if strength >= 2:
        made["description"] = reworded(made["description"], rng, objects=strength >= 4)
    if strength >= 3:
        for field in made["parameters"].values():
            if "description" in field:
                field["description"] = reworded(field["description"], rng, objects=strength >= 4)
        items = list(made["parameters"].items())
        rng.shuffle(items)
        made["parameters"] = dict(items)
    made = _of_other_objects(made) if strength == 5 else made
    return other_schema(made, rng) if strength >= 4 else made


def _of_other_objects(tool: dict) -> dict:
    """Other words for what a tool is about, wherever they stand: also in the names of collections and fields."""
    text = json.dumps(tool)
    for word, other in OBJECTS.items():
        text = re.sub(rf"(?<![a-z]){word.replace('-', '.')}(?=s?[^a-z])", other.replace(" ", "_"), text)
    return json.loads(text)


def reworded(text: str, rng: random.Random, objects: bool = False) -> str:
    for pattern, by in PHRASES:
        text = re.sub(pattern, by, text)
    for word, others in WORDS.items():
        text = re.sub(rf"(?i)\b{word}\b", lambda _, others=others: rng.choice(others), text)
    if objects:
        for word, other in OBJECTS.items():
            text = re.sub(rf"\b{word}\b", other, text)
    return text[:1].upper() + text[1:]


def renamed(tool: dict, rng: random.Random) -> dict:
    """Other names of the tool, its parameters, and the collections and fields that it works on."""
    verb = next((verb for verb in sorted(VERBS, key=len, reverse=True) if tool["name"].startswith(f"{verb}_")), "")
    name = f"{VERBS[verb]}{tool['name'][len(verb) :]}" if verb else f"do_{tool['name']}"
    parameters = {}
    for old in tool["parameters"]:
        new = next((old.replace(a, b) for a, b in rng.sample(PARAMETERS, len(PARAMETERS)) if a in old), f"the_{old}")
        parameters[old] = new
    semantics = {key: tool[key] for key in ("requires", "effects", "returns")}
    renamed = _renamed(semantics, parameters)
    fields = {parameters[old]: field for old, field in tool["parameters"].items()}
    style = rng.random() < 0.3
    name = re.sub(r"_(\w)", lambda found: found[1].upper(), name) if style else name
    return {**tool, **renamed, "name": name, "parameters": fields}


def _renamed(value, parameters):
    if isinstance(value, list):
        return [_renamed(part, parameters) for part in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, part in value.items():
        if key in ("arg", "given"):
            made[key] = parameters[part]
        elif key in ("exists", "record", "delete", "find", "create", "field", "set"):
            made[key] = [f"{part[0]}_table", *(_renamed(each, parameters) for each in part[1:])]
        elif key == "new":
            made[key] = f"{part}_table"
        else:
            made[key] = _renamed(part, parameters)
    return made


def other_schema(tool: dict, rng: random.Random) -> dict:
    """The same semantics in another form."""
    rng.shuffle(tool["requires"])
    for required in tool["requires"]:
        condition = required["condition"]
        if "equal" in condition and rng.random() < 0.7:
            required["condition"] = {"equal": condition["equal"][::-1]}
        elif "at_least" in condition and rng.random() < 0.5:
            required["condition"] = {"not": {"not": condition}}
    change = rng.choice(("number", "unused", "joined"))
    if change == "unused":
        tool["parameters"]["request_id"] = {"type": "string", "description": "For the log.", "optional": True}
    if change == "joined" and len(tool["requires"]) > 1:
        joined = {"all": [required["condition"] for required in tool["requires"]]}
        tool["requires"] = [{"condition": joined, "error": "it cannot be done"}]
    for field in tool["parameters"].values():
        if field["type"] == "integer":
            field["type"] = "number"
    return tool


def hard_negative(tool: Mapping, rng: random.Random) -> dict | None:
    """A tool in the same or close words that does something else; None where this one has nothing to change."""
    made = copy.deepcopy(dict(tool))
    ways = []
    if '"plus"' in json.dumps(made["effects"]) or '"minus"' in json.dumps(made["effects"]):
        ways.append("sign")
    guards = [required for required in made["requires"] if "exists" not in required["condition"]]
    is_refined = re.search("_with_(least|most)_|_expecting_", made["name"])  # of which the guard is all there is to it
    ways += ["negated", *([] if is_refined else ["unguarded"])] if guards else []
    ways += ["deletes"] if made["effects"] and "set" in made["effects"][0] else []
    ways += ["constant"] if made["effects"] and isinstance(made["effects"][0].get("set", [0])[-1], str) else []
    if not ways:
        return None
    way = rng.choice(ways)
    if way == "sign":
        swapped = {"plus": "minus", "minus": "plus"}
        text = re.sub(r'"(plus|minus)"', lambda found: f'"{swapped[found[1]]}"', json.dumps(made["effects"]))
        made["effects"] = json.loads(text)
    elif way == "unguarded":
        made["requires"].remove(rng.choice(guards))
    elif way == "negated":
        guard = rng.choice(guards)
        guard["condition"] = {"not": guard["condition"]}
    elif way == "deletes":
        made["effects"][0] = {"delete": made["effects"][0]["set"][:2]}
    else:
        made["effects"][0]["set"][-1] = "withdrawn"
    made["name"] = f"{made['name']}_now"
    made["description"] = reworded(made["description"], rng) if rng.random() < 0.5 else made["description"]
    return made
