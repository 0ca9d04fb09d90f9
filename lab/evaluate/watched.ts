/** A policy that decides as it did, while somebody hears what it says of layers. */
import type { LayerChange, Policy } from '../../policy/index.ts';

/** A change of a layer, and how many tokens there were. */
export interface Noticed extends LayerChange {
  readonly tokens: number;
}

/** Who hears it. */
export interface Watch {
  noticed(change: Noticed): void;
  /** The states of all layers behind each decision. */
  seen(states: readonly string[], tokens: number): void;
}

export function watched(policy: Policy, watch: Watch): Policy {
  const open: Policy['open'] = (context) => {
    const session = policy.open(context);
    const decide = session.decide.bind(session);
    const takeChanges = session.takeChanges!.bind(session);
    let tokens = 0;
    return Object.assign(session, {
      decide: (situation: Parameters<typeof decide>[0]) => {
        tokens = situation.tokens;
        const decisions = decide(situation);
        watch.seen(session.summary().layerStates, tokens);
        return decisions;
      },
      takeChanges: () => {
        const taken = takeChanges();
        for (const change of taken) watch.noticed({ ...change, tokens });
        return taken;
      },
    });
  };
  return { ...policy, open };
}
