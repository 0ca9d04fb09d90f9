/** Runs a program or a pattern that came with a model file, for a bounded time. */
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

/** Processor time of this thread; of all threads where this Node does not tell them apart. */
function usedMs(): number {
  const { threadCpuUsage = process.cpuUsage } = process as { readonly threadCpuUsage?: () => NodeJS.CpuUsage };
  const { user, system } = threadCpuUsage();
  return (user + system) / 1000;
}

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
