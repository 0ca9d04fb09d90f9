/** Runs a program or a pattern that came with a model file, for a bounded time. */
import { existsSync, readFileSync } from 'node:fs';
import { type Context, createContext, Script } from 'node:vm';

let context: Context | undefined;
let call: Script | undefined;

/**
 * Returns the result of `work`, or null if it did not end within `ms` of computing. The watchdog runs outside this
 * thread, because a timer in it could not fire while an interpreter or a pattern is busy. It goes by the clock, and a
 * loaded machine may leave a thread little of that: what was ended before it had computed for half of its time begins
 * anew and gets twice the time, so `work` must not mind being begun again. Whatever it throws is thrown.
 */
export function within<T>(ms: number, work: () => T): { readonly value: T } | null {
  for (let clockMs = ms; ; clockMs *= 2) {
    const beforeMs = usedMs();
    const ended = once(clockMs, work);
    if (ended !== null || usedMs() - beforeMs >= ms / 2) return ended;
  }
}

/**
 * Processor time of this thread, also where Node does not tell threads apart (20): Linux does, for whichever asks.
 * On other systems it is that of all threads there, so that a thread among many busy ones is ended early.
 */
function usedMs(): number {
  const { threadCpuUsage } = process as { readonly threadCpuUsage?: () => NodeJS.CpuUsage };
  if (threadCpuUsage === undefined && existsSync(SCHEDULED))
    return Number(readFileSync(SCHEDULED, 'utf8').split(' ')[0]) / 1e6;
  const { user, system } = (threadCpuUsage ?? process.cpuUsage)();
  return (user + system) / 1000;
}

/** Its first number is how many nanoseconds the thread that reads it has had a processor. */
const SCHEDULED = '/proc/thread-self/schedstat';

function once<T>(clockMs: number, work: () => T): { readonly value: T } | null {
  context ??= createContext({});
  call ??= new Script('work()');
  context['work'] = work;
  try {
    return { value: call.runInContext(context, { timeout: clockMs }) as T };
  } catch (error) {
    if ((error as NodeJS.ErrnoException)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') return null;
    throw error;
  } finally {
    context['work'] = null;
  }
}
