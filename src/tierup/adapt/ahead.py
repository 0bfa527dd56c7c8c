"""A model is planned while it is still being read: a worker begins with the job that the climb will ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tierup.adapt.memory import place_of
from tierup.adapt.messages import PlanModel
from tierup.config import Config
from tierup.ir.facts import Aim
from tierup.private import make_private
from tierup.store.plans import Plans, cache_parts
from tierup.store.source import FileSource, Source


def plan_ahead(source: Source | None, config: Config) -> None:
    """Have the first plan of a model begun, if it is a file's, and cores are left for that. Returns at once."""
    if not isinstance(source, FileSource) or config.threads == 1:
        return
    from tierup.adapt.builders import prepare

    try:
        make_private(Plans(config.cache_path, config.threads).folder)  # for weights that the plan derives
    except OSError:
        return  # the climb says so
    prepare(plan_job(os.path.abspath(source.origin), source.stamp, config, consults=config.adapt))


def plan_job(
    path: str,
    stamp: tuple[int, ...] | None,
    config: Config,
    aim: Aim | None = None,
    refused: Mapping[str, str] | None = None,
    *,
    consults: bool,
) -> PlanModel:
    """What a worker is asked for. `consults`: it counts what became of such a plan before."""
    store = place_of(config) if consults else ""
    parts, threads = cache_parts(config.precision), config.threads
    return PlanModel(
        path, stamp, config.cache_path, parts, threads, aim or Aim(), store, config.precision, dict(refused or {})
    )
