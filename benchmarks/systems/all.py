"""Every system that grants leases one by one, in the order in which the tables have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.systems.etcd import Etcd
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.octostore import OctoStore
from benchmarks.systems.postgres import Postgres
from benchmarks.systems.redis import Redis

if TYPE_CHECKING:
    from benchmarks.systems.base import System

SYSTEMS: tuple[type[System], ...] = (Holdfast, Redis, Etcd, Postgres, OctoStore)
