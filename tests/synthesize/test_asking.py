"""Questions of one record: structured answers, repairs, and answers that are replayed."""

import asyncio
import json

import pytest

from k2jax.client.text_apis import ChatReply
from k2jax.errors import UserError
from k2jax.synthesize.asking import MALFORMED, Asker, read_object
from k2jax.synthesize.questions import ChaosModel, EndpointModel, ProgramModel
from k2jax.synthesize.stages import DroppedError

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


class Says:
    """Gives answers in order, and notes what it was asked."""

    name = "says"

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def model(self):
        def answer(question, seed):
            self.asked.append((question, seed))
            return {"content": self.answers.pop(0)}

        return ProgramModel(self.name, answer)


def ask(says, **options):
    asker = Asker({"writer": says.model()}, "record")
    messages = [{"role": "user", "content": "A number, please."}]
    return asker, asyncio.run(asker.ask_object("writer", "number", messages, SCHEMA, **options))


@pytest.mark.parametrize("text", ['{"n": 3}', 'Here it is:\n```json\n{"n": 3}\n```', '```\n{"n": 3}\n```\nDone.'])
def test_an_object_is_read_where_it_stands(text):
    assert ask(Says(text))[1] == {"n": 3}


def test_a_wrong_answer_is_asked_for_again_with_the_reason():
    says = Says('{"n": "three"}', '{"n": 3}')
    asker, value = ask(says)
    assert value == {"n": 3} and len(asker.calls) == 2
    repeated = says.asked[1][0].messages
    assert repeated[1]["content"] == '{"n": "three"}' and "'three' is not of type 'integer'" in repeated[2]["content"]
    assert says.asked[0][1] != says.asked[1][1]  # another seed, or the same answer would come again


def test_a_second_wrong_answer_drops_the_record():
    with pytest.raises(DroppedError, match=MALFORMED):
        ask(Says("I cannot help with that.", "[1, 2]"))


def test_what_cannot_be_used_is_told_too():
    def check(value):
        if value["n"] < 5:
            raise UserError("n is too small")

    says = Says('{"n": 3}', '{"n": 7}')
    assert ask(says, check=check)[1] == {"n": 7}
    assert "n is too small" in says.asked[1][0].messages[-1]["content"]


@pytest.mark.parametrize("text", ["", "null", "[" * 10_000, '{"n": 1e400}', '{"n": 1, "n":', "\ud800"])
def test_what_is_no_object_is_said_in_one_line(text):
    with pytest.raises(ValueError) as error:
        read_object(text, SCHEMA)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_answers_are_replayed_by_the_content_of_their_questions():
    says = Says('{"n": 3}')
    asker, _ = ask(says)
    kept = {call.key: call.reply for call in asker.calls}
    again = Asker({"writer": says.model()}, "record", kept.get)
    messages = [{"role": "user", "content": "A number, please."}]
    assert asyncio.run(again.ask_object("writer", "number", messages, SCHEMA)) == {"n": 3}
    other = Asker({"writer": says.model()}, "other record", kept.get)
    with pytest.raises(UserError, match="no answer of the role writer to number is kept"):
        asyncio.run(other.ask("writer", "number", messages))


def test_a_role_that_nobody_plays_is_named():
    with pytest.raises(UserError, match=r"no model plays the role 'judge'.*config\.models\.judge"):
        asyncio.run(Asker({}, "record").ask("judge", "verdict", []))


def test_chaos_has_its_rates():
    model = ChaosModel(ProgramModel("p", lambda question, seed: {"content": json.dumps({"n": seed})}), 0.4)

    async def replies():
        found = []
        for seed in range(3000):
            try:
                found.append((await model.reply(None, seed)).text)
            except Exception as error:
                found.append(type(error).__name__)
        return found

    model._model.reply = _plain(model._model)
    import k2jax.synthesize.questions as questions

    questions._SECONDS, seconds = 0.0, questions._SECONDS
    try:
        found = asyncio.run(replies())
    finally:
        questions._SECONDS = seconds
    counts = [
        found.count("ServerFailedError"),
        sum("cannot" in one for one in found),
        sum("}{" in one for one in found),
    ]
    assert all(230 < count < 370 for count in counts), counts


def _plain(model):
    from k2jax.synthesize.questions import Reply

    async def reply(question, seed):
        return Reply({"role": "assistant", "content": json.dumps({"n": seed})})

    return reply


@pytest.mark.parametrize("sends_schema", [False, True])
def test_a_schema_goes_to_servers_that_constrain_their_sampling(sends_schema):
    asked = []

    class Endpoint:
        model = "m"

        async def reply(self, fields):
            asked.append(fields)
            return ChatReply({"role": "assistant", "content": '{"n": 3}'}, "stop", 1, 1)

    asker = Asker({"writer": EndpointModel(Endpoint(), {"temperature": 0.0}, sends_schema)}, "record")
    assert asyncio.run(asker.ask_object("writer", "number", [], SCHEMA)) == {"n": 3}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": SCHEMA}}
    assert asked[0].get("response_format") == (form if sends_schema else None)
