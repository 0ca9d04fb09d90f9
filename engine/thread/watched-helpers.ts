/** The helpers of an engine, with what becomes of them in its metrics and events. */
import { HELPER_STATES, type Meter } from '../metrics/meter.ts';
import type { HelperStatus } from '../sidecar/helper.ts';
import { type TextHelperName, type TextHelperOptions, TextHelpers } from '../sidecar/hint.ts';

type Known = (typeof HELPER_STATES)[number];

function stateOf({ state, failures }: HelperStatus): Known {
  if (state === 'broken') return state;
  if (failures > 0) return 'restarting';
  return state === 'running' ? state : 'stopped';
}

/** Throws as TextHelpers does. */
export function watchedHelpers(meter: Meter, options: TextHelperOptions = {}): TextHelpers {
  const before = new Map<string, HelperStatus>();
  const count = (): void => {
    const states = [...before.values()].map(stateOf);
    for (const state of HELPER_STATES) meter.helpers.set({ state }, states.filter((one) => one === state).length);
  };
  const onChange = (status: HelperStatus): void => {
    const helper = status.name as TextHelperName;
    const { failures, restMs, state } = status;
    const known = before.get(helper)?.failures ?? 0;
    before.set(helper, status);
    count();
    if (failures > known) {
      meter.helperFailures.add({ helper });
      if (state === 'broken') meter.tell('helper-broken', { helper, failures });
      else meter.tell('helper-failed', { helper, failures, restMs });
    } else if (failures < known) meter.tell('helper-back', { helper });
  };
  const helpers = new TextHelpers({ ...options, onChange });
  for (const status of helpers.status) {
    before.set(status.name, status);
    meter.helperFailures.add({ helper: status.name as TextHelperName }, 0);
  }
  count();
  return helpers;
}
