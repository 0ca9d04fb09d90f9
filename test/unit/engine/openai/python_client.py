"""What openai-python makes of a server, as JSON: asked for its URL by python-client.test.ts."""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
told = {"version": openai.__version__}
messages = [{"role": "user", "content": "Who kept the bees?"}]
asked = {"model": "reference", "messages": messages, "max_tokens": 12, "seed": 1, "temperature": 0}
whole = client.chat.completions.create(**asked, extra_body={"cache_salt": "python"})
told["chat"] = {
    "text": whole.choices[0].message.content,
    "finish": whole.choices[0].finish_reason,
    "tokens": whole.usage.completion_tokens,
    "cached": whole.usage.prompt_tokens_details.cached_tokens,
    "session": whole.palimpsest["session"],
}
pieces = []
usage = None
with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
    for chunk in stream:
        if chunk.choices:
            pieces.append(chunk.choices[0].delta.content or "")
        usage = chunk.usage or usage
told["streamed"] = {"text": "".join(pieces), "tokens": usage.completion_tokens}
with client.chat.completions.stream(**asked) as stream:
    # Its final completion is an error where an answer was cut off.
    told["helper"] = "".join(event.delta for event in stream if event.type == "content.delta")
tool = {
    "type": "function",
    "function": {
        "name": "count",
        "parameters": {
            "type": "object",
            "properties": {"what": {"enum": ["bees", "hives"]}},
            "required": ["what"],
            "additionalProperties": False,
        },
    },
}
called = client.chat.completions.create(
    **{**asked, "max_tokens": 64}, tools=[tool], tool_choice={"type": "function", "function": {"name": "count"}}
)
calls = called.choices[0].message.tool_calls or []
told["calls"] = [[call.function.name, json.loads(call.function.arguments)] for call in calls]
said = [*messages, called.choices[0].message, {"role": "tool", "tool_call_id": calls[0].id, "content": "7"}]
told["behind"] = client.chat.completions.create(**{**asked, "messages": said}, tools=[tool]).choices[0].finish_reason
first = client.responses.create(model="reference", input="Who kept the bees?", max_output_tokens=8, temperature=0)
then = client.responses.create(
    model="reference", input="And then?", previous_response_id=first.id, max_output_tokens=8, temperature=0
)
told["responses"] = {
    "status": first.status,
    "text": first.output_text,
    "behind": then.previous_response_id == first.id,
    "cached": then.usage.input_tokens_details.cached_tokens,
}
with client.responses.stream(model="reference", input="Who kept the bees?", max_output_tokens=8, temperature=0) as stream:
    events = list(stream)
told["events"] = sorted({event.type for event in events})
told["final"] = "".join(event.delta for event in events if event.type == "response.output_text.delta")
told["vector"] = len(client.embeddings.create(model="reference", input="bees").data[0].embedding)
told["models"] = [one.id for one in client.models.list()]
try:
    client.chat.completions.create(**{**asked, "temperature": -1})
except openai.BadRequestError as error:
    told["refused"] = [error.status_code, error.param, error.code]
print(json.dumps(told))
