/** palimpsest-lab: the methods and formats that `palimpsest evaluate` knows where this package is installed. */
export { formatsModule } from './formats.ts';
export { methodCaches, methodOf, methods } from './methods/methods.ts';
