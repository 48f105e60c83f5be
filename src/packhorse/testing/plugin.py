# SPDX-License-Identifier: MIT
"""The pytest plugin: `packhorse_app`, an app on an empty store with time that the test moves.

pytest loads this in every project that has Packhorse installed, so it imports nothing until a
fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.testing.apps import TestApp


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting `packhorse_url`."""
    parser.addini(
        "packhorse_url",
        "The store of packhorse_app: memory://, sqlite://, or a server's URL, where each test gets "
        "a schema or a namespace of its own.",
        default="memory://",
    )


@pytest.fixture
def packhorse_url(pytestconfig: pytest.Config) -> str:
    """Where packhorse_app has its store: the setting `packhorse_url`."""
    return str(pytestconfig.getini("packhorse_url"))


@pytest.fixture
def packhorse_target() -> Iterator[Packhorse]:
    """The app to be tested: an empty one; override this in conftest.py to return yours."""
    from packhorse.app import Packhorse  # noqa: PLC0415 - see above
    from packhorse.testing.apps import TestApp  # noqa: PLC0415 - see above

    app = Packhorse("memory://")
    yield app
    TestApp(app).release()
    app.close()


@pytest.fixture
def packhorse_app(
    request: pytest.FixtureRequest, packhorse_target: Packhorse, packhorse_url: str
) -> Iterator[TestApp]:
    """The app to be tested, on an empty store for this test, with more verbs; see `TestApp`.

    Tasks of other apps are refused, unless they are under test by `packhorse.testing.use`.
    """
    from packhorse.client.submission import Submission  # noqa: PLC0415 - see above
    from packhorse.testing.apps import connection_under_test, use  # noqa: PLC0415 - see above
    from packhorse.testing.places import own_place  # noqa: PLC0415 - see above

    known = property(connection_under_test, lambda at, one: vars(at).update(connection=one))
    with (
        pytest.MonkeyPatch.context() as patch,
        own_place(packhorse_url, lambda: request.getfixturevalue("tmp_path")) as url,
        use(packhorse_target, url) as app,
    ):
        patch.setattr(Submission, "connection", known, raising=False)
        yield app
