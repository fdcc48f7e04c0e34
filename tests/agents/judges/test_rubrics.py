import pytest

from k2jax.agents.judges.rubrics import Rubric, load_rubrics, rubrics_for
from k2jax.agents.task import Task
from k2jax.errors import UserError


def task(task_id="t", domain="letters", **metadata):
    return Task(task_id, domain, ({"role": "user", "content": "Write a letter."},), "", metadata=metadata)


def test_the_packaged_rubrics_have_core_values_and_rules_against_pleasing_a_judge():
    rubrics = load_rubrics()
    assert {rubric.kind for rubric in rubrics} == {"core", "prescriptive"}
    assert all(rubric.mandatory for rubric in rubrics if rubric.kind == "prescriptive")
    assert all("\n" not in rubric.text and len(rubric.text) > 40 for rubric in rubrics)


def test_a_prompt_gets_the_rubrics_of_its_domain_one_of_each_group_and_its_own_last():
    rubrics = (
        Rubric("all", "core", "x"),
        Rubric("letters", "human", "x", domains=("letters",)),
        Rubric("sums", "human", "x", domains=("sums",)),
        *(Rubric(f"tone{number}", "core", "x", group="tone") for number in range(3)),
    )
    chosen = {rubrics_for(task(str(number), rubric="Mention a cat."), rubrics) for number in range(40)}
    tones = {rubrics[-1].name for rubrics in [of[:-1] for of in chosen]}
    assert tones == {"tone0", "tone1", "tone2"}
    for of in chosen:
        assert [rubric.name for rubric in of[:2]] == ["all", "letters"] and len(of) == 4
        assert of[-1] == Rubric("task", "human", "Mention a cat.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- name: a\n  kind: core\n", "rubric 1 of .* needs 'text'"),
        ("- name: a\n  kind: cora\n  text: x\n", "of kind 'cora'; write core, prescriptive, human"),
        ("- name: a\n  kind: core\n  text: x\n  mandatry: true\n", "unknown key 'mandatry'; did you mean 'mandatory'"),
        ("- name: a\n  kind: core\n  text: x\n  mandatory: 3\n", "mandatory is 3; write true or false"),
        ("- name: a\n  kind: core\n  text: x\n  domains: all\n", "domains are 'all'; write a list"),
        ("- {name: a, kind: core, text: x}\n- {name: a, kind: core, text: y}\n", "two rubrics have the name 'a'"),
        ("name: a\n", "must be a YAML list"),
        ("- [\n", "no YAML, see line"),
        ("- just text\n", "'just text'; it needs name, kind and text"),
    ],
)
def test_mistakes_in_a_file_are_one_line_that_names_it(tmp_path, text, words):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UserError, match=words) as error:
        load_rubrics([str(tmp_path / "r.yaml")])
    assert "r.yaml" in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_and_a_task_s_rubric_that_is_no_text_are_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the rubrics .*none.yaml: No such file"):
        load_rubrics([str(tmp_path / "none.yaml")])
    with pytest.raises(UserError, match="the rubric of the task 't' is 3"):
        rubrics_for(task(rubric=3), ())
