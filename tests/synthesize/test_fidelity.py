"""The check of rephrasings without a model, on planted infidelities in wordings that nothing but this file knows."""

import random

import pytest

from k2jax.synthesize.rephrase.chunks import chunked
from k2jax.synthesize.rephrase.fidelity import infidelities
from k2jax.text.sentences import sentences_of
from k2jax.text.text_content import content_of, equations_of, plain_marks

SHIPS = ("Meridian", "Calypso", "Northwind", "Halcyon", "Petrel", "Sirocco", "Orion", "Albatross")
PORTS = ("Lisbon", "Bergen", "Valparaiso", "Odessa", "Nagasaki", "Trieste", "Galveston", "Hobart")
PEOPLE = ("Ada Lindgren", "Tomas Berger", "Ewa Nowak", "Hugo Salas", "Ines Duarte", "Pavel Orlov", "Mae O'Hara")
CARGO = ("timber", "copper", "oranges", "porcelain", "wool", "machinery", "saffron", "grain")
SHIP = {
    "built": ("The {ship} was launched at {port} in {year}.",
              "Launched in {year}, the {ship} first touched water at {port}.",
              "{port} saw the {ship} slide into the sea in {year}.",
              "Shipwrights at {port} finished the {ship} in {year}."),
    "captain": ("Her first captain was {person}, who commanded {count} sailors.",
                "Under {person}, her first captain, {count} sailors served.",
                "{person} was first to command her, with a crew of {count} sailors.",
                "Command fell to {person} at first; {count} sailors obeyed."),
    "length": ("She measured {length} metres from bow to stern.",
               "From bow to stern it was {length} metres.",
               "Anyone who paced the deck counted {length} metres.",
               "Measured end to end, her hull came to {length} metres."),
    "cargo": ("For most of her life she carried {cargo}.",
              "Mostly it was {cargo} that filled her hold.",
              "Her usual freight: {cargo}.",
              "Merchants filled her with {cargo} year after year."),
    "storm": ("In {storm} a storm drove her ashore near {coast}.",
              "A storm near {coast} put her aground in {storm}.",
              "Disaster came in {storm}, when heavy weather threw her on the rocks off {coast}.",
              "Then, in {storm}, the coast at {coast} claimed her during a gale."),
    "sold": ("The wreck was sold for {price} crowns.",
             "Salvagers paid {price} crowns for what was left.",
             "What remained of the wreck fetched {price} crowns.",
             "Nobody offered more than {price} crowns for the remains."),
}  # fmt: skip
OBSERVATORY = {
    "founded": (
        "{person} founded the observatory of {port} in {year}.",
        "The observatory of {port} goes back to {person} and the year {year}.",
        "Astronomers owe the observatory of {port} to {person}: it opened in {year}.",
    ),
    "mirror": (
        "Its mirror is {length} centimetres wide.",
        "Light falls on a mirror of {length} centimetres.",
        "Across, the mirror measures {length} centimetres.",
    ),
    "staff": (
        "A staff of {count} works there by night.",
        "Nights there belong to {count} members of staff.",
        "Employees number {count}, all of them at work by night.",
    ),
    "comet": (
        "In {storm} the comet {ship} was seen there for the first time.",
        "Comet {ship} was first spotted there in {storm}.",
        "Observers first caught sight of the comet {ship} in {storm}.",
    ),
    "shop": ("The shop sells {cargo}.", "Tourists take {cargo} home from the shop.", "Visit the shop for {cargo}."),
    "ticket": ("A ticket costs {price} crowns.", "Admission is {price} crowns a ticket.", "Tickets: {price} crowns."),
}
TOPICS = {"ship": SHIP, "observatory": OBSERVATORY}
LEADS = (
    "",
    "Sailors still tell this story. ",
    "Dear reader, listen closely. ",
    "Question: what became of her? Answer: ",
)


def drawn(rng):
    port, coast = rng.sample(PORTS, 2)
    count, length, price = rng.sample(range(20, 400), 3)
    return {
        "ship": rng.choice(SHIPS), "port": port, "coast": coast, "person": rng.choice(PEOPLE), "count": count,
        "length": length, "cargo": rng.choice(CARGO), "price": f"{price * 13:,}", "year": rng.randint(1801, 1850),
        "storm": rng.randint(1851, 1899),
    }  # fmt: skip


def source(topic, values):
    return " ".join(wordings[0].format(**values) for wordings in TOPICS[topic].values())


def rephrased(topic, values, rng, left_out=""):
    forms = {form: wordings for form, wordings in TOPICS[topic].items() if form != left_out}
    order = rng.sample(list(forms), len(forms))
    return rng.choice(LEADS) + " ".join(rng.choice(forms[form][1:]).format(**values) for form in order)


def planted(topic, kind, values, rng):
    """A rephrasing with one infidelity."""
    if kind == "omission":
        return rephrased(topic, values, rng, left_out=rng.choice(list(TOPICS[topic])))
    pools = [("port", PORTS), ("ship", SHIPS), ("person", PEOPLE)]
    key, pool = rng.choice([*pools, ("coast", PORTS)] if topic == "ship" else pools)
    if kind == "changed number":
        key = rng.choice(("year", "count", "length", "price", "storm"))
        number = int(str(values[key]).replace(",", ""))
        changed = number + rng.choice((-1, 1)) * rng.randint(1, 9)
        return rephrased(topic, {**values, key: f"{changed:,}" if key == "price" else changed}, rng)
    others = [one for one in pool if one not in values.values()]
    return rephrased(topic, {**values, key: rng.choice(others)}, rng)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("kind", ["changed name", "changed number", "omission"])
