/** Erases a session and ends, as if the power failed, before the step that is named. */
import { eraseSession } from '../../../../engine/index.ts';

const [stateDir, session, last] = process.argv.slice(2) as [string, string, string];
await eraseSession(stateDir, session, {
  onStep: (step) => {
    if (step === last) process.kill(process.pid, 'SIGKILL');
  },
});
