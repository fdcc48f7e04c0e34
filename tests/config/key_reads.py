"""Which keys of a configuration source code reads: the types of expressions are followed through its syntax trees.

A key is read where an attribute of its name is loaded from an expression whose type is the key's group. Types come
from the annotations of parameters, results and fields, from what variables and attributes are assigned, and from there
along every chain of attributes. The same name on a value of another type says nothing, and neither does an assignment.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
import dataclasses
import typing

from k2jax.config.fields import group_of, hints_of, mapping_of

Types = frozenset[str]
"""Names of classes; "[]X" is a sequence of X, "{}X" a mapping by name, "()X" its items."""
NONE: Types = frozenset()
_SEQUENCES = {"list", "tuple", "Sequence", "Iterable", "Iterator", "Collection", "set", "Generator"}
_MAPPINGS = {"dict", "Mapping", "MutableMapping", "defaultdict"}
_COPIES = {"replace", "replace_keys"}  # their result has the type of their first argument
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def groups_below(cls: type) -> dict[str, type]:
    """All groups of keys of a configuration, itself included, by the names of their classes."""
    groups = {cls.__name__: cls}
    for hint in hints_of(cls).values():
        if inner := group_of(hint) or mapping_of(hint):
            groups |= groups_below(inner)
    return groups


def unread_keys(config: type, sources: Iterable[str], properties: Iterable[str] = ()) -> set[str]:
    """The keys below ``config``, as "GROUP.field", that no source reads.

    Args:
        config: the class of the whole configuration.
        sources: texts of Python files.
        properties: texts of the files that declare the groups: what a property reads counts where it is used.
    """
    groups, declared = groups_below(config), [ast.parse(text) for text in properties]
    index = _Index(groups, [*map(ast.parse, sources), *declared])
    loads = {load for tree in index.trees[: len(index.trees) - len(declared)] for load in index.loads(tree)}
    for tree in declared:
        for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for method in (each for each in node.body if isinstance(each, ast.FunctionDef)):
                if (node.name, method.name) in loads:
                    loads |= set(index.loads(method, {"self": Types([node.name])}))
    return {f"{name}.{field}" for name, cls in groups.items() for field in hints_of(cls) if (name, field) not in loads}


class _Index:
    """What classes and functions of all trees say of types."""

    def __init__(self, groups: dict[str, type], trees: list[ast.Module]):
        self.trees = trees
        self.attributes: dict[tuple[str, str], Types] = defaultdict(lambda: NONE)
        self.returns: dict[tuple[str, str], Types] = defaultdict(lambda: NONE)  # by class, "" for none, and name
        self.bases: dict[str, list[str]] = defaultdict(list)
        nodes = [node for tree in trees for node in ast.walk(tree)]
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        self.classes = {node.name for node in classes} | groups.keys()
        methods = {id(method): node.name for node in classes for method in node.body}
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.returns[methods.get(id(node), ""), node.name] |= self.annotation(node.returns)
        for node in classes:
            self.bases[node.name] += [base.id for base in node.bases if isinstance(base, ast.Name)]
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    self.attributes[node.name, line.target.id] |= self.annotation(line.annotation)
                elif isinstance(line, ast.FunctionDef) and _is_property(line):
                    self.attributes[node.name, line.name] |= self.annotation(line.returns)
        for name, cls in groups.items():
            for field, hint in hints_of(cls).items():
                inner = group_of(hint) or mapping_of(hint)
                if inner:
                    self.attributes[name, field] |= {("" if group_of(hint) else "{}") + inner.__name__}
        for _ in range(3):  # attributes are assigned from attributes of other classes
            for node in classes:
                self._assigned(node)

    def annotation(self, node: ast.expr | None) -> Types:
        """The types that an annotation names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            return Types([name]) if name in self.classes else NONE
        if isinstance(node, ast.BinOp):
            return self.annotation(node.left) | self.annotation(node.right)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if node.value.id in _SEQUENCES:
                return Types(f"[]{name}" for each in inner for name in self.annotation(each))
            if node.value.id in _MAPPINGS:
                return Types("{}" + name for name in self.annotation(inner[-1]))
        return NONE

    def attribute(self, cls: str, name: str) -> Types:
        """The types of a class's attribute, its bases' included."""
        return self.attributes[cls, name].union(*(self.attribute(base, name) for base in self.bases[cls]))

    def method(self, cls: str, name: str) -> Types:
        """The types of what a class's method returns, its bases' included."""
        return self.returns[cls, name].union(*(self.method(base, name) for base in self.bases[cls]))

    def loads(self, tree: ast.AST, known: dict[str, Types] | None = None) -> Iterator[tuple[str, str]]:
        """(class, attribute) of every attribute that a tree loads."""
        for scope, nodes in _scopes(self, tree, known or {}):
            for node in nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    yield from ((cls, node.attr) for cls in scope.types(node.value))
                elif called_with := _getattr(node):
                    yield from ((cls, name) for name in called_with[1] for cls in scope.types(called_with[0]))

    def _assigned(self, cls: ast.ClassDef) -> None:
        """Records the types of ``self.NAME = ...``."""
        for scope, nodes in _scopes(self, cls, {}):
            for node in nodes:
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    for target, value in _pairs(node):
                        if isinstance(target, ast.Attribute) and cls.name in scope.types(target.value):
                            self.attributes[cls.name, target.attr] |= scope.types(value)


