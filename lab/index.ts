/** palimpsest-lab: the methods that `palimpsest evaluate` knows where this package is installed. */
export { methodCaches, methodOf, methods } from './methods/methods.ts';
