"""Checks the output of `a2e tools export` in each format against the vendors' types: check.py < {"openai": [...], ...}"""
import json, re, sys
from anthropic.types import ToolParam
from jsonschema import Draft202012Validator
from mcp.types import Tool
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import TypeAdapter

formats = {  # the type, the allowed members, and the schema in it
    "openai": (ChatCompletionFunctionToolParam, {"type", "function"}, lambda tool: tool["function"]["parameters"]),
    "anthropic": (ToolParam, {"name", "description", "input_schema"}, lambda tool: tool["input_schema"]),
    "google": (dict, {"name", "description", "parametersJsonSchema"}, lambda tool: tool["parametersJsonSchema"]),
    "mcp": (Tool, {"name", "title", "description", "inputSchema", "outputSchema", "annotations"}, None),
    "jsonschema": (dict, None, None),
}
exported = json.load(sys.stdin)
assert exported.keys() == formats.keys()
for format, tools in exported.items():
    assert len(tools) > 9, len(tools)
    for tool in tools:
        shape, members, schema = formats[format]
        TypeAdapter(shape).validate_python(tool)
        assert members is None or set(tool) <= members, tool
        if format in ("openai", "anthropic", "google"):  # the other formats pass on the schema of a server
            Draft202012Validator.check_schema(schema(tool))
    if format == "openai":
        assert all(set(tool["function"]) <= {"name", "description", "parameters", "strict"} and len(tool["function"]["description"]) <= 1024 for tool in tools)
    if format == "google":  # names begin with a letter or _
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", tool["name"]) for tool in tools)
print("all fit")
