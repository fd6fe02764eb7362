"""Tests `a2e mcp serve` with a client of the Python SDK:

    python3 client.py A2E     in a folder with note.md, skills/greet and server-everything in a2e.yaml
"""
import json
import os
import sys
import traceback

import anyio
import mcp_types as types
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError


def text(result):
    return "".join(getattr(block, "text", "") for block in result.content)


async def fails(code, awaitable):
    try:
        await awaitable
    except MCPError as err:
        assert err.error.code == code, err.error
        return
    raise AssertionError("it did not fail")


async def everything(list_page, key):
    found, params = [], None
    while True:
        page = await list_page(params=params)
        found += getattr(page, key)
        if not page.next_cursor:
            return found
        params = types.PaginatedRequestParams(cursor=page.next_cursor)


async def sample(context, params):
    said = "heard: " + params.messages[0].content.text
    return types.CreateMessageResult(role="assistant", model="m", content=types.TextContent(type="text", text=said))


async def elicit(context, params):
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def roots(context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///of/the/client", name="mine")])


async def begin(session):
    hello = session.initialize_result
    assert hello.server_info.name == "a2e" and "workspace" in hello.instructions
    assert hello.capabilities.tools and hello.capabilities.resources and hello.capabilities.prompts
    await session.send_ping()


async def tools(session):
    known = {}
    with anyio.fail_after(60):  # the server behind the host may take a while to start
        while "all__echo" not in known:
            known = {tool.name: tool for tool in await everything(session.list_tools, "tools")}
    read = known["read_file"]
    assert read.input_schema["properties"]["path"]["type"] == "string" and "path" in read.input_schema["required"]
    assert read.annotations.read_only_hint is True and known["run_command"].annotations.read_only_hint is False
    weather = known["all__get-structured-content"]
    assert weather.output_schema["properties"]["humidity"]["type"] == "number"
    found = await session.call_tool("grep", {"pattern": "note"})  # the SDK checks the result against the output schema
    assert not found.is_error and "note.md" in json.dumps(found.structured_content)
    found = await session.call_tool("all__get-structured-content", {"location": "Chicago"})
    assert found.structured_content == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}


async def errors(session):
    missing = await session.call_tool("read_file", {"path": "none.txt"})
    assert missing.is_error and "none.txt" in text(missing), missing
    failed = await session.call_tool("all__get-resource-reference", {"resourceType": "Text", "resourceId": -1})
    assert failed.is_error and "Invalid resourceId" in text(failed), failed
    await fails(types.INVALID_PARAMS, session.call_tool("no_such_tool", {}))


async def progress_and_cancel(session):
    told = []

    async def note(progress, total, message):
        told.append((progress, total))

    await session.call_tool("all__trigger-long-running-operation", {"duration": 0.1, "steps": 4}, progress_callback=note)
    assert told[:3] == [(1, 4), (2, 4), (3, 4)], told

    async with anyio.create_task_group() as group:
        command = ["sh", "-c", "echo $$ > ready; exec sleep 60"]
        group.start_soon(session.call_tool, "run_command", {"command": command})
        with anyio.fail_after(30):
            while not os.path.exists("ready"):
                await anyio.sleep(0.005)
        group.cancel_scope.cancel()
    with anyio.fail_after(30):
        while True:
            look = await session.call_tool("run_command", {"command": ["sh", "-c", "kill -0 $(cat ready) 2>&1 || echo gone"]})
            if "gone" in look.structured_content["stdout"]:
                break


async def resources(session):
    files = {r.name: r for r in await everything(session.list_resources, "resources")}
    got = await session.read_resource(files["note.md"].uri)
    assert got.contents[0].text == "# note\n"
    templates = await session.list_resource_templates()
    assert any(t.uri_template.startswith("file:///") for t in templates.resource_templates)
    await fails(-32002, session.read_resource(str(files["note.md"].uri) + ".none"))


async def prompts(session):
    greet = {p.name: p for p in await everything(session.list_prompts, "prompts")}["greet"]
    assert "who" in [a.name for a in greet.arguments]
    theirs = await session.get_prompt("all__args-prompt", {"city": "Paris"})
    assert "Paris" in theirs.messages[0].content.text
    got = await session.get_prompt("greet", {"who": "Ada"})
    assert got.messages[0].role == "user" and got.messages[0].content.text == "Say hello to Ada, in one line."
    await fails(types.INVALID_PARAMS, session.get_prompt("none"))


async def asked(session):
    assert "heard: " in text(await session.call_tool("all__trigger-sampling-request", {"prompt": "hi"}))
    assert "- Name: Ada" in text(await session.call_tool("all__trigger-elicitation-request", {}))
    with anyio.fail_after(30):
        while "file:///of/the/client" not in text(await session.call_tool("all__get-roots-list", {})):
            await anyio.sleep(0.01)


async def pinned(server, callbacks):
    """Uses the version of MCP without initialize, in which a server asks in its answers."""
    async with Client(server, mode="2026-07-28", **callbacks) as client:
        assert client.protocol_version == "2026-07-28"
        with anyio.fail_after(30):
            while "all__echo" not in [t.name for t in (await client.list_tools()).tools]:
                await anyio.sleep(0.01)
        assert "heard: " in text(await client.call_tool("all__trigger-sampling-request", {"prompt": "hi"}))
        assert "- Name: Ada" in text(await client.call_tool("all__trigger-elicitation-request", {}))
        assert (await client.read_resource("demo://resource/dynamic/text/1")).contents[0].text
        assert "Paris" in (await client.get_prompt("all__args-prompt", {"city": "Paris"})).messages[0].content.text
    print("pinned")


async def main():
    failed = False
    server = StdioServerParameters(command=sys.argv[1], args=["mcp", "serve"], env=dict(os.environ))
    async with stdio_client(server) as (read, write):
        callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}
        async with ClientSession(read, write, **callbacks) as session:
            await session.initialize()
            for part in (begin, tools, errors, progress_and_cancel, resources, prompts, asked):
                try:
                    await part(session)
                except Exception:
                    failed = True
                    traceback.print_exc()
                print(part.__name__, flush=True)
    await pinned(server, callbacks)
    sys.exit(failed)


anyio.run(main)
