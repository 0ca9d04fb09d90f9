"""Renders chat templates as transformers does. In, as JSON: {"date", "templates": {name: text}, "variables": {...},
"kind": "values" or "conversations", "values": {name: text of JSON}}; values are all that a template is given. Out: {template: {values: text, or null where Python fails}}."""

import copy
import datetime
import json
import sys

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message):
    raise ValueError(message)


given = json.load(sys.stdin)
date = datetime.datetime.fromisoformat(given["date"])
environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
)
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = refuse
environment.globals["strftime_now"] = date.strftime


def render(template, values):
    try:
        return template.render(**copy.deepcopy(values))
    except Exception:
        return None


# Transformers puts a word here. With a letter that has no case, templates that count or change letters say the same.
MARK = "\ue000 "


def spoken(variables, chat):
    chat = {"messages": chat} if isinstance(chat, list) else chat
    messages = chat["messages"]
    prompt = chat.get("add_generation_prompt", True)
    if chat.get("continue_final_message"):
        messages = messages[:-1] + [{**messages[-1], "content": messages[-1]["content"] + MARK}]
        prompt = False
    tools = chat.get("tools")
    return {**variables, "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}


def opened(text, values):
    """The prompt that ends where the last message does: transformers puts a mark behind it and cuts there."""
    last = values.get("messages", [{}])[-1].get("content") or ""
    if text is None or not last.endswith(MARK):
        return text
    if MARK.strip() not in text or last[: -len(MARK)].strip() not in text:
        return None
    at = text.rindex(MARK.strip())
    return text[:at] if text.startswith(MARK, at) else text[:at].rstrip()


given["values"] = {name: json.loads(text) for name, text in given["values"].items()}
if given["kind"] == "conversations":
    given["values"] = {name: spoken(given["variables"], chat) for name, chat in given["values"].items()}
rendered = {}
for name, text in given["templates"].items():
    try:
        template = environment.from_string(text)
    except Exception:
        rendered[name] = {case: None for case in given["values"]}
        continue
    rendered[name] = {case: opened(render(template, values), values) for case, values in given["values"].items()}
json.dump(rendered, sys.stdout)
