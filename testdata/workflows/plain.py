"""The workflows in plain Python."""
from concurrent.futures import ThreadPoolExecutor

from step import step


def row(keys=("a", "b", "c"), step=step):
    for key in keys:
        step(key)


def side_by_side(keys=("a", "b"), step=step):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(step, keys))
    step("c")


def for_each(keys=("x", "y", "z"), step=step):
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(step, keys))


def loop(times=3, step=step):
    for _ in range(times):
        step("a")


def fallback(step=step):
    for attempt in range(2):
        try:
            return step("flaky")
        except RuntimeError:
            pass
    return step("b")
