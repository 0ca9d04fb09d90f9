/** `palimpsest serve`: the live view over a state folder, until Ctrl-C. */
import { once } from 'node:events';
import { given, jsonText } from '../../native/index.ts';
import { readToken } from '../serve/guard.ts';
import { SERVE_OPTIONS, type ServeOptions } from '../serve/options.ts';
import { serve } from '../serve/server.ts';
import { optionsOf } from './option-settings.ts';
import { flag, type Settings, text } from './options.ts';

export async function serveCommand(settings: Settings): Promise<void> {
  const tokenFile = text(settings, 'tokenFile');
  const metrics = flag(settings, 'metrics');
  const options = given<ServeOptions>({
    ...optionsOf<ServeOptions>(settings, SERVE_OPTIONS),
    token: tokenFile === undefined ? undefined : readToken(tokenFile),
    metrics,
  });
  // The way to end it is no interruption: the exit code is 0. A second Ctrl-C finds no handler any more and ends the
  // process.
  const ended = Promise.race([once(process, 'SIGINT'), once(process, 'SIGTERM')]);
  await using view = await serve(text(settings, 'state') ?? '.palimpsest', options);
  const { url } = view;
  const lines = [`serving ${url}/openapi.json`, ...(metrics ? [`        ${url}/metrics`] : []), 'Ctrl-C ends it'];
  process.stdout.write(`${flag(settings, 'json') ? jsonText({ url, metrics }) : lines.join('\n')}\n`);
  await ended;
}
