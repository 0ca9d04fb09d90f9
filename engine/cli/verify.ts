/** `palimpsest verify`: what a log proves of a receipt, and with a model that its answer comes out the same again. */
import { asRecord, given, type Isa, jsonText, KvError, plural, readJson } from '../../native/index.ts';
import { type Entry, type ReceiptProof, readEntry, textDigest, verifyReceipt } from '../../witness/index.ts';
import { logDir } from '../state/folder.ts';
import type { ProvedAnswer } from '../thread/calls/engine.ts';
import { checkpointsOf } from './anchor.ts';
import { interruptible } from './interrupt.ts';
import { withEngine } from './loading.ts';
import { engineOptions, flag, number, type Settings, stateDirOf, text } from './options.ts';
import { toldText } from './told-text.ts';

/** A request of as many tokens as any context has, or a whole answer of a server, which may have logprobs. */
const FILE_BYTES_MAX = 64 * 2 ** 20;

export async function verifyCommand(path: string, settings: Settings): Promise<void> {
  const { receipt, request, told } = receiptAt(path, settings);
  const log = text(settings, 'log') ?? logDir(stateDirOf(settings));
  const checkpoints = checkpointsOf(settings);
  const options = { log, ...(checkpoints === null ? {} : { checkpoints }) };
  const proof = verifyReceipt(receipt, options);
  checkTold(told, proof);
  if (text(settings, 'model') === undefined) {
    tell(settings, proof, null);
    return;
  }
  if (request === undefined)
    throw new KvError(
      'bad-argument',
      'the file has a receipt alone, and running the answer again takes what was asked',
      {
        hint: '--request FILE with the `request` that came with the receipt',
      },
    );
  const engine = {
    ...engineOptions({ ...settings, state: undefined }),
    stateDir: null,
    ...machineOf(settings, proof, log),
  };
  await interruptible((signal) =>
    withEngine(settings, engine, signal, async (loaded) => {
      const proved = await loaded.verifyReceipt(receipt, { ...options, request, signal });
      tell(settings, proof, proved.again);
    }),
  );
}

interface Asked {
  readonly receipt: unknown;
  readonly request: unknown;
  /** The text that stands beside the receipt; null: none does. */
  readonly told: string | null;
}

/** A file that `run --receipt` wrote, a receipt alone, or a whole answer of a server. */
function receiptAt(path: string, settings: Settings): Asked {
  const read = (file: string): unknown =>
    readJson(file, {
      bytesMax: FILE_BYTES_MAX,
      code: 'bad-signature',
      hint: 'name a file that has a receipt as it came with the answer',
    });
  const whole = asRecord(read(path)) ?? {};
  const told = asRecord(whole['palimpsest']) ?? whole;
  const asked = text(settings, 'request');
  const given = asked === undefined ? {} : (asRecord(read(asked)) ?? {});
  return {
    receipt: told['receipt'] ?? told,
    told: toldText(whole),
    request:
      asked === undefined ? told['request'] : (asRecord(given['palimpsest'])?.['request'] ?? given['request'] ?? given),
  };
}

/** Throws 'bad-signature' for an answer with another text than the receipt that came with it. */
function checkTold(told: string | null, { receipt: { answer } }: ReceiptProof): void {
  if (told === null || textDigest(told) === answer.text) return;
  throw new KvError('bad-signature', 'the text of the answer is not the one that its receipt is of', {
    values: { told: textDigest(told), receipt: answer.text },
    hint: 'the receipt by itself is what the log says: ask for the answer again as the server gave it',
  });
}

/** The instruction set, threads and activations of then, where nobody asks for others. */
function machineOf(settings: Settings, { receipt }: ReceiptProof, log: string) {
  const { body } = readEntry(log, receipt.log.first.seq) as Entry<'open'>;
  return given({
    isa: (text(settings, 'isa') ?? receipt.machine.isa) as Isa,
    threads: number(settings, 'threads') ?? receipt.machine.threads,
    activations: body.activations === undefined ? (16 as const) : ('auto' as const),
  });
}

function tell(settings: Settings, proof: ReceiptProof, again: ProvedAnswer['again'] | null): void {
  const { receipt, entries, decisions, isAnchored } = proof;
  if (flag(settings, 'json')) {
    process.stdout.write(`${jsonText({ ...proof, again })}\n`);
    return;
  }
  const { answer, cache, kld, bound } = receipt;
  const divergence = kld.nats === null ? 'of which nothing says the divergence' : `at ${kld.nats} nats (${kld.by})`;
  const lines = [
    `The receipt is what the log says: ${plural(answer.tokens, 'token')} of session ${receipt.session}, behind ${plural(receipt.request.tokens, 'token')}.`,
    `  ${plural(entries, 'entry', 'entries')} hash by hash, ${plural(decisions, 'decision')} decided again: ${cache.bytes} bytes, ${cache.bits} bits a number, ${divergence}.`,
    isAnchored
      ? '  A signed checkpoint covers it.'
      : '  No signed checkpoint that was named covers it: whoever writes the log could have written it anew.',
    again === null
      ? bound === null
        ? '  The answer was not run again: -m MODEL does that.'
        : '  The answer cannot be run again from the log.'
      : `  Run again, with ${plural(again.moves, 'move')}: the same ${plural(again.tokens, 'token')}, the same text.`,
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
}
