"""The id of a call of a task with ``by=``, found among its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery.utils.saferepr import saferepr

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.validators import invalid

from .arguments import SHOWN

#: The argument that has a call's id, by name, position or path; or a function of all arguments by name.
By = str | int | Callable[[dict[str, Any]], Any]
EMPTY = inspect.Parameter.empty
ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class IdFinder:
    """Finds ids by one ``by=`` of a function."""

    def __init__(
        self, by: By, parameters: Sequence[inspect.Parameter], hidden: Sequence[inspect.Parameter] | None
    ) -> None:
        """``parameters``: those that callers fill. ``hidden``: those of the function behind a decorator,
        which may fill some itself. Raises ConfigurationError when ``by`` names no argument.
        """
        self._by = by
        self.signature: inspect.Signature = inspect.Signature(parameters)
        self.names: tuple[str, ...] = tuple(self.signature.parameters)
        self._hidden = None if hidden is None else [each.name for each in hidden if each.kind in POSITIONAL]
        #: Returns the id for args and kwargs. Raises InvalidCall when they have none.
        self.find: Callable[[tuple[Any, ...], Mapping[str, Any]], Any] = self._finder(by)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
        """The arguments with defaults; None, which only typing=False lets pass, when they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        return bound

    def _finder(self, by: By) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
        if callable(by):
            return self._computed
        name, *path = by.split(".") if isinstance(by, str) else (by,)
        position, parameter = self._by_name(name) if isinstance(name, str) else self._by_position(name)
        keyword = name if parameter is None else parameter.name
        default = EMPTY if parameter is None else parameter.default
        before: Sequence[str] = ()
        if parameter is None and self._hidden and position is not None and position < len(self._hidden):
            *before, keyword = self._hidden[: position + 1]
        return partial(self._found, position, keyword, default, [str(part) for part in path], before)

    def _by_name(self, name: str) -> tuple[int | None, inspect.Parameter | None]:
        parameters = list(self.signature.parameters.values())
        parameter = self.signature.parameters.get(name)
        if parameter is None and self._hidden is not None:
            raise self._unknown("a position or a function, since a decorator hides the arguments")
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        if parameter.kind in ANY_NUMBER if parameter is not None else not takes_any:
            raise self._unknown("the name of an argument, as " + ", ".join(self.names))
        positional = [each for each in parameters if each.kind in POSITIONAL]
        return positional.index(parameter) if parameter in positional else None, parameter

    def _by_position(self, position: int) -> tuple[int, inspect.Parameter | None]:
        parameters = self.signature.parameters.values()
        positional = [each for each in parameters if each.kind in POSITIONAL]
        if position < len(positional):
            return position, positional[position]
        if not any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
            raise self._unknown(f"a position below {len(positional)}")
        return position, None

    def _found(
        self,
        position: int | None,
        keyword: Any,
        default: Any,
        path: Sequence[str],
        before: Sequence[str],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """``before``: names of hidden arguments that a call gives, too, unless a decorator fills them: then
        the position is not that of the keyword.
        """
        if position is not None and position < len(args):
            value = args[position]
        elif before and not kwargs.keys() >= set(before[len(args) :]):
            value = EMPTY
        else:
            value = kwargs.get(keyword, default)
        if value is EMPTY:
            raise InvalidCall(
                f"by={self._by!r} finds no id: the call has no such argument. Give the argument by "
                f"{'name' if isinstance(self._by, str) else 'position'}, or give by= a function of all "
                "arguments"
            )
        for part in path:
            try:
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            except (KeyError, AttributeError):
                raise InvalidCall(
                    f"by={self._by!r} finds no id: {saferepr(value, SHOWN)} has no {part!r}"
                ) from None
        return value

    def _loosely_bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        parameters = self.signature.parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not EMPTY}
        return {**defaults, **dict(zip(self.names, args, strict=False)), **kwargs}

    def _computed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = self.bound(args, kwargs)
        named = self._loosely_bound(args, kwargs) if bound is None else bound.arguments
        try:
            return self._by(named)  # type: ignore[operator]
        except Exception as error:
            shown = saferepr(named, SHOWN)
            raise InvalidCall(f"by= finds no id in {shown}: {type(error).__name__}: {error}") from error

    def _unknown(self, expected: str) -> ConfigurationError:
        signature = f"({', '.join(self.names)})"
        return ConfigurationError(invalid("by", self._by, f"{expected}, of the function with {signature}"))
