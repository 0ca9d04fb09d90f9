/** The chat: asks the server as any client does, and shows beside each answer what the cache did for it. */
import { byId, el } from '../../../witness/report/page/dom.ts';
import { bytesText, grouped } from '../../../witness/report/page/words.ts';
import { ask, errorOf, eventsOf } from './ask.ts';
import { shortId } from './words.ts';

interface Message {
  readonly role: 'user' | 'assistant';
  readonly content: string;
}

interface Chunk {
  readonly choices?: readonly { readonly delta: { readonly content?: string | null } }[];
  readonly usage?: {
    readonly prompt_tokens: number;
    readonly completion_tokens: number;
    readonly prompt_tokens_details: { readonly cached_tokens: number };
  } | null;
  readonly timings?: { readonly predicted_per_second: number };
  readonly palimpsest?: {
    readonly session: string;
    readonly kv_bytes: number;
    readonly kv_bytes_f16: number;
    readonly effective_bits: number;
    readonly decisions: number;
  };
  readonly error?: { readonly message: string };
}

export class Chat {
  readonly #onSession: (session: string) => void;
  readonly #list = byId('messages');
  readonly #question = byId<HTMLTextAreaElement>('question');
  readonly #send = byId<HTMLButtonElement>('send');
  #messages: Message[] = [];
  #ending: AbortController | null = null;
  #model: string | null = null;
  /** The answer so far, as the model wrote it: the next question sends it back letter for letter. */
  #written = '';

  /** onSession: somebody wants to see the session of an answer. */
  constructor(onSession: (session: string) => void) {
    this.#onSession = onSession;
    byId('ask').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.#ending === null) void this.#ask();
      else this.#ending.abort();
    });
    this.#question.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (this.#ending === null) void this.#ask();
    });
    byId('new-chat').addEventListener('click', () => this.#begin());
  }

  /** The model to ask; null: nothing is answered here. */
  serve(model: string | null): void {
    this.#model = model;
    byId('chat').hidden = model === null;
  }

  #begin(): void {
    this.#ending?.abort();
    this.#messages = [];
    this.#list.replaceChildren();
    byId('new-chat').hidden = true;
    this.#question.focus();
  }

  async #ask(): Promise<void> {
    const content = this.#question.value.trim();
    if (content === '' || this.#model === null) return;
    this.#question.value = '';
    byId('new-chat').hidden = false;
    const messages: Message[] = [...this.#messages, { role: 'user', content }];
    const answer = el('p', { class: 'text' });
    const facts = el('p', { class: 'cache' }, 'reading…');
    this.#list.append(
      el('div', { class: 'message user' }, el('p', { class: 'text' }, content)),
      el('div', { class: 'message assistant' }, answer, facts),
    );
    const ending = new AbortController();
    this.#ending = ending;
    this.#written = '';
    this.#send.textContent = 'Stop';
    try {
      const told = await this.#stream(messages, answer, ending.signal);
      this.#facts(facts, told);
    } catch (error) {
      facts.replaceChildren(ending.signal.aborted ? 'stopped' : (error as Error).message);
      facts.classList.toggle('bad', !ending.signal.aborted);
    } finally {
      this.#messages = [...messages, { role: 'assistant', content: this.#written }];
      this.#ending = null;
      this.#send.textContent = 'Ask';
      this.#toEnd();
    }
  }

  /** Writes the answer as it comes. → its last piece */
  async #stream(messages: readonly Message[], answer: HTMLElement, signal: AbortSignal): Promise<Chunk> {
    const response = await ask('/v1/chat/completions', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: this.#model, messages, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    if (!response.ok) throw await errorOf(response);
    let last: Chunk = {};
    for await (const { data } of eventsOf(response)) {
      if (data === '[DONE]') break;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error !== undefined) throw new Error(chunk.error.message);
      this.#written += chunk.choices?.[0]?.delta.content ?? '';
      answer.textContent = this.#written.trim();
      if (chunk.usage) last = chunk;
      this.#toEnd();
    }
    return last;
  }

  #toEnd(): void {
    this.#list.scrollTop = this.#list.scrollHeight;
  }

  #facts(host: HTMLElement, { usage, timings, palimpsest }: Chunk): void {
    host.replaceChildren();
    if (usage == null || palimpsest === undefined) return;
    const cached = usage.prompt_tokens_details.cached_tokens;
    const { session, kv_bytes: bytes, kv_bytes_f16: f16, effective_bits: bits, decisions } = palimpsest;
    const show = el('button', { type: 'button', class: 'id' }, `session ${shortId(session)}`);
    show.addEventListener('click', () => this.#onSession(session));
    const told = [
      `${grouped(cached)} of ${grouped(usage.prompt_tokens)} prompt tokens from the cache`,
      `${grouped(usage.completion_tokens)} written${timings === undefined ? '' : ` at ${timings.predicted_per_second.toFixed(0)} tok/s`}`,
      `${bytesText(bytes)} instead of ${bytesText(f16)}, ${bits.toFixed(1)} bits a number`,
      `${grouped(decisions)} ${decisions === 1 ? 'decision' : 'decisions'}`,
    ];
    host.replaceChildren(...told.map((text) => el('span', {}, text)), show);
  }
}
