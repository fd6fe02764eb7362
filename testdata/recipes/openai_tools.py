"""OpenAI's API with a2e's tools: python3 openai_tools.py 'Write a haiku into haiku.txt.'"""
import json, subprocess, sys
from openai import OpenAI
from a2e_client import A2EError, Host

exported = json.loads(subprocess.check_output(["./a2e", "tools", "export", "--format", "openai", "--map"]))
model, messages = OpenAI(), [{"role": "user", "content": sys.argv[1]}]


def result(host, call):
    try:
        tool = exported["names"][call.function.name]
        return host.call(tool, json.loads(call.function.arguments), timeout=60)
    except (A2EError, TimeoutError, KeyError, ValueError) as err:  # so that the model can correct its call
        return {"error": str(err)}


with Host(["./a2e"], agent_id="openai") as host:
    for turn in range(20):
        answer = model.chat.completions.create(model="gpt-5-mini", messages=messages, tools=exported["tools"]).choices[0].message
        messages.append(answer.to_dict())
        if not answer.tool_calls:
            print(answer.content)
            break
        for call in answer.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result(host, call))})
