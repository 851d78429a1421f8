"""Masks what ``lowkiq_redact`` names in the payloads that pages and the API show."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from celery import Celery

from celery_lowkiq.integration.app.codec import MARK, plain_json
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.calls.call_form import CallForm
from celery_lowkiq.integration.calls.masking import masked_beginning, masked_payload, may_have_secrets
from celery_lowkiq.rules.redaction import MASK, Redactor

from .json_records import mark_of_bytes, value_text
from .shown_jobs import NOT_DECODED, Masked, ShownPayload

Q = TypeVar("Q", bound="MaskMixin")


class PayloadMask:
    """Masks payloads of a queue, whose tasks have ``form``.

    Bytes that are neither JSON nor decoded are masked whole, because they may have a secret. ``marks``:
    whether payloads with masks have their mark, a digest by which a short secret can be guessed.
    """

    def __init__(self, redactor: Redactor, form: CallForm | None = None, marks: bool = True) -> None:
        self._redactor = redactor
        self._form = form
        self._marks = marks

    def __call__(self, payload: ShownPayload) -> ShownPayload:
        """The payload with masks; ``value`` is JSON in bytes, or a decoded value if it was decoded."""
        if not self._redactor:
            return payload
        if payload.readable:
            masked = self.value(payload.value)
            return replace(payload, value=masked, masked=Masked(None, 0, masked != payload.value))
        data = bytes(payload.value)
        text, hides = self._cut(data) if payload.cut_from else self._whole(data, payload.decoded)
        mark = None if payload.cut_from or (hides and not self._marks) else mark_of_bytes(data)
        about = Masked(mark, payload.cut_from or len(data), hides)
        value = data if text is None else text.encode("utf-8", "surrogatepass")
        cut_from = payload.cut_from and max(payload.cut_from, len(value) + 1)
        shown = payload if text is None else replace(payload, decoded=NOT_DECODED)
        return replace(shown, value=value, cut_from=cut_from, masked=about)

    def stored(self, data: bytes, decoded: Any = NOT_DECODED) -> bytes:
        """The same of stored bytes alone."""
        found: bytes = self(ShownPayload(data, 0.0, readable=False, decoded=decoded)).value
        return found

    def value(self, value: Any) -> Any:
        """A decoded payload with masks."""
        return masked_payload(self._form, value, self._redactor)

    def _cut(self, data: bytes) -> tuple[str | None, bool]:
        """What is shown of the beginning of a payload, None: all of it; and whether it hides something."""
        if data[:1] == MARK:
            return MASK, True
        try:
            text = data.decode("utf-8", "ignore" if _is_text(data) else "strict")
        except UnicodeDecodeError:
            return MASK, True
        shown = masked_beginning(self._form, text, self._redactor)
        return shown, shown is not None

    def _whole(self, data: bytes, decoded: Any) -> tuple[str | None, bool]:
        """The JSON that is shown of a whole payload, None: the payload; and whether it hides something."""
        try:
            text, value = data.decode("utf-8"), plain_json(data)
        except (ValueError, RecursionError):
            return self._other(decoded), True
        if not may_have_secrets(self._form, text, self._redactor):
            return None, False
        try:
            # Of keys that are there twice, only the last one is in the value.
            masked = self.value(value)
            return json.dumps(masked, ensure_ascii=False), masked != value or self._redactor.may_have(text)
        except (ValueError, RecursionError):
            return json.dumps(MASK), True

    def _other(self, decoded: Any) -> str:
        """The JSON that is shown of a payload that is not JSON."""
        try:
            text = value_text(MASK if decoded is NOT_DECODED else self.value(decoded))
            return text if _is_json(text) else json.dumps(text, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps(MASK)


class MaskMixin:
    """What an ordered queue shows of payloads."""

    _app: Celery
    _form: CallForm
    _raw: bool = False
    _decodes: bool = False
    _mask: PayloadMask | None = None

    def raw(self: Q, decoded: bool = False) -> Q:
        """Return the same queue with payloads as the stored bytes, not masked.

        ``decoded``: the verified ones that are not JSON are also decoded.
        """
        queue = copy(self)
        queue._raw, queue._decodes, queue._mask = True, decoded, None
        return queue

    def masked(self: Q, marks: bool = True) -> Q:
        """Return the same queue with payloads in which what ``lowkiq_redact`` names is masked.

        What is neither JSON nor decoded is masked whole. ``marks``: see PayloadMask.
        """
        queue = copy(self)
        queue._mask = PayloadMask(context_of(self._app).settings.redactor, self._form, marks)
        return queue

    def shown_bytes(self, data: bytes) -> str:
        """Return stored bytes of a payload as text with masks."""
        mask = PayloadMask(context_of(self._app).settings.redactor, self._form)
        return mask.stored(data).decode("utf-8", "backslashreplace")

    def shown_value(self, value: Any) -> str:
        """Return a decoded payload as text with masks."""
        mask = PayloadMask(context_of(self._app).settings.redactor, self._form)
        return value_text(mask.value(value))

    def has_mask(self, payload: Any) -> bool:
        """Return whether a payload has a mask in the place of a secret."""
        redactor = context_of(self._app).settings.redactor
        return bool(redactor) and redactor.has_mask(payload)


def _is_json(text: str) -> bool:
    """Whether a text is JSON, not the ``repr`` of a value that JSON cannot hold."""
    try:
        plain_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_text(data: bytes) -> bool:
    """Whether the bytes are UTF-8 up to a character that is cut."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(data) - 3
    return True
