"""``cached_property`` without a lock, for all classes of the package.

Before Python 3.12, that of :mod:`functools` locks for all objects of a class while it makes a value. In a
process that is forked meanwhile, the thread that would unlock is missing: the next one that asks there waits
for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property  # noqa: TID251 - its types are those that type checkers know
else:

    class cached_property:  # noqa: N801 - the name of that of functools
        """Keeps what a method returns as the attribute of its object.

        Threads that ask at the same time may each call the method; all get the value that was kept first.
        Thus the method must do nothing but make the value.
        """

        def __init__(self, function):
            self.function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None) -> Any:
            # Without a __set__, Python reads the object's own attributes first: it comes here only once.
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.name, self.function(instance))


__all__ = ["cached_property"]
