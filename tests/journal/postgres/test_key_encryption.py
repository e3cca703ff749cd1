"""The authority's key under a secret."""

import pytest

from holdfast.journal.interface import JournalError
from holdfast.journal.postgres.leadership import KEY_BYTES, seal, unseal

KEY = bytes(range(KEY_BYTES))


@pytest.mark.parametrize("secret", [None, b"s", b"a secret of the operator's" * 100])
def test_key_comes_back(secret: bytes | None) -> None:
    """A key that was sealed is unsealed by the same secret, and looks the same each time."""
    assert unseal(seal(KEY, secret), secret) == KEY
    assert seal(KEY, secret) == seal(KEY, secret)


def test_sealed_key_shows_nothing_of_the_key() -> None:
    """No four bytes of the key stand in what is stored under a secret, nor does another secret show the same."""
    stored = seal(KEY, b"one")
    assert not any(KEY[start : start + 4] in stored for start in range(KEY_BYTES - 3))
    assert seal(KEY, b"two")[1:33] != stored[1:33]


def test_any_changed_byte_is_found() -> None:
    """Whatever byte of a sealed key is changed, it is refused: nobody puts another key in its place."""
    stored = seal(KEY, b"secret")
    for store in range(len(stored)):
        changed = bytearray(stored)
        changed[store] ^= 1
        with pytest.raises(JournalError):
            unseal(bytes(changed), b"secret")
    for length in range(len(stored)):
        with pytest.raises(JournalError):
            unseal(stored[:length], b"secret")


@pytest.mark.parametrize(
    ("made_with", "read_with", "words"),
    [
        (b"one", b"two", "another secret"),
        (b"one", None, "Set store_secret_file"),
        (None, b"one", "Leave store_secret_file out"),
    ],
)
def test_wrong_secret_error_names_the_remedy(made_with: bytes | None, read_with: bytes | None, words: str) -> None:
    """A secret that is missing, another, or not needed is refused, and the text says what to do."""
    with pytest.raises(JournalError, match=words):
        unseal(seal(KEY, made_with), read_with)


def test_key_has_one_length() -> None:
    """A key of another length is refused before it is stored."""
    with pytest.raises(ValueError, match="31 bytes instead of 32"):
        seal(KEY[1:], b"secret")
