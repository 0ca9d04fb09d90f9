/** `palimpsest serve`: answers for clients of OpenAI's API, and the live view, until Ctrl-C. */
import { once } from 'node:events';
import { freemem } from 'node:os';
import { bytesText, given, jsonText, KvError } from '../../native/index.ts';
import { ANSWERS_OPTIONS, type AnswersOptions } from '../openai/options.ts';
import { parseBytes } from '../options/parse-budget.ts';
import type { EngineOptions } from '../options/types.ts';
import { readToken } from '../serve/guard.ts';
import { readKeys } from '../serve/keys.ts';
import { SERVE_OPTIONS, type ServeOptions } from '../serve/options.ts';
import { type LiveView, serve } from '../serve/server.ts';
import type { Engine } from '../thread/engine.ts';
import { EngineRuntime } from '../thread/runtime.ts';
import { ENDING, interruptible } from './interrupt.ts';
import { withEngine, withRuntime } from './loading.ts';
import { optionsOf } from './option-settings.ts';
import { engineOptions, flag, number, type Settings, sessionOptions, stateDirOf, text } from './options.ts';
import { samplingOptions } from './sampling-settings.ts';

/** The model of whoever names none. */
const MODEL = 'reference';
/** Answers under way have so long to end when the server is told to. */
const DRAIN_MS = 30_000;
/** The share of the memory that is free which caches take where no budget is named. This number was chosen. */
const FREE_SHARE = 0.5;

export async function serveCommand(settings: Settings): Promise<void> {
  const options = serveOptions(settings);
  const state = stateDirOf(settings);
  if (flag(settings, 'view')) {
    if (modelsOf(settings).length > 0)
      throw new KvError('bad-argument', '--view shows the log of a folder, for which no model is loaded', {
        hint: 'leave out --view or --model',
      });
    const ended = signalled();
    await using view = await serve(state, options);
    tell(settings, view, []);
    await ended;
    return;
  }
  const models = modelsOf(settings);
  const isNamed = models.length > 0;
  const named = { ...settings, model: models[0] ?? MODEL };
  const engine = { ...engineOptions(named), stateDir: state, kvBudget: budgetOf(settings) } satisfies EngineOptions;
  const answers = answersOptions(settings);
  if (!isNamed)
    process.stderr.write(
      'No model was named, so this serves the reference model: it is small, was trained on old books, answers with sentences like theirs, and knows nothing. -m smollm2-135m, or a GGUF file, serves one that answers questions.\n',
    );
  await interruptible((signal) => {
    const serving = async (loaded: Engine | EngineRuntime): Promise<void> => {
      await using view = await serve(loaded, { ...options, answers });
      tell(settings, view, loaded instanceof EngineRuntime ? loaded.engines : [loaded]);
      await aborted(signal);
      await view.drain(DRAIN_MS);
    };
    return models.length > 1
      ? withRuntime(settings, { ...engine, models }, signal, serving)
      : withEngine(settings, engine, signal, serving);
  });
  // To be ended is what a server waits for.
  process.exitCode = 0;
}

/** Those that were named: by a flag each, or one by a variable or a file. */
const modelsOf = (settings: Settings): readonly string[] => [(settings['model'] ?? []) as string | string[]].flat();

/** The way to end the view is no interruption: a second Ctrl-C finds no handler any more and ends the process. */
const signalled = (): Promise<unknown> => Promise.race(ENDING.map((name) => once(process, name)));

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener('abort', () => resolve(), { once: true });
  });

function serveOptions(settings: Settings): ServeOptions {
  const tokenFile = text(settings, 'tokenFile');
  const keysFile = text(settings, 'keys');
  return given<ServeOptions>({
    ...optionsOf<ServeOptions>(settings, SERVE_OPTIONS),
    token: tokenFile === undefined ? undefined : readToken(tokenFile),
    keys: keysFile === undefined ? undefined : readKeys(keysFile),
    metrics: flag(settings, 'metrics'),
  });
}

/** Bytes that all caches may take together. Throws 'bad-argument' for a share, since there is nothing to take it of. */
function budgetOf(settings: Settings): number {
  const given = text(settings, 'kvBudget');
  return given === undefined ? Math.floor(freemem() * FREE_SHARE) : parseBytes(given, 'kvBudget');
}

function answersOptions(settings: Settings): AnswersOptions {
  const { kvBudget: _, tokensExpected: _length, ...session } = sessionOptions(settings, 1);
  return given<AnswersOptions>({
    ...optionsOf<AnswersOptions>(settings, ANSWERS_OPTIONS),
    maxTokens: number(settings, 'maxTokens'),
    sampling: samplingOptions(settings),
    session,
  });
}

/** Says where it is, and what a client is told. */
function tell(settings: Settings, { url }: LiveView, engines: readonly Engine[]): void {
  const metrics = flag(settings, 'metrics');
  const names = engines.map(({ info }) => text(settings, 'modelName') ?? info.name);
  if (flag(settings, 'json')) {
    const more = names.length > 1 ? { models: names } : {};
    const model = names.length === 0 ? {} : { model: names[0], ...more, baseUrl: `${url}/v1` };
    process.stdout.write(`${jsonText({ url, metrics, ...model })}\n`);
    return;
  }
  const answers =
    names.length === 0
      ? []
      : [
          `serving ${names.join(', ')}`,
          `  OpenAI clients: baseURL ${url}/v1 (any API key${text(settings, 'tokenFile') === undefined ? '' : ': the token'})`,
          `  caches: ${bytesText(budgetOf(settings))} for all conversations together`,
        ];
  const lines = [
    ...answers,
    `serving ${url}/ for a browser`,
    `        ${url}/openapi.json`,
    ...(metrics ? [`        ${url}/metrics`] : []),
  ];
  process.stdout.write(`${[...lines, 'Ctrl-C ends it'].join('\n')}\n`);
}
