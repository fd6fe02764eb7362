# Uses a worker as a client of the a2a-sdk 1.x does, and prints a line for each step: client.py URL TOKEN
import asyncio, sys, uuid
import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_message_text, get_text_parts, new_text_message
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, Role, SendMessageRequest, SubscribeToTaskRequest, TaskState


def ask(text, context=None, now=False):
    request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
    if context:
        request.message.context_id = context
    request.configuration.return_immediately = now
    return request


def text_of(artifact):
    return get_text_parts(artifact.parts)[0]


async def main(url, token):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        print("card", card.name, [i.protocol_version for i in card.supported_interfaces], card.capabilities.streaming)
        streaming = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)

        seen, context = [], ""
        async for event in streaming.send_message(ask("how many words are these")):
            kind = event.WhichOneof("payload")
            if kind == "task":
                context = event.task.context_id
                seen.append(TaskState.Name(event.task.status.state))
            elif kind == "status_update":
                seen.append(TaskState.Name(event.status_update.status.state))
            else:
                seen.append(text_of(event.artifact_update.artifact))
        print("stream", *seen)

        async for event in polling.send_message(ask("and these", context)):
            task = event.task
            print("send", TaskState.Name(task.status.state), text_of(task.artifacts[0]), task.context_id == context,
                  '"type":"TASK_RESULT"' in get_message_text(task.status.message))

        async for event in polling.send_message(ask("sleep", now=True)):
            slow = event.task
        print("begun", TaskState.Name(slow.status.state))
        follow = streaming.subscribe(SubscribeToTaskRequest(id=slow.id))
        print("subscribed", TaskState.Name((await anext(follow)).task.status.state))
        ended = await streaming.cancel_task(CancelTaskRequest(id=slow.id))
        print("cancelled", TaskState.Name(ended.status.state))
        print("followed", TaskState.Name([e async for e in follow][-1].status_update.status.state))
        got = await streaming.get_task(GetTaskRequest(id=slow.id))
        print("got", TaskState.Name(got.status.state))
        listed = await streaming.list_tasks(ListTasksRequest(context_id=context))
        print("listed", listed.total_size)
        try:
            await streaming.get_task(GetTaskRequest(id=str(uuid.uuid4())))
        except Exception as e:
            print("missing", type(e).__name__)


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
