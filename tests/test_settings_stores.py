"""The address of a store: what is taken for one, and what is never shown of it."""

from __future__ import annotations

import pytest

from holdfast.config import addresses as store_urls
from holdfast.config import load
from holdfast.errors import SettingsError
from holdfast.journal.postgres.connection import addresses

HOME = {"HOME": "/home/ana"}
TORN = [
    "postgresql://h:hun#ter2@db/x",
    "postgresql://h:hun/ter2@db/x",
    "postgresql://h:hun?ter2@db/x",
    "postgresql://h:12#ter2@db/x",
    "postgresql://h:12/ter2@db/x",
    "postgresql://hunter2@db:5x/y",
    "postgresql://h:hunter2/x",
    "postgresql://h:hunter2,db:5432/x",
    "postgresql://db/x?user=h;password=hunter2",
    "postgresql://db/x#hunter2",
    "postgresql://[hunter2",
]


@pytest.mark.parametrize("url", TORN)
def test_an_address_that_a_password_tore_is_refused_and_never_shown(url: str) -> None:
    """A password with a sign that ends a part of a URL makes another URL of it: refused anywhere, shown nowhere."""
    assert store_urls.shown(url) == "(not a URL)" and store_urls.has_password(url)
    for overrides, environment in (({"store": url}, HOME), ({}, HOME | {"HOLDFAST_STORE": url})):
        with pytest.raises(SettingsError, match="%23") as caught:
            load(overrides=overrides, environment=environment, file=None)
        assert "ter2" not in str(caught.value) and "hun" not in str(caught.value)
    with pytest.raises(ValueError, match="%2F") as refusal:
        addresses(url)
    assert "ter2" not in str(refusal.value)


@pytest.mark.parametrize("host", ["db", "db:5432", "[::1]", "[::1]:5,a", "a:1,[::1]:5,[::2]", "a:1,b", ""])
def test_complete_address_is_accepted(host: str) -> None:
    """Hosts, ports and signs that are written as they should be are no reason to refuse a store."""
    for user in ("", "h@", "h:hun%23t%2Fe%3Fr2%40@"):
        url = f"postgresql://{user}{host}/x?application_name=a%40b"
        assert load(overrides={}, environment=HOME | {"HOLDFAST_STORE": url}, file=None).settings.store == url
