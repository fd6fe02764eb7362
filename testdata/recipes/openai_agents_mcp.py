"""The OpenAI Agents SDK with a2e's tools: python3 openai_agents_mcp.py 'Write a haiku into haiku.txt.'"""
import asyncio, sys
from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled
from agents.mcp import MCPServerStdio

set_default_openai_api("chat_completions")  # works with any server that has OpenAI's chat API
set_tracing_disabled(True)  # traces would be sent to OpenAI


async def main():
    async with MCPServerStdio({"command": "./a2e", "args": ["mcp", "serve"]}, cache_tools_list=True) as a2e:
        agent = Agent("a2e", model="gpt-5-mini", mcp_servers=[a2e])
        print((await Runner.run(agent, sys.argv[1])).final_output)


asyncio.run(main())
