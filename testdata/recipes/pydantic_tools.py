"""Pydantic AI with a2e's tools: python3 pydantic_tools.py 'Write a haiku into haiku.txt.'"""
import json, subprocess, sys
from pydantic_ai import Agent, ModelRetry, Tool
from a2e_client import A2EError, Host

exported = json.loads(subprocess.check_output(["./a2e", "tools", "export", "--format", "openai", "--map"]))


def tool(host, function):
    async def run(**arguments):
        try:
            return await host.acall(exported["names"][function["name"]], arguments, timeout=60)
        except A2EError as err:
            raise ModelRetry(str(err))  # so that the model can correct its call

    return Tool.from_schema(run, function["name"], function["description"], function["parameters"])


with Host(["./a2e"], agent_id="pydantic-ai") as host:
    agent = Agent("openai-chat:gpt-5-mini", tools=[tool(host, definition["function"]) for definition in exported["tools"]])
    print(agent.run_sync(sys.argv[1]).output)