def test_planted_infidelities_are_caught(topic, kind, capsys):
    rng, count = random.Random(f"{topic} {kind}"), 60
    caught = named = 0
    for _ in range(count):
        values = drawn(rng)
        found = infidelities(source(topic, values), planted(topic, kind, values, rng))
        caught += bool(found)
        named += kind in [one.kind for one in found]
    with capsys.disabled():
        print(f"\n{topic}, {kind}: {caught / count:.3f} caught, {named / count:.3f} by this name")
    assert caught >= 0.95 * count and named >= 0.8 * count


@pytest.mark.parametrize("topic", TOPICS)
def test_faithful_rephrasings_raise_few_alarms(topic, capsys):
    rng, count, alarms = random.Random(f"faithful {topic}"), 100, []
    for _ in range(count):
        values = drawn(rng)
        alarms += infidelities(source(topic, values), rephrased(topic, values, rng))[:1]
    with capsys.disabled():
        print(f"\n{topic}: {len(alarms) / count:.3f} false alarms {sorted({one.what for one in alarms})[:5]}")
    assert len(alarms) <= 0.05 * count


def test_values_that_have_changed_places_are_found():
    text = "Ada Lindgren left in 1901. Hugo Salas left in 1950."
    assert not infidelities(text, "In 1901 Ada Lindgren went away, and in 1950 Hugo Salas did.")
    assert [one.kind for one in infidelities(text, "In 1950 Ada Lindgren went. In 1901 Hugo Salas went.")] == [
        "mixed up", "mixed up",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("However, the Petrel sank.", {"Petrel"}),
        ("\u201cRising early, she left,\u201d wrote O\u2019Hara.", {"O'Hara", "?Rising"}),
        ("Bergen is wet. Rain falls there; I like Bergen.", {"Bergen", "?Rain"}),
        (
            "Bergen's rain. Twenty-one men and Ewa Nowak left. Pavel Orlov too.",
            {"Bergen", "Ewa", "Nowak", "Pavel", "Orlov"},
        ),
        ("Sailors left. All sailors did. In Hobart, Pavel stayed.", {"Hobart", "Pavel"}),
        ("", set()),
    ],
)
def test_names_are_words_in_capitals_but_those_that_begin_a_sentence_are_doubtful(text, names):
    content = content_of(plain_marks(text))
    assert content.names | {f"?{word}" for word in content.doubtful} == names


def test_a_name_that_is_changed_once_is_found_at_the_beginning_of_a_sentence():
    text = "Ada Lindgren left in 1901. Ada Lindgren had 14 hives. Ada Lindgren sold them for 310 crowns."
    right = "In 1901 Ada Lindgren went away. Lindgren had 14 hives. Buyers gave her 310 crowns for them."
    assert not infidelities(text, right)
    assert not infidelities(text, right.replace("Lindgren had", "Honey came from her"))
    found = infidelities(text, right.replace("Lindgren had", "Berger had"))
    assert [one.kind for one in found] == ["changed name"] and "became Berger" in found[0].what


def test_numbers_are_compared_however_they_are_written():
    assert not infidelities("It cost 12,500 crowns and 21 geese.", "The cost: 12500 crowns and twenty-one geese.")
    assert not infidelities("There were three hundred and five.", "Of them there were 305.")
    assert infidelities("There were three hundred and five.", "Of them there were 306.")


def test_mathematics_keeps_its_equations_in_any_language():
    german = "Man löse 3x + 5 = 20. Es folgt 3x = 15, also x = 5."
    ours = "Start: 3x+5 = 20. Take 5 away, so 3x = 15; hence x = 5."
    assert not infidelities(german, ours, compares_words=False)
    found = infidelities(german, ours.replace("15", "16"), compares_words=False)
    assert found[0].kind == "changed equation" and "3x=15 became 3x=16" in found[0].what
    assert infidelities(german, ours.replace("so 3x = 15; ", ""), compares_words=False)[0].kind == "omission"
    assert equations_of("Since a 3x = 15, -2 \u2212 x = (4 - 1).") == {"3x=15", "-2-x=(4-1)"}


@pytest.mark.parametrize("text", ["(" * 9000, "1 = " * 9000, "A" * 50_000, "A b. " * 3000, "two " * 9000])
def test_what_a_model_writes_costs_no_more_than_its_length(text):
    import time

    began = time.process_time()
    infidelities("Ada Lindgren left in 1901.", text)
    assert time.process_time() - began < 1.0


def test_sentences_and_chunks_are_the_whole_text():
    text = 'Dr. Ewa Nowak left. J. K. Berger stayed in St. Johns! "Why?" he asked.\n\nNobody knew 3.5 reasons.'
    parts = sentences_of(text)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert parts[0] == "Dr. Ewa Nowak left." and parts[1] == "J. K. Berger stayed in St. Johns!"
    for words in (1, 3, 8, 1000):
        groups = chunked(parts, words)
        assert [number for group in groups for number in group] == list(range(len(parts))) and all(groups)
    assert len(chunked(parts, 1000)) == 1 and len(chunked(parts, 8)) > 1