@dataclasses.dataclass
class _Scope:
    """The types of the names of a function or module."""

    index: _Index
    names: dict[str, Types]

    def types(self, node: ast.expr | None) -> Types:
        """The types of an expression."""
        match node:
            case ast.Name():
                return self.names.get(node.id, NONE)
            case ast.Attribute():
                return self._each(node.value, lambda cls: self.index.attribute(cls, node.attr))
            case ast.Subscript():
                return Types(name[2:] for name in self.types(node.value) if name[:2] in ("[]", "{}"))
            case ast.IfExp():
                return self.types(node.body) | self.types(node.orelse)
            case ast.BoolOp():
                return NONE.union(*map(self.types, node.values))
            case ast.NamedExpr() | ast.Await() | ast.Starred():
                return self.types(node.value)
            case ast.Tuple() | ast.List():
                return Types(f"[]{name}" for each in node.elts for name in self.types(each))
            case ast.Call():
                return self._called(node)
        return NONE

    def _called(self, node: ast.Call) -> Types:
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name in _COPIES and node.args:
                return self.types(node.args[0])
            return Types([name]) if name in self.index.classes else self.index.returns["", name]
        if not isinstance(node.func, ast.Attribute):
            return NONE
        name, owner = node.func.attr, self.types(node.func.value)
        if name in _COPIES and node.args:
            return self.types(node.args[0])
        mapped = Types(each[2:] for each in owner if each.startswith("{}"))
        if mapped:
            prefix = {"values": "[]", "items": "()", "get": ""}.get(name)
            return NONE if prefix is None else Types(prefix + each for each in mapped)
        if owner:
            return self._each(node.func.value, lambda cls: self.index.method(cls, name))
        return self.index.returns["", name] | (Types([name]) if name in self.index.classes else NONE)

    def _each(self, node: ast.expr, of: typing.Callable[[str], Types]) -> Types:
        return NONE.union(*(of(cls) for cls in self.types(node)))

    def bind(self, target: ast.expr, types: Types) -> None:
        """Adds types to the names of an assignment's target."""
        if isinstance(target, ast.Name):
            self.names[target.id] = self.names.get(target.id, NONE) | types
        elif isinstance(target, ast.Tuple):
            for each in target.elts:
                self.bind(each, Types(name[2:] for name in types if name[:2] in ("[]", "()")))


def _scopes(index: _Index, tree: ast.AST, known: dict[str, Types]) -> Iterator[tuple[_Scope, list[ast.AST]]]:
    """The scope of a tree and of each function below, with the nodes that are of no scope further below."""
    scope, nodes, inner = _Scope(index, dict(known)), [], []
    if isinstance(tree, _FUNCTION):
        arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
        for argument in arguments:
            scope.names[argument.arg] = known.get(argument.arg, NONE) if argument.arg in ("self", "cls") else NONE
            scope.names[argument.arg] |= index.annotation(argument.annotation)
    of_class = tree.name if isinstance(tree, ast.ClassDef) else ""
    waiting = [(child, of_class) for child in ast.iter_child_nodes(tree)]
    while waiting:
        node, cls = waiting.pop()
        if isinstance(node, _FUNCTION):
            inner.append((node, cls))
            continue
        nodes.append(node)
        below = node.name if isinstance(node, ast.ClassDef) else cls
        waiting += [(child, below) for child in ast.iter_child_nodes(node)]
    for _ in range(2):  # a variable may be assigned below its use
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                for target, value in _pairs(node):
                    scope.bind(target, scope.types(value))
                if isinstance(node, ast.AnnAssign):
                    scope.bind(node.target, index.annotation(node.annotation))
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                types = scope.types(node.iter)
                items = Types(name for name in types if name.startswith("()"))
                scope.bind(node.target, items | Types(name[2:] for name in types if name.startswith("[]")))
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                scope.bind(node.optional_vars, scope.types(node.context_expr))
    yield scope, nodes
    for node, cls in inner:
        own = {"self": Types([cls]), "cls": Types([cls])} if cls else {}
        yield from _scopes(index, node, scope.names | own)


def _pairs(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """(target, value) of an assignment, tuples taken apart."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _getattr(node: ast.AST) -> tuple[ast.expr, list[str]] | None:
    """The owner and the names of ``getattr(owner, "name")``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        name = node.args[1]
        return (node.args[0], [name.value]) if isinstance(name, ast.Constant) else None
    return None


def _is_property(method: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and "property" in each.id for each in method.decorator_list)
