# SPDX-License-Identifier: MIT
"""Spans of attempts for the SDK of OpenTelemetry, at a fraction of what its own cost.

A span of the SDK checks and copies each attribute under a lock, and is copied again when it ends:
for a short job that takes as long as the job. Few handlers ever look at the span they run in. So
these are no more than a name for their job until something asks for their ids, writes to them, or
starts a span below them. Then, or else when many have ended, the provider's sampler decides, its
generator draws ids, and its processors hear of start and end. One that is written to becomes a span
of the SDK, with the same ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, Final, Generic, NamedTuple, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, Tracer
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = ["LightTracer"]

T = TypeVar("T")

#: Releases before 1.40 do not know it.
_RANDOM: Final[int] = getattr(trace.TraceFlags, "RANDOM_TRACE_ID", 0)
_FLAGS: Final = tuple(trace.TraceFlags(number) for number in range(4))
#: Attributes of these are kept as they are; others are for the SDK to check.
_PLAIN: Final = (str, int, bool, float)
#: A light span has at most so many attributes.
_ATTRIBUTES_MAX: Final = 32


#: What a span is started with: its name, context, kind, attributes and links.
Beginning = tuple[str, Context, trace.SpanKind, dict[str, Any], Sequence[trace.Link]]


class LightTracer(Generic[T]):
    """Starts spans of things that `describe` describes, with the parts of a tracer of the SDK."""

    def __init__(
        self,
        tracer: Tracer,
        version: str,
        now_us: Callable[[], int],
        describe: Callable[[T], Beginning],
    ) -> None:
        self.tracer = tracer
        self.scope = InstrumentationScope(tracer.instrumentation_info.name, version)
        self.now_us = now_us
        self.describe = describe
        self.lock = RLock()  #: held while a span begins, is written to, or becomes a full one
        self.ended: deque[_LightSpan[T]] = deque()  #: not told yet; at most those of some batches
        # Those of the environment have a public name, those given to a provider have none.
        self.limits: SpanLimits = getattr(tracer, "_span_limits", None) or SpanLimits()
        most = self.limits.max_span_attributes
        cuts = self.limits.max_span_attribute_length is not None
        #: Attributes that a light span may have; none where the SDK would cut them.
        self.room = 0 if cuts else min(_ATTRIBUTES_MAX, _ATTRIBUTES_MAX if most is None else most)
        self._random = _RANDOM if getattr(tracer.id_generator, "is_trace_id_random", bool)() else 0

    def start_span(self, thing: T) -> trace.Span:
        """Start one, as far as anything can see."""
        return _LightSpan(self, thing)

    def flush(self) -> None:
        """Tell the processors of those that have ended."""
        ended = self.ended
        while ended:
            ended.popleft().tell()

    def begin(self, thing: T) -> _Begun:
        """Ask the sampler, and draw ids."""
        tracer = self.tracer
        name, context, kind, attributes, links = self.describe(thing)
        parent: trace.SpanContext | None = trace.get_current_span(context).get_span_context()
        if parent is not None and parent.is_valid:
            trace_id, random = parent.trace_id, parent.trace_flags & _RANDOM
        else:
            parent, trace_id, random = None, tracer.id_generator.generate_trace_id(), self._random
        found = tracer.sampler.should_sample(context, trace_id, name, kind, attributes, links)
        ids = trace.SpanContext(
            trace_id,
            tracer.id_generator.generate_span_id(),
            is_remote=False,
            trace_flags=_FLAGS[(found.decision is Decision.RECORD_AND_SAMPLE) | random],
            trace_state=found.trace_state,
        )
        kept = None if found.decision is Decision.DROP else found.attributes.copy()
        return _Begun(ids, kept, parent, name, context, kind, links)


class _Begun(NamedTuple):
    """What a sampler made of a span."""

    ids: trace.SpanContext
    attributes: dict[str, Any] | None  #: None: it is not recorded
    parent: trace.SpanContext | None
    name: str
    context: Context
    kind: trace.SpanKind
    links: Sequence[trace.Link]


class _LightSpan(trace.Span, Generic[T]):
    """A span that begins, and becomes one of the SDK, no sooner than it must."""

    def __init__(self, by: LightTracer[T], thing: T) -> None:
        self._by = by
        self._thing = thing
        self._began_ns = by.now_us() * 1000
        self._ended_ns: int | None = None
        self._closed = False  #: what is written now comes too late
        self._written: dict[str, Any] = {}
        self._begun: _Begun | None = None
        self._full: _FullSpan | None = None

    def end(self, end_time: int | None = None) -> None:
        if self._ended_ns is None:
            self._ended_ns = self._by.now_us() * 1000 if end_time is None else end_time
            self._closed = self._begun is not None  # else processors write to it when it begins
            self._by.ended.append(self)

    def tell(self) -> None:
        """Tell the processors that it has ended."""
        by = self._by
        ids, attributes, parent, name, _, kind, links = self._begin()
        self._closed = True
        if attributes is None:
            return
        readable: ReadableSpan
        if self._full is not None or len(attributes) + len(self._written) > by.room:
            readable = full = self._made_full(attributes)
            full.end(self._ended_ns)
        else:
            attributes.update(self._written)
            readable = ReadableSpan(
                name,
                ids,
                parent,
                by.tracer.resource,
                attributes,
                links=links,
                kind=kind,
                start_time=self._began_ns,
                end_time=self._ended_ns,
                instrumentation_scope=by.scope,
            )
        by.tracer.span_processor.on_end(readable)

    def get_span_context(self) -> trace.SpanContext:
        return self._begin().ids

    def is_recording(self) -> bool:
        return not self._closed and self._begin().attributes is not None

    def set_attribute(self, key: str, value: Any) -> None:
        if type(value) in _PLAIN and key and not self._closed:
            self._written[key] = value
            if self._full is None:  # else it has become one meanwhile, or before
                return
        self._do("set_attribute", key, value)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._do("set_attributes", attributes)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self._do("add_event", name, attributes, timestamp)

    def add_link(self, context: trace.SpanContext, attributes: Any = None) -> None:
        self._do("add_link", context, attributes)

    def update_name(self, name: str) -> None:
        self._do("update_name", name)

    def set_status(
        self, status: trace.Status | trace.StatusCode, description: str | None = None
    ) -> None:
        self._do("set_status", status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001, FBT002 - as the API has it
    ) -> None:
        self._do("record_exception", exception, attributes, timestamp, escaped)

    def __getattr__(self, name: str) -> Any:
        """What a processor reads of a span that has started: its name, attributes, parent, ..."""
        attributes = None if name.startswith("_") else self._begin().attributes
        if attributes is None:
            raise AttributeError(name)
        return getattr(self._made_full(attributes), name)

    def _do(self, method: str, *arguments: Any) -> None:
        """What only a span of the SDK can do."""
        attributes = self._begin().attributes
        if attributes is not None and not self._closed:
            getattr(self._made_full(attributes), method)(*arguments)

    def _begin(self) -> _Begun:
        if self._begun is not None:
            return self._begun
        by = self._by
        with by.lock:
            if self._begun is not None:
                return self._begun
            self._begun = begun = by.begin(self._thing)
        if begun.attributes is not None:
            span: Any = self  # it acts as one of the SDK
            by.tracer.span_processor.on_start(span, parent_context=begun.context)
        return begun

    def _made_full(self, attributes: Mapping[str, Any]) -> _FullSpan:
        begun, by = self._begin(), self._by
        with by.lock:
            if self._full is None:
                full = _FullSpan(
                    begun.name,
                    begun.ids,
                    begun.parent,
                    by.tracer.sampler,
                    resource=by.tracer.resource,
                    attributes=attributes,
                    links=begun.links,
                    kind=begun.kind,
                    limits=by.limits,
                    instrumentation_scope=by.scope,
                )
                full.start(self._began_ns)
                self._full = full
                full.set_attributes(self._written.copy())  # now: what comes later goes to it
            return self._full


class _FullSpan(Span):
    """A span of the SDK that tells nothing by itself: its processors hear of the light one."""
