# Uses a worker as a client of the a2a-sdk 0.3 does, and prints a line for each step: client.py URL TOKEN
import asyncio, sys, uuid
import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory, create_text_message_object
from a2a.types import TaskArtifactUpdateEvent, TaskIdParams, TaskQueryParams, TaskStatusUpdateEvent
from a2a.utils import get_message_text


def ask(text, context=None):
    message = create_text_message_object(content=text)
    message.context_id = context
    return message


async def main(url, token):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        print("card", card.name, card.protocol_version, card.capabilities.streaming)
        streaming = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False, polling=True)).create(card)
        waiting = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)

        seen, context = [], ""
        async for task, update in streaming.send_message(ask("how many words are these")):
            context = task.context_id
            if isinstance(update, TaskStatusUpdateEvent):
                seen.append(update.status.state.value)
            elif isinstance(update, TaskArtifactUpdateEvent):
                seen.append(update.artifact.parts[0].root.text)
            else:
                seen.append(task.status.state.value)
        print("stream", *seen)

        async for task, _ in waiting.send_message(ask("and these", context)):
            print("send", task.status.state.value, task.artifacts[0].parts[0].root.text, task.context_id == context,
                  '"type":"TASK_RESULT"' in get_message_text(task.status.message))

        async for slow, _ in polling.send_message(ask("sleep")):
            print("begun", slow.status.state.value)
        follow = streaming.resubscribe(TaskIdParams(id=slow.id))
        task, _ = await anext(follow)
        print("subscribed", task.status.state.value)
        ended = await streaming.cancel_task(TaskIdParams(id=slow.id))
        print("cancelled", ended.status.state.value)
        print("followed", [e async for e in follow][-1][1].status.state.value)
        got = await streaming.get_task(TaskQueryParams(id=slow.id))
        print("got", got.status.state.value)
        try:
            await streaming.get_task(TaskQueryParams(id=str(uuid.uuid4())))
        except Exception as e:
            print("missing", type(e).__name__)


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
