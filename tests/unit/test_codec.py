# SPDX-License-Identifier: MIT
"""Arguments and results travel as JSON and come back as what the annotations say."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, NoReturn, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from packhorse.core.codec import Signature
from packhorse.errors import ConfigError, PayloadError
from packhorse.signals import Snooze

if TYPE_CHECKING:
    from fractions import Fraction


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    LARGE = "large"


@dataclass
class Address:
    street: str
    lines: list[int]


class Parcel(msgspec.Struct, frozen=True):
    weight: Decimal
    address: Address


class Note(TypedDict):
    text: str


class Point(NamedTuple):
    x: int
    y: int


class Customer(BaseModel):
    name: str
    birthday: date
    home: str = Field(alias="homeTown")


class Opaque:
    """Nothing knows how to write it."""


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    content: T


def signature(function: Callable[..., Any]) -> Signature:
    return Signature.of(function, skip_first=False)


def every_kind(
    *,
    a: Address,
    b: Parcel,
    c: Note,
    d: Colour,
    e: uuid.UUID,
    f: Decimal,
    g: datetime,
    h: bytes,
    i: Point,
    j: timedelta,
    k: Size,
    l: Customer,  # noqa: E741 - one letter each
    m: Box[int],
    n: set[int],
) -> None: ...


EVERY_KIND = {
    "a": Address("Main Street", [1, 2]),
    "b": Parcel(Decimal("1.50"), Address("Side Street", [])),
    "c": Note(text="fragile"),
    "d": Colour.RED,
    "e": uuid.UUID(int=7),
    "f": Decimal("0.10"),
    "g": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "h": b"\x00\xff",
    "i": Point(1, 2),
    "j": timedelta(hours=1, microseconds=1),
    "k": Size.LARGE,
    "l": Customer(name="Ada", birthday=date(1815, 12, 10), homeTown="London"),
    "m": Box(3),
    "n": {1, 2},
}


def test_every_supported_type_comes_back_as_it_was_given() -> None:
    codec = signature(every_kind)

    decoded = codec.decode(codec.encode((), EVERY_KIND))

    assert decoded == EVERY_KIND
    assert [type(value) for value in decoded.values()] == [
        type(value) for value in EVERY_KIND.values()
    ]


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    number=st.integers(-(2**63), 2**63),
    fraction=st.floats(allow_nan=False, allow_infinity=False),
    data=st.binary(),
    moment=st.datetimes(timezones=st.just(UTC)),
)
def test_plain_values_survive_whatever_they_are(
    text: str, number: int, fraction: float, data: bytes, moment: datetime
) -> None:
    def task(text: str, number: int, fraction: float, data: bytes, moment: datetime) -> None: ...

    codec = signature(task)
    arguments = {
        "text": text,
        "number": number,
        "fraction": fraction,
        "data": data,
        "moment": moment,
    }

    assert codec.decode(codec.encode((), arguments)) == arguments


def greet(name: str, times: int = 1, *, loud: bool = False) -> str:
    return name * times if not loud else name.upper()


def test_what_the_caller_leaves_out_is_left_to_the_functions_defaults() -> None:
    codec = signature(greet)

    payload = codec.encode(("ada",), {"loud": True})

    assert msgspec.json.decode(payload) == {"name": "ada", "loud": True}
    assert codec.call(greet, codec.decode(payload)) == "ADA"


def test_a_context_without_its_annotation_is_said_to_be_one() -> None:
    def greet(ctx, name: str) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001 - forgotten
        return f"{ctx} {name}"

    def sort(name: str, context: str) -> None: ...

    with pytest.raises(PayloadError, match=r"'ctx' is missing; is it the Context\? .*ctx: Context"):
        signature(greet).encode((), {"name": "ada"})
    with pytest.raises(PayloadError, match=r"'context' is missing$"):
        signature(sort).encode(("a",), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "words"),
    [
        ((), {}, "name", "argument 'name' is missing"),
        ((1,), {}, "name", "Expected `str`, got `int`"),
        (("a", "b"), {}, "times", "Expected `int`, got `str`"),
        (("a",), {"tims": 2}, "tims", "did you mean 'times'?"),
        (("a",), {"zzz": 2}, "zzz", "it takes name, times, loud"),
        (("a",), {"name": "b"}, "name", "was given twice"),
        (("a", 1, True), {}, None, "takes 2 arguments by position, and 3 were given"),
        (("a",), {"times": 1.5}, "times", "Expected `int`, got `float`"),
        (("a",), {"loud": 1}, "loud", "Expected `bool`, got `int`"),
        ((b"a",), {}, "name", "Expected `str`, got `bytes`"),
        (("\ud800",), {}, "name", "cannot be written as JSON"),
        (("a",), {"times": Opaque()}, "times", "objects of type Opaque cannot be carried"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], field: str | None, words: str
) -> None:
    with pytest.raises(PayloadError) as raised:
        signature(greet).encode(args, kwargs)

    assert raised.value.field == field
    assert words in str(raised.value)
    assert "greet()" in str(raised.value)


def test_the_path_to_a_nested_mistake_is_named() -> None:
    def ship(parcels: list[Parcel]) -> None: ...

    wrong = [Parcel(Decimal(1), Address("Main Street", ["x"]))]  # type: ignore[list-item]

    with pytest.raises(PayloadError) as raised:
        signature(ship).encode((wrong,), {})

    assert raised.value.field == "parcels[0].address.lines[0]"


def test_text_is_not_taken_for_bytes_since_json_could_not_tell() -> None:
    def store(data: bytes | None) -> None: ...

    codec = signature(store)

    assert codec.decode(codec.encode((None,), {})) == {"data": None}
    with pytest.raises(PayloadError, match="Expected `bytes`, got `str`"):
        codec.encode(("abcd",), {})
    assert codec.decode(codec.encode_wire({"data": "aGk="})) == {"data": b"hi"}


def test_a_payload_is_checked_again_when_it_is_decoded() -> None:
    codec = signature(greet)

    wrong: list[tuple[str | bytes, str | None]] = [
        ('{"name": 1}', "name"),
        ('{"name": "a", "extra": 1}', "extra"),
        ("{}", "name"),
        ("[]", None),
        ("{", None),
        (b'{"name": "\xff"}', None),
    ]
    for payload, field in wrong:
        with pytest.raises(PayloadError) as raised:
            codec.decode(payload)
        assert raised.value.field == field, payload


def test_constraints_in_annotations_are_kept() -> None:
    def rate(stars: Annotated[int, msgspec.Meta(ge=1, le=5)]) -> None: ...

    with pytest.raises(PayloadError, match="Expected `int` <= 5") as raised:
        signature(rate).encode((6,), {})

    assert raised.value.field == "stars"


def test_a_model_that_refuses_its_data_names_the_field_and_shows_no_value() -> None:
    def register(customer: Customer) -> None: ...

    payload = b'{"customer": {"name": "Ada", "birthday": "the secret", "homeTown": "London"}}'

    with pytest.raises(PayloadError) as raised:
        signature(register).decode(payload)

    assert raised.value.field == "customer"
    assert "birthday: Input should be a valid date" in str(raised.value)
    assert "the secret" not in str(raised.value)


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""


class StrictModel(BaseModel, extra="forbid"):
    text: str = ""


@pytest.mark.parametrize("kind", [Strict, StrictModel])
def test_a_type_may_refuse_fields_that_it_does_not_have(kind: type) -> None:
    def post(letter): ...  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202

    post.__annotations__["letter"] = kind

    with pytest.raises(PayloadError, match="texxt"):
        signature(post).encode(({"texxt": "a"},), {})


def test_positional_only_parameters_are_carried_by_name_and_passed_by_position() -> None:
    def divide(a: int, b: int = 2, /, *, exact: bool = False) -> tuple[int, int, bool]:
        return (a, b, exact)

    codec = signature(divide)

    assert codec.call(divide, codec.decode(codec.encode((7,), {"exact": True}))) == (7, 2, True)
    assert codec.call(divide, codec.decode(codec.encode((7, 3), {}))) == (7, 3, False)
    with pytest.raises(PayloadError, match="is given by position only"):
        codec.encode((7,), {"b": 3})


def test_the_injected_first_parameter_is_not_part_of_the_payload() -> None:
    def task(context: object, name: str) -> tuple[object, str]:
        return (context, name)

    codec = Signature.of(task, skip_first=True)

    assert codec.encode(("ada",), {}) == b'{"name":"ada"}'
    assert codec.call(task, {"name": "ada"}, "injected") == ("injected", "ada")


def test_parameters_without_annotations_take_any_json_value() -> None:
    def task(anything, other: Any, more: dict[str, object]): ...  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202

    codec = signature(task)

    assert codec.decode(codec.encode(({"a": [1, None]}, "b", {"c": 2.5}), {})) == {
        "anything": {"a": [1, None]},
        "other": "b",
        "more": {"c": 2.5},
    }


def star(*names: str) -> None: ...
def stars(**names: str) -> None: ...
def opaque(thing: list[Opaque]) -> None: ...
def mixed(thing: int | Opaque | str) -> None: ...
def paired(thing: list[dict[tuple[int, int], str]]) -> None: ...
def opaque_result() -> Opaque: ...  # type: ignore[empty-body]
def only_checked(share: Fraction) -> None: ...
def only_checked_result() -> Fraction: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (star, "star(): *names cannot be part of a task"),
        (stars, "stars(): **names cannot be part of a task"),
        (opaque, "opaque(): parameter 'thing' holds"),
        (mixed, "mixed(): parameter 'thing' has a type that cannot be carried"),
        (paired, "paired(): parameter 'thing' holds a dict whose keys are no texts and no numbers"),
        (opaque_result, "opaque_result(): the result holds"),
        (only_checked, "only_checked(): the type of parameter 'share', 'Fraction', cannot be"),
        (only_checked_result, "only_checked_result(): the type of the result"),
    ],
)
def test_a_function_that_cannot_be_carried_is_refused_when_it_is_declared(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        signature(function)

    assert words in str(raised.value)


def test_a_type_only_checkers_know_is_explained() -> None:
    with pytest.raises(ConfigError, match="not only under TYPE_CHECKING"):
        signature(only_checked)


def test_names_of_the_surroundings_are_known_when_given() -> None:
    @dataclass
    class Local:
        number: int

    def task(local: Local) -> None: ...

    codec = Signature.of(task, skip_first=False, scope=locals())

    assert codec.decode(codec.encode((Local(3),), {})) == {"local": Local(3)}


def test_a_result_comes_back_as_its_annotation_says() -> None:
    def make() -> list[Parcel]: ...  # type: ignore[empty-body]

    codec = signature(make)
    result = [Parcel(Decimal("2.5"), Address("Main Street", [1]))]

    assert codec.decode_result(codec.encode_result(result)) == result
    with pytest.raises(PayloadError, match=r"the result of make\(\) is not what its annotation"):
        codec.decode_result(b'[{"weight": true}]')


def test_a_result_that_cannot_be_written_is_a_payload_error() -> None:
    with pytest.raises(PayloadError, match="objects of type Opaque cannot be carried") as raised:
        signature(greet).encode_result({"a": Opaque()})

    assert raised.value.field == "return"


async def test_a_coroutine_without_an_await_is_refused_with_what_to_do() -> None:
    async def late() -> int:
        return 1

    pending = late()
    with pytest.raises(PayloadError, match=r"type coroutine cannot be carried: await it"):
        signature(greet).encode_result({"a": pending})

    assert await pending == 1


def test_a_method_is_refused_when_it_is_declared() -> None:
    class Shop:
        def pay(self, cents: int) -> int:
            return cents

    with pytest.raises(ConfigError, match=r"Shop\.pay\(\) is a method, .* 'self'"):
        signature(Shop.pay)

    assert signature(Shop().pay).encode((1,), {}) == b'{"cents":1}'


def test_signals_in_a_result_annotation_are_not_part_of_the_result() -> None:
    def poll() -> date | Snooze: ...  # type: ignore[empty-body]
    def wait() -> Snooze: ...  # type: ignore[empty-body]
    def never() -> NoReturn:
        raise AssertionError

    assert signature(poll).decode_result(b'"2026-01-02"') == date(2026, 1, 2)
    assert signature(wait).decode_result(b"[1]") == [1]
    assert signature(never).decode_result(b"null") is None


# ------------------------------------------------------------------- what JSON has no word for


@dataclass
class Reading:
    value: float | None
    raw: bytes = b""


def measure(x: float) -> float: ...  # type: ignore[empty-body]
def record(reading: Reading, more: Any = None, blobs: list[bytes] | None = None) -> Reading: ...  # type: ignore[empty-body]
def anything(items: Any, other: Any = None) -> Any: ...


@pytest.mark.parametrize(
    ("function", "given", "place", "problem"),
    [
        (measure, {"x": float("nan")}, "x", "is nan, which JSON cannot carry"),
        (measure, {"x": float("inf")}, "x", "is inf, which JSON cannot carry"),
        (anything, {"items": float("-inf")}, "items", "is -inf"),
        (anything, {"items": {"deep": [1, [0.5, float("nan")]]}}, "items.deep[1][1]", "is nan"),
        (anything, {"items": None, "other": float("nan")}, "other", "is nan"),
        (anything, {"items": b"raw"}, "items", "is bytes, which JSON cannot carry"),
        (anything, {"items": [bytearray(b"raw")]}, "items[0]", "is bytes"),
        (anything, {"items": {"a": {b"raw"}}}, "items.a[0]", "is bytes"),
        (anything, {"items": Reading(None, b"raw")}, "items.raw", "is bytes"),
        (record, {"reading": Reading(float("nan"))}, "reading.value", "is nan"),
        (record, {"reading": Reading(1.0), "more": memoryview(b"raw")}, "more", "is bytes"),
        (record, {"reading": {"value": float("nan")}}, "reading.value", "is nan"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_place(
    function: Callable[..., Any], given: dict[str, Any], place: str, problem: str
) -> None:
    signature = Signature.of(function, skip_first=False)

    ways: tuple[Callable[[], bytes], ...] = (
        lambda: signature.encode((), given),
        lambda: signature.encode_wire(given),
    )
    for encode in ways:
        with pytest.raises(PayloadError, match=re.escape(f"argument '{place}' {problem}")) as told:
            encode()
        assert told.value.field == place


def test_bytes_travel_where_they_are_annotated() -> None:
    signature = Signature.of(record, skip_first=False)

    payload = signature.encode((Reading(1.5, b"a"), None, [b"b", b""]), {})

    assert signature.decode(payload) == {
        "reading": Reading(1.5, b"a"),
        "more": None,
        "blobs": [b"b", b""],
    }
    assert signature.decode_result(signature.encode_result(Reading(None, b"c"))) == Reading(
        None, b"c"
    )


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (measure, float("nan"), "the result of measure() is nan, which JSON cannot carry"),
        (anything, [1.0, float("inf")], "'[1]' of the result of anything() is inf"),
        (anything, {"a": b"x"}, "'a' of the result of anything() is bytes"),
        (record, Reading(float("nan")), "'value' of the result of record() is nan"),
    ],
)
def test_a_result_that_json_cannot_carry_is_refused_with_its_place(
    function: Callable[..., Any], value: Any, words: str
) -> None:
    with pytest.raises(PayloadError, match=re.escape(words)):
        Signature.of(function, skip_first=False).encode_result(value)


def test_the_order_of_keys_is_kept_and_sets_have_one_order() -> None:
    signature = Signature.of(anything, skip_first=False)

    payload = signature.encode(({"b": {3, 1, 2}, "a": {"y", "x"}},), {})

    assert payload == b'{"items":{"b":[1,2,3],"a":["x","y"]}}'
