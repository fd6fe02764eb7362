"""An MCP server whose tool asks the client for its model, and returns the answer of the model."""
import json, sys

def send(**m):
    print(json.dumps({"jsonrpc": "2.0", **m}), flush=True)

for line in sys.stdin:
    m = json.loads(line)
    method, id = m.get("method"), m.get("id")
    if method == "initialize":
        send(id=id, result={"protocolVersion": "2025-06-18", "serverInfo": {"name": "asks", "version": "1"}, "capabilities": {"tools": {}}})
    elif method == "tools/list":
        send(id=id, result={"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        send(id="s", method="sampling/createMessage", params={"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 9})
        said = json.loads(sys.stdin.readline())
        send(id=id, result={"content": [{"type": "text", "text": json.dumps(said.get("result") or said.get("error"))}]})
    elif id is not None:
        send(id=id, result={})
