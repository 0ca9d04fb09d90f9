/** One of those who ask: conversations of a few turns, most as streams, some left before they end. */
import { setTimeout as sleep } from 'node:timers/promises';

/** What all clients met together. */
export interface LoadTally {
  answers: number;
  left: number;
  refused: number;
  refusedInAnswer: number;
  tokens: number;
  readonly faults: string[];
  readonly firstMs: number[];
  readonly betweenMs: number[];
}

export const newTally = (): LoadTally => ({
  ...{ answers: 0, left: 0, refused: 0, refusedInAnswer: 0, tokens: 0 },
  ...{ faults: [], firstMs: [], betweenMs: [] },
});

interface Message {
  readonly role: 'user' | 'assistant';
  readonly content: string;
}

/** What a user does: shares and lengths were chosen, and are alike for all runs. */
const TURNS_MOST = 4;
const STREAMED_SHARE = 0.8;
const LEFT_SHARE = 0.1;
const THINK_MS = 500;
/** Words of a first message are e to a normal number about this, so that most are short and a few are long. */
const WORDS_LOG = { mean: 4.4, deviation: 0.9, most: 700 };
const ANSWER_TOKENS = { least: 8, most: 96 };
/** Codes of refusals that the documents name for times when memory is short. */
const PRESSURE = new Set(['budget-exceeded', 'busy']);

const WORDS =
  'keeper hive wall garden river stone letter winter morning road house candle window field bridge harbour lamp clock ledger orchard counted carried opened wrote found closed answered followed old quiet small narrow early heavy bright under beside before after and the a of in with'.split(
    ' ',
  );

export class LoadClient {
  readonly #url: string;
  readonly #random: () => number;
  readonly #tally: LoadTally;
  #messages: Message[] = [];
  #turnsLeft = 0;

  constructor(url: string, random: () => number, tally: LoadTally) {
    this.#url = url;
    this.#random = random;
    this.#tally = tally;
  }

  /** Asks until then; what is under way ends. */
  async until(endMs: number): Promise<void> {
    while (performance.now() < endMs) {
      await this.turn();
      await sleep(this.#random() * THINK_MS);
    }
  }

  /** Asks once, in the conversation of before or in a new one, and again after each refusal that allows it. */
  async turn(): Promise<void> {
    if (this.#turnsLeft === 0) {
      this.#messages = [];
      this.#turnsLeft = 1 + Math.floor(this.#random() * TURNS_MOST);
    }
    this.#turnsLeft -= 1;
    this.#messages.push({ role: 'user', content: this.#text() });
    try {
      const answer = await this.#asked();
      if (answer === null) this.#turnsLeft = 0;
      else this.#messages.push({ role: 'assistant', content: answer });
    } catch (error) {
      this.#turnsLeft = 0;
      this.#tally.faults.push(String(error));
    }
  }

  #text(): string {
    const { mean, deviation, most } = WORDS_LOG;
    const normal = Math.sqrt(-2 * Math.log(1 - this.#random())) * Math.cos(2 * Math.PI * this.#random());
    const count = Math.max(3, Math.min(most, Math.round(Math.exp(mean + deviation * normal))));
    return Array.from({ length: count }, () => WORDS[Math.floor(this.#random() * WORDS.length)]).join(' ');
  }

  /** The text of the answer, null if it was left or broke off. */
  async #asked(): Promise<string | null> {
    const { least, most } = ANSWER_TOKENS;
    const maxTokens = least + Math.floor(this.#random() * (most - least));
    const stream = this.#random() < STREAMED_SHARE;
    const leavesAfter = this.#random() < LEFT_SHARE ? Math.floor(this.#random() * maxTokens) : null;
    const body = JSON.stringify({ messages: this.#messages, max_tokens: maxTokens, stream });
    for (;;) {
      const abort = new AbortController();
      const askedMs = performance.now();
      const response = await fetch(`${this.#url}/v1/chat/completions`, {
        ...{ method: 'POST', body, signal: abort.signal },
        headers: { 'content-type': 'application/json' },
      });
      if (response.ok && stream) return await this.#streamed(response, { askedMs, leavesAfter, abort });
      if (response.ok) return this.#whole((await response.json()) as Whole);
      const { error } = (await response.json()) as Refusal;
      const after = response.headers.get('retry-after');
      if ((response.status !== 429 && response.status !== 503) || after === null) {
        this.#tally.faults.push(`${response.status} ${error.code}: ${error.message}`);
        return null;
      }
      this.#tally.refused += 1;
      await sleep(1000 * Number(after));
    }
  }

  #whole({ choices, usage }: Whole): string {
    this.#tally.answers += 1;
    this.#tally.tokens += usage.completion_tokens;
    return choices[0]!.message.content ?? '';
  }

  async #streamed(response: Response, { askedMs, leavesAfter, abort }: Streamed): Promise<string | null> {
    let [text, pieces, rest, lastMs] = ['', 0, '', askedMs];
    let isDone = false;
    const isLeft = (): boolean => leavesAfter !== null && pieces >= leavesAfter;
    for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
      const events = (rest + piece).split('\n\n');
      rest = events.pop()!;
      for (const event of events) {
        // A comment says that the server is there while its answer waits.
        if (event.startsWith(':')) continue;
        const data = event.replace(/^data: /, '');
        if (data === '[DONE]') {
          isDone = true;
          continue;
        }
        const { error, choices } = JSON.parse(data) as Piece;
        if (error !== undefined) {
          if (PRESSURE.has(error.code)) this.#tally.refusedInAnswer += 1;
          else this.#tally.faults.push(`in an answer: ${error.code}: ${error.message}`);
          return null;
        }
        const content = choices?.[0]?.delta?.content ?? '';
        if (content === '') continue;
        const nowMs = performance.now();
        (pieces === 0 ? this.#tally.firstMs : this.#tally.betweenMs).push(nowMs - lastMs);
        lastMs = nowMs;
        pieces += 1;
        this.#tally.tokens += 1;
        text += content;
      }
      if (isLeft() && !isDone) {
        this.#tally.left += 1;
        abort.abort();
        return null;
      }
    }
    if (!isDone) {
      this.#tally.faults.push('a stream ended without [DONE]');
      return null;
    }
    this.#tally.answers += 1;
    return text;
  }
}

interface Whole {
  readonly choices: readonly { readonly message: { readonly content: string | null } }[];
  readonly usage: { readonly completion_tokens: number };
}

interface Refusal {
  readonly error: { readonly code: string; readonly message: string };
}

interface Piece {
  readonly error?: Refusal['error'];
  readonly choices?: readonly { readonly delta?: { readonly content?: string | null } }[];
}

interface Streamed {
  readonly askedMs: number;
  /** After how many pieces the client goes away; null: it stays. */
  readonly leavesAfter: number | null;
  readonly abort: AbortController;
}
