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
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any, Final, Generic, NamedTuple, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, Tracer
from opentelemetry.sdk.trace.sampling import (
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

T = TypeVar("T")

#: Releases before 1.40 do not know it.
_RANDOM: Final[int] = getattr(trace.TraceFlags, "RANDOM_TRACE_ID", 0)
_SAMPLED, _DROPPED = Decision.RECORD_AND_SAMPLE, Decision.DROP  # an enum is slow to ask
_FLAGS: Final = tuple(trace.TraceFlags(number) for number in range(4))
#: Attributes of these are kept as they are; others are for the SDK to check.
_PLAIN: Final = (str, int, bool, float)
#: A light span has at most so many attributes.
_ATTRIBUTES_MAX: Final = 32


#: What is known of a span before it is sampled: its name, context, kind and links.
Beginning = tuple[str, Context, trace.SpanKind, Sequence[trace.Link]]


#: Samplers of the SDK that decide by a trace's id, or by a parent, and look at nothing else.
_BLIND: Final = (ParentBased, ParentBasedTraceIdRatio, StaticSampler, TraceIdRatioBased)


class LightTracer(Generic[T]):
    """Starts spans of things, with the parts of a tracer of the SDK.

    `describe` says how one begins, and `attributes` what it has.
    """

    def __init__(
        self,
        tracer: Tracer,
        version: str,
        now_us: Callable[[], int],
        describe: Callable[[T], Beginning],
        attributes: Callable[[T], dict[str, Any]],
    ) -> None:
        self.tracer = tracer
        self.scope = InstrumentationScope(tracer.instrumentation_info.name, version)
        self.now_us = now_us
        self.describe = describe
        self.attributes = attributes
        self.lock = RLock()  #: held while a span begins, is written to, or becomes a full one
        self.ended: deque[_LightSpan[T]] = deque()  #: not told yet; at most those of some batches
        # Those of the environment have a public name, those given to a provider have none.
        self.limits: SpanLimits = getattr(tracer, "_span_limits", None) or SpanLimits()
        most = self.limits.max_span_attributes
        cuts = self.limits.max_span_attribute_length is not None
        #: Attributes that a light span may have; none where the SDK would cut them.
        self.room = 0 if cuts else min(_ATTRIBUTES_MAX, _ATTRIBUTES_MAX if most is None else most)
        self._sampler: Sampler | None = None
        self._blind = False  #: it looks at no attributes: those it drops need not have any
        self._always: SamplingResult | None = None  #: what it says of all that begin a trace
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
        tracer, draw = self.tracer, self.tracer.id_generator
        if tracer.sampler is not self._sampler:
            self._look_at(tracer.sampler)
        name, context, kind, links = self.describe(thing)
        attributes = None if self._blind else self.attributes(thing)
        parent: trace.SpanContext | None = trace.get_current_span(context).get_span_context()
        if parent is not None and parent.is_valid:
            trace_id, random = parent.trace_id, parent.trace_flags & _RANDOM
        else:
            parent, trace_id, random = None, draw.generate_trace_id(), self._random
        found = self._always if parent is None else None
        if found is None:
            found = tracer.sampler.should_sample(context, trace_id, name, kind, attributes, links)
        flags = _FLAGS[(found.decision is _SAMPLED) | random]
        ids = trace.SpanContext(
            trace_id,
            draw.generate_span_id(),
            False,
            flags,
            found.trace_state,
        )
        if found.decision is _DROPPED:
            return _Begun(ids, None, parent, name, context, kind, links)
        kept = self.attributes(thing) if self._blind else dict(found.attributes)
        return _Begun(ids, kept, parent, name, context, kind, links)

    def _look_at(self, sampler: Sampler) -> None:
        """Find out what a sampler need not be asked, or told."""
        parts = list(_parts(sampler))
        self._blind = all(type(each) in _BLIND for each in parts)
        steady = self._blind and all(getattr(each, "rate", 0) in (0, 1) for each in parts)
        self._always = sampler.should_sample(Context(), 1, "") if steady else None
        self._sampler = sampler


def _parts(sampler: Sampler) -> Iterator[Sampler]:
    """A sampler, and those that it asks, where it is one of the SDK."""
    yield sampler
    for each in vars(sampler).values() if type(sampler) in _BLIND else ():
        if isinstance(each, Sampler):
            yield from _parts(each)


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

    # Most are never written to nor asked: what only others have is set when they have it.
    _ended_us: int | None = None
    _end_ns: int | None = None  #: as its ender said
    _closed = False  #: what is written now comes too late
    _written: dict[str, Any] | None = None
    _begun: _Begun | None = None
    _full: _FullSpan | None = None

    def __init__(self, by: LightTracer[T], thing: T) -> None:
        self._by = by
        self._thing = thing
        self._began_us = by.now_us()

    def end(self, end_time: int | None = None) -> None:
        if self._ended_us is None:
            self._ended_us = self._by.now_us()
            self._end_ns = end_time
            self._closed = self._begun is not None  # else processors write to it when it begins
            self._by.ended.append(self)

    def tell(self) -> None:
        """Tell the processors that it has ended."""
        by = self._by
        ids, attributes, parent, name, _, kind, links = self._begun or self._begin()
        self._closed = True
        if attributes is None:
            return
        written = self._written or {}
        end_ns = (self._ended_us or 0) * 1000 if self._end_ns is None else self._end_ns
        readable: ReadableSpan
        if self._full is not None or len(attributes) + len(written) > by.room:
            readable = full = self._made_full(attributes)
            full.end(end_ns)
        else:
            attributes.update(written)
            readable = ReadableSpan(
                name,
                ids,
                parent,
                by.tracer.resource,
                attributes,
                links=links,
                kind=kind,
                start_time=self._began_us * 1000,
                end_time=end_ns,
                instrumentation_scope=by.scope,
            )
        by.tracer.span_processor.on_end(readable)

    def get_span_context(self) -> trace.SpanContext:
        return self._begin().ids

    def is_recording(self) -> bool:
        return not self._closed and self._begin().attributes is not None

    def set_attribute(self, key: str, value: Any) -> None:
        if type(value) in _PLAIN and key and not self._closed:
            if self._written is None:
                self._written = {key: value}
            else:
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
                full.start(self._began_us * 1000)
                self._full = full
                # Now: what comes later goes to it.
                full.set_attributes(dict(self._written or {}))
            return self._full


class _FullSpan(Span):
    """A span of the SDK that tells nothing by itself: its processors hear of the light one."""
