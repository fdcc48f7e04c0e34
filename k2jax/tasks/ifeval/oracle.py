"""The oracle of IFEval: a text that follows a task's instructions and says nothing, built feature by feature.

It follows every instruction alone, and those together of which one does not forbid what another needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.agents.environment import Message
from k2jax.agents.scaffolds.scripted import said
from k2jax.agents.task import Task

_LESS = "less than"
_TEXTS = {
    "en": "the birds sing in the garden and the people listen to them with great pleasure",
    "de": "die Vögel singen im Garten und die Menschen hören ihnen mit großer Freude zu",
    "fr": "les oiseaux chantent dans le jardin et les gens les écoutent avec grand plaisir",
    "es": "los pájaros cantan en el jardín y la gente los escucha con mucho gusto",
    "it": "gli uccelli cantano nel giardino e le persone li ascoltano con grande piacere",
    "ru": "птицы поют в саду и люди слушают их песни каждый день",
    "hi": "पक्षी बगीचे में गाते हैं और लोग उन्हें बड़े आनंद से सुनते हैं",
    "ko": "새들이 정원에서 노래하고 사람들은 큰 기쁨으로 그들의 노래를 듣는다",
}


def ifeval_answer(task: Task, messages: Sequence[Message]) -> Message:
    """An answer that follows a task's instructions.

    Raises:
        KeyError: a language of which there is no text here.
    """
    given = dict(task.metadata["instructions"])
    text = _body(given)
    if values := given.get("length_constraints:nth_paragraph_first_word"):
        parts = [text] * values["num_paragraphs"]
        parts[values["nth_paragraph"] - 1] = f"{values['first_word']} {text}"
        text = "\n\n".join(parts)
    elif values := given.get("length_constraints:number_paragraphs"):
        text = "\n***\n".join([text] * values["num_paragraphs"])
    if values := given.get("detectable_format:multiple_sections"):
        text = "\n".join(f"{values['section_spliter']} {n}\n{text}" for n in range(1, values["num_sections"] + 1))
    text = "\n".join([*_lines(given), text])
    if "detectable_format:constrained_response" in given:
        text = "My answer is yes."
    if values := given.get("detectable_content:postscript"):
        text += f"\n{values['postscript_marker']} more"
    if "combination:two_responses" in given:
        text = f"{text}\n******\n{text} again"
    return said(_finished(text, given))


def _body(given: Mapping[str, Any]) -> str:
    """Words, in sentences where those are counted."""
    language = given.get("language:response_language", {"language": "en"})["language"]
    text = _TEXTS[language]
    values = given.get("length_constraints:number_words")
    if values and values["relation"] == _LESS:
        text = " ".join(text.split()[: max(1, values["num_words"] - 1)])
    elif values:
        text = " ".join([text] * (1 + values["num_words"] // len(text.split())))
    if values := given.get("length_constraints:number_sentences"):
        text = ". ".join([text] * (1 if values["relation"] == _LESS else values["num_sentences"])) + "."
    if values := given.get("keywords:letter_frequency"):
        letter = values["letter"]
        text = (
            text.replace(letter, "")
            if values["let_relation"] == _LESS
            else f"{text} {letter * values['let_frequency']}"
        )
    if values := given.get("change_case:capital_word_frequency"):
        text += " SING" * (0 if values["capital_relation"] == _LESS else values["capital_frequency"])
    return text


def _lines(given: Mapping[str, Any]) -> list[str]:
    """What stands on lines of its own before the text."""
    lines = ["<<birds>>"] * ("detectable_format:title" in given)
    lines += given.get("keywords:existence", {"keywords": []})["keywords"]
    if values := given.get("keywords:frequency"):
        lines += [values["keyword"]] * (0 if values["relation"] == _LESS else values["frequency"])
    counts = {"placeholders": "[name]", "highlights": "*bird*", "bullets": "- bird"}
    names = {
        "placeholders": "detectable_content:number_placeholders",
        "highlights": "detectable_format:number_highlighted_sections",
        "bullets": "detectable_format:number_bullet_lists",
    }
    for kind, line in counts.items():
        lines += [line] * given.get(names[kind], {}).get(f"num_{kind}", 0)
    return lines


def _finished(text: str, given: Mapping[str, Any]) -> str:
    """The text with what stands around all of it, and in its case."""
    text = text.strip()
    if values := given.get("combination:repeat_prompt"):
        text = f"{values['prompt_to_repeat']}\n{text}"
    if values := given.get("startend:end_checker"):
        text += f"\n{values['end_phrase']}"
    if "punctuation:no_comma" in given:
        text = text.replace(",", "")
    if "startend:quotation" in given:
        text = f'"{text}"'
    if "detectable_format:json_format" in given:
        text = '{"text": "' + text.replace('"', "").replace("\n", " ") + '"}'
    if "change_case:english_capital" in given:
        return text.upper()
    return text.lower() if "change_case:english_lowercase" in given else text
