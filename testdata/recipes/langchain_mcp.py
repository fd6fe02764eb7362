"""LangChain with a2e's tools: python3 langchain_mcp.py 'Write a haiku into haiku.txt.'"""
import asyncio, sys
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI


async def main():
    servers = MultiServerMCPClient({"a2e": {"transport": "stdio", "command": "./a2e", "args": ["mcp", "serve"]}})
    async with servers.session("a2e") as session:  # one host for the whole run
        agent = create_agent(ChatOpenAI(model="gpt-5-mini"), await load_mcp_tools(session))
        answer = await agent.ainvoke({"messages": [("user", sys.argv[1])]})
        print(answer["messages"][-1].text)


asyncio.run(main())
