"""One table of settings: the command line, the environment, the configuration file and the docs all read it.

A setting is one field of `Settings`: its name, type, default and meaning stand there and nowhere else. Its value comes
from the first that has one: `--set name=value` (`--listen` and others), `HOLDFAST_<NAME>`, the file, the default.
"""

from holdfast.config.addresses import STORE_SCHEMES, parse_address, parse_hosts, parse_networks, parse_url
from holdfast.config.sources import Loaded, load, unknown_variables
from holdfast.config.table import NAMES, TABLE, About, Setting, Settings, default_data

__all__ = [
    "About",
    "Loaded",
    "NAMES",
    "STORE_SCHEMES",
    "Setting",
    "Settings",
    "TABLE",
    "default_data",
    "load",
    "parse_address",
    "parse_hosts",
    "parse_networks",
    "parse_url",
    "unknown_variables",
]
