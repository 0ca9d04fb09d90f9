/** Runs a program or a pattern that came with a model file, for a bounded time. */
import { type Context, createContext, Script } from 'node:vm';

let context: Context | undefined;
let call: Script | undefined;

/**
 * Returns the result of `work`, or null if it did not finish in time. The watchdog runs outside this thread, because a timer in it
 * could not fire while an interpreter or a pattern is busy. Whatever `work` throws is thrown.
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
