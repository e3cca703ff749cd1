"""Writes the page: `python -m holdfast.settings > docs/reference/settings.md`."""

import sys

from holdfast.settings import as_markdown

sys.stdout.write(as_markdown())
