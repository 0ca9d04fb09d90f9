/** Asking the server: with the key of this tab where one is needed, and following its events. */
import { byId } from '../../../witness/report/page/dom.ts';

const KEY = 'palimpsest-key';
/** So long after a stream was lost it is asked for again. */
const AGAIN_MS = 2000;

export interface ServerEvent {
  readonly event: string;
  readonly data: string;
}

let asked: Promise<void> | null = null;

/** Asks whoever is there for a key; several who need one wait for the same. */
function askForKey(): Promise<void> {
  asked ??= new Promise((done) => {
    const dialog = byId<HTMLDialogElement>('key-dialog');
    const input = byId<HTMLInputElement>('key');
    byId('wrong-key').hidden = sessionStorage.getItem(KEY) === null;
    input.value = '';
    dialog.addEventListener('cancel', (event) => event.preventDefault());
    byId('key-form').onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      dialog.close();
      asked = null;
      done();
    };
    dialog.showModal();
  });
  return asked;
}

/** fetch with the key. One that is refused is asked for again. */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...(init.headers as Record<string, string>), ...(key && { authorization: `Bearer ${key}` }) };
    const response = await fetch(path, { ...init, headers });
    if (response.status !== 401) return response;
    await response.body?.cancel();
    if (sessionStorage.getItem(KEY) === key) await askForKey();
  }
}

/** JSON under a path. Throws an Error with what the server says. */
export async function askJson<T>(path: string, init: RequestInit = {}): Promise<T> {
  const response = await ask(path, init);
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as T;
}

/** What a refusal says. */
export async function errorOf(response: Response): Promise<Error> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { message: string; hint: string | null } };
    return new Error(error.hint ? `${error.message}: ${error.hint}` : error.message);
  } catch {
    return new Error(`the server answers ${response.status}`);
  }
}

/** The events of an answer, until it ends. */
export async function* eventsOf(response: Response): AsyncGenerator<ServerEvent> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split('\n\n');
    text = events.pop()!;
    for (const one of events) {
      const fields = new Map(one.split('\n').map((line) => [line.split(': ', 1)[0]!, line.replace(/^\w*: /, '')]));
      const data = fields.get('data');
      if (data !== undefined) yield { event: fields.get('event') ?? 'message', data };
    }
  }
}

/** Follows a stream and asks for it again when it is lost, until `signal` ends it. onLost: told each time, with why. */
export async function follow(
  path: string,
  signal: AbortSignal,
  onEvent: (event: ServerEvent) => void,
  onLost: (why: string) => void = () => {},
): Promise<void> {
  while (!signal.aborted) {
    try {
      const response = await ask(path, { signal });
      if (!response.ok) throw await errorOf(response);
      for await (const event of eventsOf(response)) onEvent(event);
      onLost('the server has ended');
    } catch (error) {
      if (!signal.aborted) onLost((error as Error).message);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
