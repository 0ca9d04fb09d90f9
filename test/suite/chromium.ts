/** A headless Chromium that tests drive by its DevTools protocol, over a pair of pipes and without a library. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import type { Readable, Writable } from 'node:stream';

type Fields = Readonly<Record<string, unknown>>;
interface Message {
  readonly id?: number;
  readonly method?: string;
  readonly params?: Fields;
  readonly result?: Fields;
  readonly error?: { readonly message: string };
}

/** The program, or null where there is none. */
export const chromiumPath: string | null =
  ['chromium', 'chromium-browser', 'google-chrome', 'chrome']
    .flatMap((name) => (process.env.PATH ?? '').split(delimiter).map((dir) => join(dir, name)))
    .find((path) => existsSync(path)) ?? null;

export class Chromium {
  readonly #child: ChildProcess;
  readonly #profile: string;
  readonly #waiting = new Map<number, { resolve: (result: Fields) => void; reject: (error: Error) => void }>();
  readonly #heard: Message[] = [];
  #next = 1;
  #page: string | undefined;

  private constructor(child: ChildProcess, profile: string) {
    this.#child = child;
    this.#profile = profile;
  }

  /** Starts a browser with one empty page of this size in CSS pixels. */
  static async open(width = 1200, height = 900): Promise<Chromium> {
    const profile = mkdtempSync(join(tmpdir(), 'palimpsest-chromium-'));
    const flags = [
      '--headless=new',
      '--remote-debugging-pipe',
      '--no-sandbox',
      '--disable-gpu',
      '--no-first-run',
      '--hide-scrollbars',
      `--user-data-dir=${profile}`,
      `--window-size=${width},${height}`,
      'about:blank',
    ];
    const child = spawn(chromiumPath ?? 'chromium', flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    const browser = new Chromium(child, profile);
    browser.#listen();
    const { targetInfos } = (await browser.send('Target.getTargets')) as {
      targetInfos: { type: string; targetId: string }[];
    };
    const { targetId } = targetInfos.find(({ type }) => type === 'page')!;
    const { sessionId } = await browser.send('Target.attachToTarget', { targetId, flatten: true });
    browser.#page = sessionId as string;
    for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await browser.send(`${domain}.enable`);
    await browser.resize(width, height);
    return browser;
  }

  #listen(): void {
    let rest = '';
    (this.#child.stdio[4] as Readable).setEncoding('utf8').on('data', (chunk: string) => {
      const parts = (rest + chunk).split('\0');
      rest = parts.pop() ?? '';
      for (const part of parts) this.#take(JSON.parse(part) as Message);
    });
    this.#child.on('exit', () => {
      for (const { reject } of this.#waiting.values()) reject(new Error('Chromium has ended'));
    });
  }

  #take(message: Message): void {
    if (message.id === undefined) {
      this.#heard.push(message);
      return;
    }
    const one = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (message.error !== undefined) one?.reject(new Error(message.error.message));
    else one?.resolve(message.result ?? {});
  }

  /** One command of the protocol. */
  send(method: string, params: Fields = {}): Promise<Fields> {
    const id = this.#next++;
    const target = method.startsWith('Target.') || this.#page === undefined ? {} : { sessionId: this.#page };
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      (this.#child.stdio[3] as Writable).write(`${JSON.stringify({ id, method, params, ...target })}\0`);
    });
  }

  /** Events of this name so far. */
  heard(method: string): Fields[] {
    return this.#heard.filter((one) => one.method === method).map(({ params }) => params ?? {});
  }

  /** What the page complained of: exceptions, console errors, and what its policy refused. */
  complaints(): string[] {
    return [
      ...this.heard('Runtime.exceptionThrown').map((one) => JSON.stringify(one)),
      ...this.heard('Log.entryAdded').map((one) => JSON.stringify(one)),
      ...this.heard('Runtime.consoleAPICalled').map((one) => JSON.stringify(one)),
    ];
  }

  async resize(width: number, height: number, scale = 1): Promise<void> {
    await this.send('Emulation.setDeviceMetricsOverride', {
      width,
      height,
      deviceScaleFactor: scale,
      mobile: width < 600,
    });
  }

  /** Media features such as prefers-color-scheme, and 'print' or '' for the screen. */
  async media(features: Readonly<Record<string, string>>, media = ''): Promise<void> {
    const list = Object.entries(features).map(([name, value]) => ({ name, value }));
    await this.send('Emulation.setEmulatedMedia', { media, features: list });
  }

  /** Goes to a page and waits until `isReady`, an expression, is true there. */
  async visit(url: string, isReady = 'document.readyState === "complete"'): Promise<void> {
    this.#heard.length = 0;
    await this.send('Page.navigate', { url });
    await this.until(isReady);
  }

  /** Waits until an expression is true in the page. */
  async until(expression: string): Promise<void> {
    for (let tries = 0; tries < 1200; tries++) {
      if ((await this.evaluate(expression).catch(() => false)) === true) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`never true: ${expression}; ${this.complaints().join('\n')}`);
  }

  /** The value of an expression in the page; promises are waited for. */
  async evaluate(expression: string): Promise<unknown> {
    const { result, exceptionDetails } = (await this.send('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
    })) as { result: { value?: unknown }; exceptionDetails?: { exception?: { description?: string }; text: string } };
    if (exceptionDetails !== undefined)
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Presses a key as a person would. */
  async press(key: string): Promise<void> {
    const code = { Enter: 13, Tab: 9, ArrowDown: 40, ArrowUp: 38, ArrowRight: 39, ArrowLeft: 37, End: 35, Home: 36 }[
      key
    ];
    const event = { key, code: key, windowsVirtualKeyCode: code ?? 0, ...(key === 'Enter' ? { text: '\r' } : {}) };
    await this.send('Input.dispatchKeyEvent', { type: 'keyDown', ...event });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...event });
  }

  /** The page as PNG, all of it or what is in view. */
  async screenshot(isWhole = false): Promise<Buffer> {
    const { data } = await this.send('Page.captureScreenshot', { captureBeyondViewport: isWhole });
    return Buffer.from(data as string, 'base64');
  }

  async pdf(): Promise<Buffer> {
    const { data } = await this.send('Page.printToPDF', {
      preferCSSPageSize: true,
      paperWidth: 8.27,
      paperHeight: 11.69,
    });
    return Buffer.from(data as string, 'base64');
  }

  async close(): Promise<void> {
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    await this.send('Browser.close').catch(() => {});
    await ended;
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 5 });
  }
}
