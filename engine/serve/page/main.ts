/** The live page: follows the snapshots of its server, and lets a session be chosen and a question be asked. */
import { byId } from '../../../witness/report/page/dom.ts';
import { follow } from './ask.ts';
import { Chat } from './chat.ts';
import { DecisionFeed } from './decisions.ts';
import { drawOverview } from './overview.ts';
import { SessionMap } from './session-map.ts';
import { SessionList } from './sessions.ts';
import type { Snapshot } from './snapshot.ts';

const overview = drawOverview();
const map = new SessionMap();
const feed = new DecisionFeed();
const list = new SessionList((session) => choose(session));
const chat = new Chat((session) => choose(session));
let last: Snapshot | null = null;

/** Shows a session, or none, and its decisions. */
function choose(session: string | null): void {
  map.open(session);
  list.mark(session);
  followDecisions();
  if (session === null) return;
  void map.show(list.all.find((one) => one.session === session));
  byId('h-session').focus({ preventScroll: true });
  byId('session').scrollIntoView({ block: 'nearest' });
}

/** Whoever sees only their own answers is told of the session that is shown. */
function followDecisions(): void {
  byId('all-decisions').hidden = map.session === null || last?.seesAll !== true;
  feed.follow(
    last?.hasLog === true ? (map.session ?? (last.seesAll ? null : undefined)) : undefined,
    last?.seesAll === true,
  );
}

function show(told: Snapshot): void {
  const isFirst = last === null;
  const isOther = told.seesAll !== last?.seesAll || told.hasLog !== last.hasLog;
  last = told;
  byId('main').hidden = false;
  say(true, 'live');
  byId('serving').textContent = told.model === null ? 'a log, without a model' : `serving ${told.model}`;
  overview(told);
  list.show(told);
  if (isOther) followDecisions();
  chat.serve(told.model);
  void map.show(list.all.find((one) => one.session === map.session));
  invite(told);
  if (isFirst) document.documentElement.dataset['ready'] = '';
}

/** What to do first, as long as nothing was done. */
function invite({ model, engine }: Snapshot): void {
  byId('first').hidden = model === null || !list.isEmpty || (engine !== null && engine.generatedTokens > 0);
  const base = `${location.origin}/v1`;
  byId('base-url').textContent = `baseURL: '${base}'`;
  byId('curl').textContent =
    `curl ${base}/chat/completions -H 'content-type: application/json' \\\n  -d '{"messages": [{"role": "user", "content": "Who kept the bees?"}]}'`;
}

function say(isLive: boolean, text: string): void {
  const state = byId('state');
  if (state.textContent !== text) state.textContent = text;
  state.className = isLive ? 'live' : 'lost';
}

for (const button of document.querySelectorAll<HTMLElement>('[data-copy]'))
  button.addEventListener('click', () => {
    const code = byId(button.dataset['copy']!);
    getSelection()?.selectAllChildren(code);
    // Pages that did not come over a safe way have no clipboard; there the text is marked to be copied.
    void navigator.clipboard?.writeText(code.textContent).then(
      () => (button.firstChild!.textContent = 'Copied'),
      () => {},
    );
  });
byId('close-session').addEventListener('click', () => choose(null));
byId('all-decisions').addEventListener('click', () => choose(null));

void follow(
  '/v1/live',
  new AbortController().signal,
  ({ event, data }) => {
    if (event === 'snapshot') show(JSON.parse(data) as Snapshot);
    else if (event === 'problem') say(false, (JSON.parse(data) as { error: string }).error);
  },
  (why) => say(false, `not connected: ${why}`),
);
