/**
 * An agent that calls tools for 20 turns within 1 MiB of cache: each turn a question, a call, what it gave, and an
 * answer. Prints after each turn what the conversation takes, which does not grow past the budget, and what the turn
 * cost.
 *
 *   node --import tsx examples/agent.ts
 */
import { createEngine } from 'palimpsest';

const BUDGET = 2 ** 20;
const PLACES = ['Oslo', 'Rome', 'Quebec', 'Nairobi'];
const place = { enum: PLACES };
const tools = [{ name: 'weather', parameters: { type: 'object', properties: { place }, required: ['place'] } }];
const weather = (where: string): string => `${where}: ${8 + 5 * PLACES.indexOf(where)} degrees, no rain`;

/** Holds the conversation with a model and tells each line. → what each turn cost */
export async function run(model: string, tell: (line: string) => void) {
  await using engine = await createEngine({ model, stateDir: null });
  await using chat = await engine.chat({ template: 'hermes', tools, kvBudget: BUDGET, atContextEnd: 'drop-oldest' });
  const turns = [];
  for (let turn = 1; turn <= 20; turn++) {
    const question = `How is the weather in ${PLACES[turn % PLACES.length]}?`;
    const asked = await chat.send(question, { toolChoice: { name: 'weather' }, parallelToolCalls: false }).result;
    const given = asked.toolCalls.map(({ id, name, arguments: { place: where } }) => ({
      ...{ role: 'tool' as const, toolCallId: id, name, content: weather(String(where)) },
    }));
    const answer = await chat.send(given, { toolChoice: 'none', maxTokens: 12 }).result;
    const { kvBytesNow: kvBytes, kvBytesF16, decisions } = await chat.session.report();
    const read = asked.promptTokens + answer.promptTokens;
    const cachedTokens = asked.cachedTokens;
    turns.push({ calls: given.length, kvBytes, cachedTokens });
    tell(`turn ${turn}: ${read} tokens read, ${asked.tokens + answer.tokens} written, ${cachedTokens} cached;`);
    tell(`  ${kvBytes} bytes (f16: ${kvBytesF16}) after ${decisions} decisions`);
  }
  return { turns, budgetBytes: BUDGET };
}

if (process.argv[1] === import.meta.filename) await run('reference', console.log);
