/**
 * Verifies a receipt against its log: the entries are in the chain, hash by hash; the note has the claims; and what the
 * claims say of bytes, bits, formats and divergence follows from the entries before it, decided again.
 */
import { KvError } from '../native/index.ts';
import { createPolicy } from '../policy/index.ts';
import { canonicalJson } from './canonical.ts';
import type { Checkpoint } from './checkpoint.ts';
import type { NoteBody } from './entries/log-notes.ts';
import { type Line, lineageOf } from './lineage.ts';
import { PageForms } from './page-forms.ts';
import { readLogId, readSeries } from './read.ts';
import { claimsOf, divergenceSaid, noReceipt, placeOf, type Receipt, receiptIn, shortDigest } from './receipt.ts';
import { missingEntries, type PolicyFactory, replayTo } from './replay.ts';
import { firstSeqOf, seriesOf } from './series.ts';
import type { Entry } from './types.ts';
import { verifyAgainst } from './verify.ts';

/** What the log proves of a receipt. */
export interface ReceiptProof {
  /** The receipt, which is what it was when the answer was given. */
  readonly receipt: Receipt;
  /** Entries of the session up to the note, which were all read and decided again. */
  readonly entries: number;
  /** Decisions among them. */
  readonly decisions: number;
  /** True: a signed checkpoint covers the note, so that nobody can have written the log anew since. */
  readonly isAnchored: boolean;
}

/** Options of verifyReceipt. */
export interface VerifyReceiptOptions {
  /** Folder of the log. */
  readonly log: string;
  /** Checkpoints that were kept outside of the log (readCheckpoints). Default: none. */
  readonly checkpoints?: readonly Checkpoint[];
  /** Makes policies of one's own by their id. Default: those of the package. */
  readonly policies?: PolicyFactory;
}

/**
 * Throws 'bad-signature' for a receipt that is not what the log says, 'bad-log' for a log that is not sound, 'sealed'
 * where the session was erased or its key is not here, and what replay() throws.
 */
export function verifyReceipt(value: unknown, options: VerifyReceiptOptions): ReceiptProof {
  const receipt = receiptIn(value);
  const { log: dir, checkpoints = [], policies = createPolicy } = options;
  checkChain(receipt, dir, checkpoints);
  const entries = entriesOf(receipt, dir);
  const [open, note] = [entries[0] as Entry<'open'>, entries.at(-1) as Entry<'note'>];
  checkClaims(receipt, open, note, lineageOf(dir, entries).lines);
  const missing = missingEntries(dir, receipt.session);
  if (missing > 0) throw noReceipt(`the log lacks ${missing} entries of its session`, { missing });
  const again = replayTo(entries, policies);
  const { firstDifference } = again.report;
  if (firstDifference !== null)
    throw noReceipt(
      `entry ${firstDifference.seq} says ${firstDifference.logged}, and decided again it is ${firstDifference.replayed}`,
      { seq: firstDifference.seq },
    );
  const kld = divergenceSaid(open.body.policy.id, again.summary);
  same(receipt.kld, kld, 'divergence');
  const leaves = receipt.log.last.seq - firstSeqOf(seriesOf(receipt.log.last.seq));
  return {
    receipt,
    entries: entries.length,
    decisions: again.report.decisions,
    isAnchored: checkpoints.some(
      ({ series, size, logId }) =>
        series === seriesOf(receipt.log.last.seq) && size > leaves && shortDigest(logId) === receipt.log.id,
    ),
  };
}

/** The log is whole, is the one that is named, and has both entries with these hashes. */
function checkChain({ log }: Receipt, dir: string, checkpoints: readonly Checkpoint[]): void {
  const id = shortDigest(readLogId(dir) ?? '');
  if (id !== log.id) throw noReceipt(`it is of log ${log.id}, and this is ${id}`, { log: log.id });
  if (seriesOf(log.first.seq) !== seriesOf(log.last.seq) || log.first.seq >= log.last.seq)
    throw noReceipt('its entries are not of one session');
  const { problem } = verifyAgainst(dir, checkpoints);
  if (problem !== null)
    throw new KvError('bad-log', `the log is not sound: ${problem.what} (${problem.segment})`, {
      values: { seq: problem.seq },
      hint: 'what a log that was changed says of an answer proves nothing',
    });
  for (const said of [log.first, log.last]) same(said, placeOf(dir, said.seq), `entry ${said.seq}`);
}

/** Entries of the session from the first to the note. */
function entriesOf({ session, log }: Receipt, dir: string): Entry[] {
  const part = { session, from: log.first.seq, to: log.last.seq + 1 };
  const entries = [...readSeries(dir, seriesOf(log.first.seq), part)];
  const [first, last] = [entries[0], entries.at(-1)];
  const isSession = first?.kind === 'open' && first.seq === log.first.seq;
  if (!isSession || last?.kind !== 'note' || last.seq !== log.last.seq)
    throw noReceipt('its entries are not the first of its session and a note of it', { session });
  return entries;
}

function checkClaims(receipt: Receipt, open: Entry<'open'>, note: Entry<'note'>, lines: readonly Line[]): void {
  const { receipt: claimed } = note.body as NoteBody;
  if (claimed === undefined) throw noReceipt('the entry that it names has no claims', { seq: note.seq });
  const claims = claimsOf(receipt);
  for (const key of Object.keys({ ...claimed, ...claims }) as (keyof typeof claims)[])
    same(claims[key], claimed[key], key);
  const { machine, model } = open.body;
  same(claims.model, shortDigest(model.digest), 'model');
  same(claims.machine, { isa: machine?.isa, threads: machine?.threads }, 'machine');
  const forms = new PageForms(open.body);
  for (const { entry } of lines) forms.add(entry);
  same(claims.cache, forms.held(claims.cache.tokens), 'cache');
}

function same(said: unknown, found: unknown, what: string): void {
  const [receipt, log] = [said, found].map((one) => canonicalJson(one ?? null));
  if (receipt !== log) throw noReceipt(`of ${what} it says ${receipt}, and the log ${log}`, { what });
}
