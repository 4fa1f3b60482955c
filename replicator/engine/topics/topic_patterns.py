"""Patterns of topic names: from a user's text to a namespace and a compiled regex. Pure.

A pattern is ``persistent://tenant/namespace/regex``, ``tenant/namespace/regex``, or a bare regex, which is over
``public/default``. Tenant and namespace are names, not regexes: a pattern is over one namespace. The regex stands for
the whole local name, so ``orders`` is the topic ``orders`` alone, and ``a|b`` is ``a`` or ``b``.

1. The text is read once from left to right. A slash that is escaped or in a class is a character of the regex. Any
   other slash ends a part of the name.
2. The part before the last such slash must be a tenant and a namespace. More parts are an error, because a local name
   has no slash.
3. RE2 compiles the regex. Matching takes time linear in the name, for any pattern, and at most
   :data:`PATTERN_MEMORY_BYTES_MAX` of memory. Features that RE2 does not have (look-around, back references) are an
   error.
4. RE2 says what it cannot parse. This module finds its place in the text, so that the error names it.

Source: PIP-145 of Pulsar; RE2's documented syntax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import re2

from replicator.engine.errors import EngineError, InvalidPattern
from replicator.engine.topic_name import parse_topic

PATTERN_CHARACTERS_MAX: Final = 1_000
PATTERN_MEMORY_BYTES_MAX: Final = 256 * 1024
"""Limit of the memory of one compiled pattern with its caches. With more, a few hundred hostile patterns could fill a
worker's memory."""
CULPRIT_TRIES_MAX: Final = 20
"""Limit of places that are tried to find the error in a pattern. Each costs a compilation."""
_SCHEME: Final = "persistent://"
_LOOK_AROUND: Final = ("(?=", "(?!", "(?<")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern over the topics of one namespace. Two of the same namespace and regex are equal."""

    namespace: str
    """The namespace, as ``tenant/namespace``."""
    regex: str
    _compiled: Any = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.namespace}/{self.regex}"

    def matches(self, local_name: str) -> bool:
        """Return whether the pattern matches the topic ``local_name`` of its namespace, in time linear in the name's
        length."""
        return self._compiled.fullmatch(local_name) is not None


def parse_pattern(text: str) -> TopicPattern:
    """Return the compiled pattern. Raise :class:`InvalidPattern`, which says what is wrong and at which character."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise InvalidPattern(
            f"the pattern has {len(text)} characters; {PATTERN_CHARACTERS_MAX} are allowed: make it shorter"
        )
    if "\0" in text or not _is_unicode(text):
        raise InvalidPattern(
            f"pattern {text!r:.80} has a NUL character, or half of one (a surrogate), which no topic name can have: "
            "take it out"
        )
    start = 1 if text.startswith("^" + _SCHEME) else 0  # as some write it who think of the whole name
    start += len(_SCHEME) if text.startswith(_SCHEME, start) else 0
    scheme_end = text.find("://", start)
    if scheme_end >= 0:
        raise _invalid(text, scheme_end, f"a pattern begins with {_SCHEME} or with no domain: it is over one namespace")
    slashes = [at for at, character in _plain_characters(text, start) if character == "/"]
    if not slashes and start == 0:
        tenant, namespace, regex_at = "public", "default", 0
    elif len(slashes) == 2:
        tenant, namespace, regex_at = text[start : slashes[0]], text[slashes[0] + 1 : slashes[1]], slashes[1] + 1
        _check_name(text, start, "tenant", f"{tenant}/n/t")
        _check_name(text, slashes[0] + 1, "namespace", f"t/{namespace}/t")
    else:
        raise _invalid(
            text,
            slashes[2] if len(slashes) > 2 else len(text),
            f"expected {_SCHEME}tenant/namespace/regex: a pattern is over one namespace, and a topic's local name has "
            "no slash",
        )
    return TopicPattern(f"{tenant}/{namespace}", text[regex_at:], _compile(text, regex_at))


def _check_name(text: str, at: int, label: str, topic: str) -> None:
    try:
        parse_topic(topic)
    except EngineError:
        raise _invalid(
            text, at, f"the {label} of a pattern is a name, not a regex: a pattern is over one namespace"
        ) from None


def _compile(text: str, at: int) -> Any:
    """Compile the regex that begins at ``at``."""
    if at == len(text):
        raise _invalid(text, at, "the regex is empty; it stands for the whole local name, so that .* is every topic")
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(text[at:], options)
    except re2.error as error:
        said = error.args[0] if error.args else b""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    kind, _, culprit = reason.partition(": ")
    if "too large" in kind:
        raise InvalidPattern(
            f"pattern {text!r:.80}: compiled it needs more than {PATTERN_MEMORY_BYTES_MAX} bytes; make it shorter, or "
            "its repetitions smaller"
        ) from None
    position = _error_offset(text, at, kind, culprit, options)
    if culprit.startswith(_LOOK_AROUND) or (culprit[:1] == "\\" and culprit[1:].isdigit()):
        kind = "look-around and back references are not supported, because they cannot be matched in linear time"
    what = f": {culprit!r:.40}" if culprit and kind not in ("missing )", "unexpected )") else ""
    raise _invalid(text, position, f"{kind}{what}") from None


def _error_offset(text: str, at: int, kind: str, culprit: str, options: Any) -> int:
    """Return the place in ``text`` of the part that RE2 complains about."""
    match kind:
        case "missing )":
            return _unbalanced(text, at)[0]
        case "unexpected )":
            return _unbalanced(text, at)[1]
        case "trailing \\":
            return len(text) - 1
    if culprit.startswith(_LOOK_AROUND):
        culprit = culprit[:3]
    first = following = text.find(culprit, at)
    # The same characters may stand before, where they mean something else: escaped, or in a class.
    for _ in range(CULPRIT_TRIES_MAX):
        if following < 0:
            break
        try:
            re2.compile(text[at : following + len(culprit)], options)
        except re2.error as error:
            if error.args and error.args[0].startswith(kind.encode()):
                return following
        following = text.find(culprit, following + 1)
    return max(first, at)


def _unbalanced(text: str, at: int) -> tuple[int, int]:
    """Return the places of the last parenthesis that is never closed and of the first that was never opened."""
    opened: list[int] = []
    for place, character in _plain_characters(text, at):
        if character == "(":
            opened.append(place)
        elif character == ")":
            if not opened:
                return at, place
            opened.pop()
    return (opened[-1] if opened else at), at


def _plain_characters(text: str, at: int) -> Iterator[tuple[int, str]]:
    """Yield the characters from ``at`` on, with their places, that are neither escaped nor in a class or a
    quotation."""
    in_class = False
    while at < len(text):
        character = text[at]
        if character == "\\":
            if text.startswith("\\Q", at) and not in_class:
                end = text.find("\\E", at)
                if end < 0:
                    return
                at = end
            at += 2
            continue
        if in_class:
            # The first character of a class may be a bracket; [:alpha:] in it has brackets of its own.
            if text.startswith("[:", at) and (end := text.find(":]", at)) >= 0:
                at = end + 2
                continue
            if character == "]":
                in_class = False
        elif character == "[":
            in_class = True
            at += 2 if text.startswith("[^", at) else 1
            if text.startswith("]", at):
                at += 1
            continue
        else:
            yield at, character
        at += 1


def _invalid(text: str, position: int, reason: str) -> InvalidPattern:
    return InvalidPattern(f"pattern {text!r:.120}, at character {position}: {reason}", position)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
