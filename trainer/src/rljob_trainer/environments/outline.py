"""What the text of code shows of its functions and classes, without running it.

Only of names that the text binds once, by an undecorated `def` or `class` outside of others: whatever else binds a name
may make anything of it.
"""

import ast
from collections.abc import Collection
from inspect import Parameter, Signature

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

_DYNAMIC = {"exec", "globals"}
"""Functions that may bind any name."""


def definition(tree: ast.Module, name: str) -> Definition | None:
    """The one definition of `name`; None if the text does not show what it is bound to."""
    if any(isinstance(node, ast.Name) and node.id in _DYNAMIC for node in ast.walk(tree)):
        return None
    return _alone(tree.body, name)


def method(owner: ast.ClassDef, name: str) -> Function | None:
    """The one definition of a method; None as `definition`."""
    found = _alone(owner.body, name)
    return found if isinstance(found, Function) else None


def lacks(owner: ast.ClassDef, name: str) -> bool:
    """Whether the text shows that the class has no such attribute."""
    plain = not (owner.bases or owner.keywords or owner.decorator_list)
    return plain and not any(_binds(node, name) for node in owner.body)


def signature(function: Function) -> Signature:
    """As inspect.signature. A default or an annotation is its node."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [Parameter.empty] * (len(positional) - len(args.defaults)) + list(args.defaults)
    kinds = [Parameter.POSITIONAL_ONLY] * len(args.posonlyargs) + [Parameter.POSITIONAL_OR_KEYWORD] * len(args.args)
    made = [_parameter(*each) for each in zip(positional, kinds, defaults, strict=True)]
    made += [_parameter(args.vararg, Parameter.VAR_POSITIONAL)] if args.vararg else []
    made += [
        _parameter(each, Parameter.KEYWORD_ONLY, Parameter.empty if default is None else default)
        for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return Signature(made + ([_parameter(args.kwarg, Parameter.VAR_KEYWORD)] if args.kwarg else []))


def signature_of_class(owner: ast.ClassDef) -> Signature | None:
    """With which it is called; None if the text does not show that."""
    begin = method(owner, "__init__")
    if not lacks(owner, "__new__") or (begin is None and not lacks(owner, "__init__")):
        return None
    parameters = [] if begin is None else list(signature(begin).parameters.values())[1:]
    return Signature(parameters)


def _parameter(arg: ast.arg, kind: object, default: object = Parameter.empty) -> Parameter:
    annotation = Parameter.empty if arg.annotation is None else arg.annotation
    return Parameter(arg.arg, kind, default=default, annotation=annotation)  # type: ignore[arg-type]


def _alone(body: list[ast.stmt], name: str) -> Definition | None:
    bound = [node for node in body if _binds(node, name)]
    found = bound[0] if len(bound) == 1 else None
    return found if isinstance(found, Definition) and found.name == name and not found.decorator_list else None


def _binds(top: ast.stmt, name: str) -> bool:
    """Whether something in it binds the name, in whatever scope."""
    return any(name in _bound(node) or "*" in _bound(node) for node in ast.walk(top))


def _bound(node: ast.AST) -> Collection[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return (node.name,)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):  # its __doc__, for example
            return (name,)
        case ast.Global(names=names):
            return names
        case ast.alias():
            return ((node.asname or node.name).partition(".")[0],)
    return ()
