/** Why a template does not render: it is broken, it does what Python refuses as well, or it goes too far. */
export class TemplateFault extends Error {}

/** The template refuses the messages, by `raise_exception`. */
export class TemplateRefusal extends Error {}
