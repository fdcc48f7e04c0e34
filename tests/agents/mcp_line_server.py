"""A server of the Model Context Protocol in the standard library alone, for sandboxes: one JSON message a line."""

import json
import os
import sys

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NAMES = ("shout", "fail", "wait", "exit")
TOOLS = [{"name": name, "description": f"It {name}s.", "inputSchema": SCHEMA} for name in NAMES]


WAIT = object()
"""In the place of a result that does not come."""


def answer(method, params):
    """The result of a request, or None where there is no such method."""
    if method == "initialize":
        info = {"name": "lines", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        first = not params.get("cursor")
        return {"tools": TOOLS[:2], "nextCursor": "more"} if first else {"tools": TOOLS[2:]}
    if method == "tools/call":
        name, text = params["name"], params["arguments"]["text"]
        if name == "exit":
            sys.exit(3)
        if name == "wait":
            return WAIT
        shown = f"{text.upper()} {os.getcwd()}" if name == "shout" else "it failed"
        return {"content": [{"type": "text", "text": shown}], "isError": name == "fail"}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        if result is WAIT:
            continue
        reply = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
