/**
 * A conversation of 20 answers with SmolLM2-135M within 8 MiB of KV cache: ten questions, each answered by a call of a tool and then in words. A schema shapes every
 * answer, so a small model never calls a tool that there is not, or in a way that cannot be read.
 *
 *   npm run fetch:model && node --import tsx examples/tool-chat.ts
 */
import { createEngine } from 'palimpsest';

const PRICES: Readonly<Record<string, number>> = { honey: 6, wax: 4, candle: 9, hive: 120 };
const tools = {
  price: ({ item }: { item: string }) => `${item} costs ${PRICES[item]} euros`,
  total: ({ item, count }: { item: string; count: number }) => `${count} x ${item}: ${count * PRICES[item]!} euros`,
};
const item = { enum: Object.keys(PRICES) };
const callOf = (name: keyof typeof tools, properties: object) => ({
  type: 'object',
  properties: {
    tool: { const: name },
    arguments: { type: 'object', properties, required: Object.keys(properties) },
  },
  required: ['tool', 'arguments'],
});
const call = {
  oneOf: [callOf('price', { item }), callOf('total', { item, count: { type: 'integer', minimum: 1, maximum: 99 } })],
};
const reply = { type: 'object', properties: { answer: { type: 'string', maxLength: 60 } }, required: ['answer'] };

const system = 'You sell what a beekeeper makes. You call a tool, as JSON, and then you say what it found, as JSON.';
const shown = [
  ...['And a candle?', '{"tool": "price", "arguments": {"item": "candle"}}'],
  ...['The tool says: candle costs 9 euros.', '{"answer": "A candle costs 9 euros."}'],
  ...['I take five pieces of wax.', '{"tool": "total", "arguments": {"item": "wax", "count": 5}}'],
  ...['The tool says: 5 x wax: 20 euros.', '{"answer": "Five pieces of wax cost 20 euros."}'],
].map((content, index) => ({ role: index % 2 === 0 ? ('user' as const) : ('assistant' as const), content }));
const QUESTIONS = [
  ...[
    'What does honey cost?',
    'And three of them?',
    'How much is a candle?',
    'I want twelve candles.',
    'What is a hive?',
  ],
  ...[
    'Two hives, please.',
    'Do you sell wax?',
    'Ten pieces of wax?',
    'One honey and that is all.',
    'How much for 99 candles?',
  ],
];

/** Holds the conversation with a model and tells each line. → what came of it */
export async function run(model: string, tell: (line: string) => void, cacheDir?: string) {
  const engine = await createEngine({ model, stateDir: null, ...(cacheDir === undefined ? {} : { cacheDir }) });
  const limits = { kvBudget: '8MiB', contextTokens: 2048, atContextEnd: 'drop-oldest', maxTokens: 64 } as const;
  const chat = await engine.chat({ system, messages: shown, ...limits });
  const answers: string[] = [];
  const ask = async (message: string, jsonSchema: object) => {
    const { text, grammarComplete } = await chat.send(message, { grammar: { jsonSchema: { ...jsonSchema } } }).result;
    if (grammarComplete !== true) throw new Error(`the answer was cut off: ${text}`);
    answers.push(text);
    return JSON.parse(text);
  };
  for (const question of QUESTIONS) {
    const asked = await ask(question, call);
    const found = tools[asked.tool as keyof typeof tools](asked.arguments);
    const { answer } = await ask(`The tool says: ${found}.`, reply);
    tell(`${question}\n  ${asked.tool}(${JSON.stringify(asked.arguments)}) → ${found}\n  ${answer}`);
  }
  const { kvBytes, kvBytesF16, budgetBytes, tokens } = await chat.session.report();
  tell(`${answers.length} answers, ${tokens} tokens in ${kvBytes} bytes at most (f16: ${kvBytesF16})`);
  await engine.close();
  return { answers, kvBytes, budgetBytes };
}

if (process.argv[1] === import.meta.filename) await run('smollm2-135m', console.log);
