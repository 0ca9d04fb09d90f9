/**
 * What the requests of each key came to. The text of one key is made of its own numbers alone, so that nothing of
 * another can ever be in it.
 */
import { PREFIX } from '../metrics/meter.ts';
import { Registry } from '../metrics/registry.ts';
import type { UsedTokens } from '../openai/turn.ts';

/** `left`: the client went before the end. */
const OUTCOMES = ['answered', 'refused', 'failed', 'left'] as const;
type Outcome = (typeof OUTCOMES)[number];

/** What became of a request that was answered with this status; null: its client went before the end. */
function outcomeOf(status: number | null): Outcome {
  if (status === null) return 'left';
  return status < 400 ? 'answered' : status < 500 ? 'refused' : 'failed';
}

interface Tally extends Record<Outcome, number> {
  running: number;
  promptTokens: number;
  cachedTokens: number;
  tokens: number;
}

export class KeyMetrics {
  readonly #tallies: ReadonlyMap<string, Tally>;

  /** names: of all keys. */
  constructor(names: Iterable<string>) {
    const none = {
      answered: 0,
      refused: 0,
      failed: 0,
      left: 0,
      running: 0,
      promptTokens: 0,
      cachedTokens: 0,
      tokens: 0,
    };
    this.#tallies = new Map([...names].map((name) => [name, { ...none }]));
  }

  /** A request of a key begins. → what is called with the status of its answer; null: its client went before. */
  began(name: string): (status: number | null) => void {
    const tally = this.#tallies.get(name);
    if (tally === undefined) return () => {};
    tally.running++;
    return (status) => {
      tally.running--;
      tally[outcomeOf(status)]++;
    };
  }

  /** An answer of a key came to its end. */
  used(name: string, { promptTokens, cachedTokens, tokens }: UsedTokens): void {
    const tally = this.#tallies.get(name);
    if (tally === undefined) return;
    tally.promptTokens += promptTokens;
    tally.cachedTokens += cachedTokens;
    tally.tokens += tokens;
  }

  /** kvBytes: by key, what its conversations hold now. own: the one key that is told of; left out: all are. */
  text(kvBytes: ReadonlyMap<string, number>, own?: string): string {
    const tallies = [...this.#tallies].filter(([name]) => own === undefined || name === own);
    const registry = new Registry(PREFIX);
    const sets = { key: tallies.map(([name]) => name) };
    const requests = registry.counter(
      'key_requests_total',
      'Requests of a key that passed the guard, by how they ended.',
      {
        ...sets,
        outcome: OUTCOMES,
      },
    );
    const running = registry.gauge('key_requests_running', 'Requests of a key that are answered or wait.', sets);
    const prompt = registry.counter('key_prompt_tokens_total', 'Tokens of prompts that were read for a key.', sets);
    const cached = registry.counter('key_cached_tokens_total', 'Tokens of its prompts that a cache held.', sets);
    const written = registry.counter('key_generation_tokens_total', 'Tokens that were written for a key.', sets);
    const held = registry.gauge('key_kv_bytes', 'Bytes of keys and values that its conversations hold now.', sets);
    for (const [key, tally] of tallies) {
      for (const outcome of OUTCOMES) requests.add({ key, outcome }, tally[outcome]);
      running.set({ key }, tally.running);
      prompt.add({ key }, tally.promptTokens);
      cached.add({ key }, tally.cachedTokens);
      written.add({ key }, tally.tokens);
      held.set({ key }, kvBytes.get(key) ?? 0);
    }
    return registry.text();
  }
}
