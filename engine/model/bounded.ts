/** Runs what a model file brought along (a program or a pattern) for a bounded time. */
import { type Context, createContext, Script } from 'node:vm';

let context: Context | undefined;
let call: Script | undefined;

/**
 * The result of `work`, or null when it did not end in time. A watchdog outside this thread stops it: neither an interpreter nor a
 * pattern can be asked to stop by a timer that it keeps from running. What `work` throws is thrown.
 */
export function within<T>(ms: number, work: () => T): { readonly value: T } | null {
  context ??= createContext({});
  call ??= new Script('work()');
  context['work'] = work;
  try {
    return { value: call.runInContext(context, { timeout: ms }) as T };
  } catch (error) {
    if ((error as NodeJS.ErrnoException)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') return null;
    throw error;
  } finally {
    context['work'] = null;
  }
}
