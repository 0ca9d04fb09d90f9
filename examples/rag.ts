/**
 * Questions about documents that stand first in every prompt: the first question reads them, and each later one reads
 * itself alone. Prints how many tokens of each prompt were not read again.
 *
 *   node --import tsx examples/rag.ts
 */
import { createEngine } from 'palimpsest';

/** What a search would have found. Documents come first and in one order, the question last. */
const DOCUMENTS = ['hives along the wall', 'frames in the shed', 'jars on the shelf'].map(
  (what, n) => `Document ${n + 1}. ${`The old keeper counted the ${what} and wrote down what he saw. `.repeat(12)}`,
);
const QUESTIONS = ['Who counted?', 'What was on the shelf?', 'Where were the frames?', 'What did he write down?'];

/** Asks a model all of it and tells each line. → what came of it */
export async function run(model: string, tell: (line: string) => void) {
  await using engine = await createEngine({ model, stateDir: null, kvBudget: '4MiB' });
  const rounds = [];
  for (const question of QUESTIONS) {
    // A session of its own each time, as requests are: what they begin with alike is found by its tokens.
    await using session = await engine.openSession();
    const prompt = `${DOCUMENTS.join('\n')}\n\nQuestion: ${question}\nAnswer:`;
    const { text, promptTokens, cachedTokens } = await session.generate(prompt, { maxTokens: 16, seed: 1 }).result;
    const { kvBytes } = await session.report();
    rounds.push({ promptTokens, cachedTokens, kvBytes });
    tell(`${question} ${cachedTokens} of ${promptTokens} tokens were cached\n  ${JSON.stringify(text)}`);
  }
  return rounds;
}

if (process.argv[1] === import.meta.filename) await run('reference', console.log);
