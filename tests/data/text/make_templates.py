#!/usr/bin/env python3
"""Renders templates/*.jinja with Python's jinja2, set up as Hugging Face transformers does, into templates.json.

Needs: pip install jinja2==3.1.6
"""

import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather: \"now\" & <here>, für überall",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 3}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "time", "description": "", "parameters": {}}},
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": 2}}}
    ],
}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello, wörld! 你好 🙂"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "apple a day z"}],
    "turns": [
        {"role": "user", "content": "What is 1+1?"},
        {"role": "assistant", "content": "<think>\nOne and one.\n</think>\n\nTwo."},
        {"role": "user", "content": "  And 2+2?  "},
    ],
    "reasoning": [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "q1"},
        {"role": "assistant", "reasoning_content": "hm\n", "content": "a1"},
    ],
    "tools": [
        {"role": "user", "content": "Weather in Köln?"},
        CALL,
        {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks"},
    ],
    "awaiting": [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "content": "sun"}, {"role": "tool", "content": "wind"}],
    "two_users": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "empty": [{"role": "user", "content": ""}],
    "markup": [{"role": "user", "content": "{{ 1 + 1 }} {% if %} <b>&amp;</b> \\n 'single' \"double\""}],
}


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def main():
    env = environment()
    rows = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = env.from_string(path.read_text())
        for name, messages in CONVERSATIONS.items():
            variants = [(None, {}, True), (None, {}, False), (TOOLS, {}, True)]
            if path.stem == "qwen3":
                variants += [(None, {"enable_thinking": False}, True), (None, {"enable_thinking": True}, True)]
            for tools, kwargs, generate in variants:
                row = {
                    "template": path.stem,
                    "conversation": name,
                    "messages": json.dumps(messages, ensure_ascii=False),
                    "tools": json.dumps(tools, ensure_ascii=False) if tools else "",
                    "kwargs": json.dumps(kwargs) if kwargs else "",
                    "add_generation_prompt": generate,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                }
                try:
                    row["expected"] = template.render(
                        messages=messages, tools=tools, documents=None, add_generation_prompt=generate,
                        bos_token="<s>", eos_token="</s>", **kwargs)
                except jinja2.exceptions.UndefinedError:
                    continue
                except jinja2.exceptions.TemplateError as error:
                    row["error"] = error.message
                except TypeError:
                    continue  # a template that cannot take null content
                rows.append(row)
    with open(HERE / "templates.json", "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")
    print(len(rows), "rows")


if __name__ == "__main__":
    main()
