/**
 * Run by kill-engine.ts as a process of its own: an engine with sessions that take turns at talking in memory for a few
 * of them, so that the others wait in files. It goes on until it is killed, and says every text before the next one,
 * every entry of the log that was acknowledged, and every session that it has parked. Plain JavaScript on the built
 * files, as somebody has them who installs the package.
 */
import { readFileSync, writeSync } from 'node:fs';
import { createEngine } from '../../dist/engine/index.js';

/**
 * options: what an engine is made with. asked: what its sessions are. parks: by how many turns one is parked.
 * sessions: the script of each, and where it goes on.
 */
const { options, asked, parks, seed, sessions, turns } = JSON.parse(readFileSync(process.argv[2], 'utf8'));

/** Says a line at once, also where the pipe is full for a moment. */
function say(line) {
  let rest = Buffer.from(`${JSON.stringify(line)}\n`);
  while (rest.length > 0)
    try {
      rest = rest.subarray(writeSync(1, rest));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
}

let state = seed;
/** Numbers from 0 to 1 by chance: those of a linear congruential generator. */
const next = () => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31) / 2 ** 31;

/** Who talks, by the id of the session. */
const talkers = new Map();
const logger = Object.fromEntries(['debug', 'info', 'warn', 'error'].map((level) => [level, heard]));
function heard({ event, session, by }) {
  if (event === 'session-woken' && by === 'reading') wasRead(talkers.get(session));
}

/** What is read again has other bits than what was written token by token. */
function wasRead(talker) {
  talker.isRead = true;
  say({ name: talker.name, isRead: true });
}

const engine = await createEngine({ ...options, logger });
say({ open: true });

/** The session of a talker is another one from now on. */
function begin(talker, session) {
  talkers.set(session.id, talker);
  say({ name: talker.name, session: session.id, turn: talker.turn, isRead: talker.isRead });
  if (session.resumed !== null && session.resumed.why !== null) wasRead(talker);
  return session;
}

/** Parks a session and resumes it. One that has no room to come back and be parked stays where it is. */
async function parkAndResume(talker, session) {
  try {
    await session.park();
  } catch (error) {
    if (error.code === 'budget-exceeded') return session;
    throw error;
  }
  say({ name: talker.name, parked: session.id, turn: talker.turn });
  return begin(talker, await engine.resume(session.id));
}

/** Says an answer. → false where the others left it no room, which is said of it */
async function answered(session, { name, turn }, prompt) {
  try {
    for await (const text of session.generate(prompt, { maxTokens: 24, temperature: 1, seed: turn }))
      say({ name, turn, text });
    return true;
  } catch (error) {
    if (error.code !== 'budget-exceeded') throw error;
    say({ name, refused: error.message });
    return false;
  }
}

async function talk({ name, prompts, from, turn }) {
  const talker = { name, turn, isRead: false };
  let session = begin(talker, from === null ? await engine.openSession(asked) : await engine.resume(from));
  for (;;) {
    if (talker.turn === turns) {
      await session.close();
      Object.assign(talker, { turn: 0, isRead: false });
      session = begin(talker, await engine.openSession(asked));
    }
    const isWhole = await answered(session, talker, prompts[talker.turn]);
    if (!isWhole) {
      await session.close();
      Object.assign(talker, { turn: 0, isRead: false });
      session = begin(talker, await engine.openSession(asked));
      continue;
    }
    talker.turn++;
    say({ acknowledged: await session.flush() });
    if (next() < parks) session = await parkAndResume(talker, session);
    await new Promise((resolve) => setTimeout(resolve, 40 * next()));
  }
}

await Promise.all(sessions.map(talk)).catch((error) => say({ failed: `${error.code}: ${error.message}` }));
process.exitCode = 1;
