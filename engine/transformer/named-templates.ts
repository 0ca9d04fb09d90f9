/** Chat templates that a caller may name, for models whose own has no place for tools. */
import { KvError, suchThat } from '../../native/index.ts';

/**
 * Turns as ChatML writes them (SmolLM2, Qwen and others), calls as Hermes and Qwen do. The words are ours. A model that
 * was not taught to call tools calls them well only where it has to (`toolChoice`).
 */
const HERMES = `{%- set begins = 1 if messages and messages[0].role == 'system' else 0 -%}
{%- set system = messages[0].content if begins else '' -%}
{%- if system or tools -%}
<|im_start|>system
{{ system }}
{%- if tools -%}
{{ '\\n\\n' if system }}These functions can be called. Each line between <tools> and </tools> describes one in JSON:
<tools>
{% for tool in tools -%}
{{ tool | tojson }}
{% endfor -%}
</tools>
A call is one JSON object with the name of the function and its arguments:
<tool_call>
{"name": "function", "arguments": {"parameter": "value"}}
</tool_call>
{%- endif -%}
<|im_end|>
{% endif -%}
{%- for m in messages[begins:] -%}
<|im_start|>{{ m.role }}
{% if m.role == 'tool' -%}
<tool_response>
{{ m.content }}
</tool_response>
{%- else -%}
{{ m.content }}
{%- for call in m.tool_calls or [] -%}
{{ '\\n' if m.content or not loop.first }}<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}`;

const NAMED: Readonly<Record<string, string>> = { hermes: HERMES };

/** What a caller may give: a text without an expression would say the same whatever was said. */
export const CHAT_TEMPLATE = suchThat<string>(
  (value) => typeof value === 'string' && (Object.hasOwn(NAMED, value) || /\{[{%]/.test(value)),
  "a chat template in Jinja, or 'hermes'",
);

/** The template of this name, or else what was given, which is one. Throws 'bad-argument' where it is none. */
export function templateNamed(given: string): string {
  if (Object.hasOwn(NAMED, given)) return NAMED[given]!;
  if (CHAT_TEMPLATE.schema.safeParse(given).success) return given;
  throw new KvError('bad-argument', `template must be ${CHAT_TEMPLATE.says}`, {
    values: { template: String(given).slice(0, 80) },
  });
}
