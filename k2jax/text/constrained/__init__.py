"""Text that obeys a grammar: grammars as text, and which tokens may come next.

In reading order: ``rules`` (schemas, regular expressions and lists of texts as grammars), ``matcher`` (compiles a
grammar for a vocabulary and follows it token by token). Chat formats write their calls of tools as grammars themselves,
see ``k2jax.text.call_grammars``.
"""

from k2jax.text.constrained.matcher import Grammars, Matcher
from k2jax.text.constrained.rules import CallRules, choice_rule, regex_rule, schema_rule

__all__ = [
    "CallRules",
    "Grammars",
    "Matcher",
    "choice_rule",
    "optional_calls",
    "regex_rule",
    "schema_rule",
    "tool_rules",
]
