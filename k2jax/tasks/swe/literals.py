"""Runs inside sandboxes, as text, with the standard library: literals of a Python module, and others in their place."""

import ast
import random
import re

draw = random.SystemRandom()
TOLERANCES = (
    "rtol",
    "atol",
    "rel",
    "abs",
    "places",
    "delta",
    "msg",
    "err_msg",
    "decimal",
    "dtype",
    "verbose",
    "reason",
)


class TestModule:
    """The text of a module, and changes of its parts."""

    def __init__(self, data: bytes):
        """Raises SyntaxError or ValueError where it is no module of this Python."""
        self.data, self.tree = data, ast.parse(data)
        data.decode()
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.texts = [
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) < 30
        ]
        self.words = sorted({word.lower() for text in self.texts for word in re.findall(r"[A-Za-z]{3,12}", text)})

    def span(self, node: ast.AST) -> tuple:
        """First byte and end of a node."""
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.AST) -> str:
        """The text of a node."""
        begin, end = self.span(node)
        return self.data[begin:end].decode()

    def between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> list:
        """The change of an operator between two nodes; none where it is not written plainly."""
        begin, end = self.span(left)[1], self.span(right)[0]
        text = self.data[begin:end].decode()
        return [(begin, end, text.replace(old, new))] if text.count(old) == 1 and "#" not in text else []

    def other_value(self, node: ast.AST) -> list:
        """The change of one literal in an expression; none where it has none that can be changed."""
        changes = [(*self.span(leaf), new) for leaf in leaves(node) for new in [self.other_literal(leaf)] if new]
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)) and not leaves(node):
            empty = {"[]": "[0]", "()": "(0,)", "{}": "{'a': 1}"}.get(re.sub(r"\s", "", self.text(node)))
            changes = [(*self.span(node), empty)] if empty else []
        return [draw.choice(changes)] if changes else []

    def other_literal(self, leaf: ast.Constant) -> str:
        """Another literal in the place of one; empty where none is plausible."""
        text, value = self.text(leaf), leaf.value
        if value is True or value is False or value is None:
            return draw.choice({True: ["False"], False: ["True"], None: ["0", "''", "[]"]}[value])
        if isinstance(value, (int, float)):
            return other_number(text, value)
        return self.other_string(text, value) if isinstance(value, (str, bytes)) else ""

    def other_string(self, text: str, value) -> str:
        """A literal of a text with another word, letter or digit, or of another text of the module."""
        places = letters_of(text)
        if places and draw.random() < 0.9:
            place = draw.choice(places)
            begin, end = place, place + 1
            while begin - 1 in places and text[begin - 1].isalpha() and text[place].isalpha():
                begin -= 1
            while end in places and text[end].isalpha() and text[place].isalpha():
                end += 1
            return text[:begin] + self.other_word(text[begin:end]) + text[end:]
        as_text = value.decode("latin-1") if isinstance(value, bytes) else value
        other = draw.choice([other for other in (*self.texts, "ab", "ba") if other != as_text])
        return repr(other.encode() if isinstance(value, bytes) else other)

    def other_word(self, word: str) -> str:
        """A word of the module in the place of one; another letter or digit in the place of one or two."""
        if len(word) > 2:
            words = [other for other in self.words if other.lower() != word.lower()] or ["other"]
            other = draw.choice(words)
            return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other
        letters = "0123456789" if word[0].isdigit() else "abcdefghijklmnopqrstuvwxyz"
        letters = letters.upper() if word[0].isupper() else letters
        return draw.choice(letters.replace(word[0], "")) + word[1:]


def other_number(text: str, value) -> str:
    """A literal of a number next to another one: one of its leading digits is one more or less."""
    if isinstance(value, int) and 0 <= value < 10 and text == str(value):
        return str(value + 1) if value == 0 else str(value + draw.choice((-1, 1)))
    mantissa = re.split(r"[eEjJ]", text)[0] if not text.lower().startswith(("0x", "0b", "0o")) else ""
    places = [place for place, sign in enumerate(mantissa) if sign.isdigit()]
    leading = [place for place in places if mantissa[: place + 1].strip("0._")][:2]
    if not leading:
        return f"1{text.lstrip('0')}" if mantissa else str(value + 1)
    place = draw.choice(leading)
    digit = int(text[place])
    digit += draw.choice([step for step in (-1, 1) if 0 <= digit + step <= 9 and (digit + step or place != leading[0])])
    return f"{text[:place]}{digit}{text[place + 1 :]}"


def letters_of(text: str) -> list:
    """Places of letters and digits in the literal of a text, without its prefix, quotes and escapes."""
    head = re.match(r"[A-Za-z]*('''|\"\"\"|'|\")", text)
    if not head or text.count(head.group(1)) != 2:
        return []  # several literals, one after the other
    raw, places, place, end = "r" in head.group(0).lower(), [], head.end(), len(text) - len(head.group(1))
    while place < end:
        escape = re.compile(r"\\(N\{[^}]*\}|u\w{4}|U\w{8}|x\w\w|[0-7]{1,3}|.)", re.DOTALL).match(text, place)
        if escape:
            place = min(escape.end() if not raw else place + 2, end)
            continue
        if text[place].isascii() and text[place].isalnum():
            places.append(place)
        place += 1
    return places


def leaves(node: ast.AST) -> list:
    """Literals in an expression, without those that say how exactly it is compared."""
    if isinstance(node, ast.Constant):
        return [node]
    if isinstance(node, ast.JoinedStr):
        return []
    children = [
        child
        for child in ast.iter_child_nodes(node)
        if not (isinstance(child, ast.keyword) and child.arg in TOLERANCES)
    ]
    return [leaf for child in children for leaf in leaves(child)]


def name_of(node: ast.AST) -> str:
    """The last name of what is called; empty where it has none."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_literal(node: ast.AST) -> bool:
    """Whether an expression is made of literals alone."""
    try:
        ast.literal_eval(node)
        return True
    except (ValueError, TypeError):
        return False


def values_of_parameter(function: ast.AST, name: str) -> list:
    """What a parameter of a test is in each row of its decorator; none where that is not written as a list."""
    for decorator in function.decorator_list:
        if name_of(decorator) != "parametrize" or len(getattr(decorator, "args", ())) < 2:
            continue
        names, rows = decorator.args[:2]
        if not is_literal(names) or not isinstance(rows, (ast.List, ast.Tuple)):
            continue
        names = ast.literal_eval(names)
        names = re.findall(r"\w+", names) if isinstance(names, str) else list(names)
        if name in names:
            cells = []
            for row in rows.elts:
                several = row.args if name_of(row) == "param" else getattr(row, "elts", [])
                cells.append([row] if len(names) == 1 and name_of(row) != "param" else several)
            return [cell[names.index(name)] for cell in cells if len(cell) > names.index(name)]
    return []
