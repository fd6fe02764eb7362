"""Tests tools with odd schemas with a client of the Python SDK:

    python3 schemas.py A2E     in a folder with an MCP server `odd` in a2e.yaml

It lists the tools, calls each tool of `odd` with its arguments in $ARGUMENTS, and prints the names of these tools.
"""
import json
import os
import sys

import anyio
from jsonschema.validators import validator_for
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    known = json.loads(os.environ["ARGUMENTS"])
    server = StdioServerParameters(command=sys.argv[1], args=["mcp", "serve"], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        found = []
        with anyio.fail_after(60):
            while not found:
                found = [tool for tool in (await session.list_tools()).tools if tool.name.startswith("odd__")]
        for tool in found:
            for schema in (tool.input_schema, tool.output_schema):
                if schema is not None:
                    validator_for(schema).check_schema(schema, format_checker=None)
            result = await session.call_tool(tool.name, known.get(tool.name, known[""]))
            assert not result.is_error, (tool.name, result)
            print(tool.name)


anyio.run(main)
