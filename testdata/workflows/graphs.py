"""The workflows in LangGraph. Each function returns a graph builder and the first state."""
import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send

from step import step


class State(TypedDict, total=False):
    done: Annotated[list, operator.add]
    keys: list
    key: str


def node(key, step=step):
    return lambda state: {"done": [step(key)]}


def row(keys=("a", "b", "c"), step=step):
    g = StateGraph(State)
    for key in keys:
        g.add_node(key, node(key, step))
    for before, key in zip((START, *keys), keys):
        g.add_edge(before, key)
    g.add_edge(keys[-1], END)
    return g, {"done": []}


def side_by_side(keys=("a", "b"), step=step):
    g = StateGraph(State)
    g.add_node("c", node("c", step))
    for key in keys:
        g.add_node(key, node(key, step))
        g.add_edge(START, key)
    g.add_edge(list(keys), "c")
    g.add_edge("c", END)
    return g, {"done": []}


def for_each(keys=("x", "y", "z"), step=step):
    g = StateGraph(State)
    g.add_node("one", lambda state: {"done": [step(state["key"])]})
    g.add_conditional_edges(START, lambda state: [Send("one", {"key": k}) for k in state["keys"]], ["one"])
    g.add_edge("one", END)
    return g, {"done": [], "keys": list(keys)}


def loop(times=3, step=step):
    g = StateGraph(State)
    g.add_node("a", node("a", step))
    g.add_edge(START, "a")
    g.add_conditional_edges("a", lambda state: "a" if len(state["done"]) < times else END, ["a", END])
    return g, {"done": []}


def fallback(step=step):
    def guarded(state):
        for attempt in range(2):
            try:
                return {"done": [step("flaky")], "key": ""}
            except RuntimeError:
                pass
        return {"key": "failed"}
    g = StateGraph(State)
    g.add_node("a", guarded)
    g.add_node("b", node("b", step))
    g.add_edge(START, "a")
    g.add_conditional_edges("a", lambda state: "b" if state["key"] else END, ["b", END])
    g.add_edge("b", END)
    return g, {"done": []}
