/**
 * A conversation of 20 answers with SmolLM2-135M within 8 MiB of KV cache: ten questions, each answered by a call of a
 * tool and then in words. Whether an answer is a call is chosen here, and a call follows the schema of its tool, so
 * that even a small model never calls a tool that there is not, or in a way that cannot be read.
 *
 *   npm run fetch:model && node --import tsx examples/tool-chat.ts
 */
import { type ChatMessage, createEngine } from 'palimpsest';

const PRICES: Readonly<Record<string, number>> = { honey: 6, wax: 4, candle: 9, hive: 120 };
const item = { enum: Object.keys(PRICES) };
const count = { type: 'integer', minimum: 1, maximum: 99 };
const tools = [
  { name: 'price', parameters: { type: 'object', properties: { item }, required: ['item'] } },
  { name: 'total', parameters: { type: 'object', properties: { item, count }, required: ['item', 'count'] } },
];
const work = (name: string, { item, count }: { item: string; count: number }): string =>
  name === 'price' ? `${item} costs ${PRICES[item]} euros` : `${count} x ${item}: ${count * PRICES[item]!} euros`;

// The model's own template has no place for tools; this one writes calls as Hermes and Qwen do.
const template = `{% if tools %}<|im_start|>system
You sell what a beekeeper makes. Tools: {{ tools | map(attribute='function') | map(attribute='name') | join(', ') }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;
/** How it is done, once for each tool. */
const shown = (asked: string, name: string, given: object, answer: string): ChatMessage[] => [
  { role: 'user', content: asked },
  { role: 'assistant', content: '', toolCalls: [{ id: name, name, arguments: { ...given } }] },
  { role: 'tool', toolCallId: name, name, content: work(name, given as { item: string; count: number }) },
  { role: 'assistant', content: answer },
];
const messages = [
  ...shown('And a candle?', 'price', { item: 'candle' }, 'A candle costs 9 euros.'),
  ...shown('I take five pieces of wax.', 'total', { item: 'wax', count: 5 }, 'Five pieces of wax cost 20 euros.'),
];
const QUESTIONS = `What does honey cost? And three of them? How much is a candle? I want twelve candles. What is a hive?
  Two hives, please. Do you sell wax? Ten pieces of wax? One honey and that is all. How much for 99 candles?`;

/** Holds the conversation with a model and tells each line. → what came of it */
export async function run(model: string, tell: (line: string) => void, cacheDir?: string) {
  const engine = await createEngine({ model, stateDir: null, ...(cacheDir === undefined ? {} : { cacheDir }) });
  const limits = { kvBudget: '8MiB', contextTokens: 2048, atContextEnd: 'drop-oldest', maxTokens: 64 } as const;
  const chat = await engine.chat({ template, tools, messages, ...limits });
  const rounds = [];
  for (const question of QUESTIONS.match(/\S[^.?]*[.?]/g)!) {
    const asked = await chat.send(question, { toolChoice: 'required' }).result;
    const found = asked.toolCalls.map(({ id, name, arguments: given }): ChatMessage => {
      return { role: 'tool', toolCallId: id, name, content: work(name, given as { item: string; count: number }) };
    });
    if (found.length === 0) throw new Error(`the call was cut off: ${asked.text}`);
    const { text } = await chat.send(found, { toolChoice: 'none' }).result;
    rounds.push({ calls: asked.toolCalls, text });
    tell(`${question}\n  ${found.map(({ name, content }) => `${name} → ${content}`).join('\n  ')}\n  ${text}`);
  }
  const { kvBytes, kvBytesF16, budgetBytes, tokens } = await chat.session.report();
  tell(`${2 * rounds.length} answers, ${tokens} tokens in ${kvBytes} bytes at most (f16: ${kvBytesF16})`);
  await engine.close();
  return { rounds, kvBytes, budgetBytes };
}

if (process.argv[1] === import.meta.filename) await run('smollm2-135m', console.log);
