/**
 * A policy of one's own for sessions of an engine: `keep` pages at the beginning of each layer stay as they are, and
 * every page behind them goes to the formats `to` when it leaves the window. The model's thread imports this module:
 *
 *   engine.openSession({ policy: { module: './keep-first-pages.mjs', options: { keep: 2 } } })
 *   palimpsest run … --policy-module keep-first-pages.mjs --policy-options '{ "keep": 2 }'
 *
 * A policy has no clock, no chance and no state beside what it was told, so that its log can be decided again:
 *
 *   palimpsest audit replay SESSION --policy-module keep-first-pages.mjs
 */
export default ({ keep = 1, to = { k: 'rot4', v: 'rot3' } }) => {
  if (!Number.isInteger(keep) || keep < 0) throw new Error(`keep must be a number of pages, and is ${keep}`);
  return {
    id: 'keep-first-pages',
    version: 1,
    // Nothing here depends on what a move would cost, so no page is tried.
    needsTrials: false,
    open: ({ pageBytes }) => ({
      // Pages that have just left the window are among the trials of a situation, a line for each side.
      decide: ({ trials }) =>
        trials
          .filter(({ page, side, from }) => page >= keep && from !== to[side])
          .map(({ layer, page, side, from }) => ({
            ...{ layer, page, side, from, to: to[side] },
            ...{ epsilonFrom: null, epsilonTo: null, price: null, retry: false },
            bytesFreed: pageBytes[from] - pageBytes[to[side]],
            because: {
              ...{ threshold: 'first.pages', measured: page, bound: keep, unit: 'pages' },
              ...{ origin: 'option', rule: 'first-pages' },
            },
          })),
      judge: ({ because }) => ({ accepted: true, because }),
      summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
    }),
  };
};
