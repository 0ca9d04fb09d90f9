/** Wraps the keys of a log anew and ends, as if the power failed, before the step with the given number. */
import { readMasterKey, rewrapLogKeys, useMasterKeys } from '../../../witness/index.ts';

const [dir, last, ...masters] = process.argv.slice(2) as [string, string, ...string[]];
useMasterKeys(masters.map(readMasterKey));
let steps = 0;
rewrapLogKeys(dir, () => {
  if (steps++ === Number(last)) process.kill(process.pid, 'SIGKILL');
});
