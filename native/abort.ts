/**
 * The same work, of which nothing is waited for once the signal says so; then what `aborted` makes is thrown. Whatever
 * the work ends in later is heard by nobody.
 */
export async function unlessAborted<Result>(
  work: Promise<Result>,
  signal: AbortSignal | undefined,
  aborted: () => Error,
): Promise<Result> {
  if (signal === undefined) return work;
  let abort = (): void => {};
  const end = new Promise<never>((_, reject) => {
    abort = () => reject(aborted());
    signal.addEventListener('abort', abort, { once: true });
  });
  try {
    if (signal.aborted) throw aborted();
    return await Promise.race([work, end]);
  } finally {
    signal.removeEventListener('abort', abort);
    work.catch(() => {});
  }
}
