"""ik_llama.cpp through the wheel ik-llama-cpp-python, as a server on standard input and output, so that its steps can
be timed in turn with ours. One JSON object per line. Requests: { id, op: 'load', model } · { id, op: 'prefill', model,
tokens, threads } · { id, op: 'open', model, sequences, depth, threads, context, room } · { id, op: 'together', context,
count } · { id, op: 'close', context }. Answers: { id, … } or { id, error }.

The history of a context is read once; the other sequences, and later contexts of that depth, get a copy of its rows.
"""

import ctypes
import json
import os
import resource
import sys
import time

# The library prints to standard output as well, where answers are.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import numpy  # noqa: E402
from ik_llama_cpp import _ctypes_api as api  # noqa: E402

# Tokens that are read at once: what the library takes by default.
BATCH = 512

lib = api._lib
# The flags that newer versions take are none; older ones do not look at them.
lib.llama_state_seq_get_size.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32]
lib.llama_state_seq_get_size.restype = ctypes.c_size_t
copied = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_uint32]
lib.llama_state_seq_get_data.argtypes = copied
lib.llama_state_seq_get_data.restype = ctypes.c_size_t
lib.llama_state_seq_set_data.argtypes = copied
lib.llama_state_seq_set_data.restype = ctypes.c_size_t
lib.llama_kv_cache_seq_pos_max.argtypes = [ctypes.c_void_p, ctypes.c_int32]
lib.llama_kv_cache_seq_pos_max.restype = ctypes.c_int32
lib.llama_print_system_info.argtypes = []
lib.llama_print_system_info.restype = ctypes.c_char_p
# It tells of every tensor. What goes wrong is answered; failed assertions are printed in another way.
quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
lib.llama_log_set(quiet, None)

api.llama_backend_init()
models = {}
contexts = {}
# Saved sequences by model and depth.
histories = {}
# Contexts that prompts are read in, by model, tokens and threads.
readers = {}


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def took(work):
    """What some work takes: processor time, and the clock."""
    start, before = time.perf_counter(), cpu()
    work()
    return {"cpuSeconds": cpu() - before, "seconds": time.perf_counter() - start}


def words(count):
    return [300 + (i * 7919) % 30000 for i in range(count)]


class Context:
    """Sequences of one model in one cache, decoded in batches of which each has a token of every sequence."""

    def __init__(self, model, sequences, cells, threads):
        params = api.llama_context_default_params()
        # The cache is one for all sequences.
        params.n_ctx = sequences * cells
        params.n_batch = BATCH
        params.n_seq_max = sequences
        params.n_threads = threads
        params.n_threads_batch = threads
        params.flash_attn = True
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded(model)))
        self.sequences = sequences
        self.handle = api.llama_init_from_model(loaded(model), params)
        if not self.handle:
            raise RuntimeError("no context")
        self.batch = api.llama_batch_init(max(BATCH, sequences), 0, 1)
        self.position = 0
        self.next = [301 + i for i in range(sequences)]

    def put(self, index, token, position, sequence, wanted):
        self.batch.token[index] = token
        self.batch.pos[index] = position
        self.batch.n_seq_id[index] = 1
        self.batch.seq_id[index][0] = sequence
        self.batch.logits[index] = wanted

    def decode(self, count):
        self.batch.n_tokens = count
        code = api.llama_decode(self.handle, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode ended with {code}")

    def likeliest(self, index):
        logits = api.llama_get_logits_ith(self.handle, index)
        return int(numpy.ctypeslib.as_array(logits, (self.vocab,)).argmax())

    def read(self, tokens):
        """Reads a prompt from the beginning into the first sequence, with the logits of its last token."""
        api.llama_kv_cache_clear(self.handle)
        for at in range(0, len(tokens), BATCH):
            part = tokens[at : at + BATCH]
            for i, token in enumerate(part):
                self.put(i, token, at + i, 0, at + i + 1 == len(tokens))
            self.decode(len(part))
        self.likeliest(len(part) - 1)

    def begin(self, model, depth):
        """Gives all sequences the history of this depth."""
        name = (model, depth)
        if name not in histories:
            self.read(words(depth))
            size = lib.llama_state_seq_get_size(self.handle, 0, 0)
            saved = ctypes.create_string_buffer(size)
            if lib.llama_state_seq_get_data(self.handle, saved, size, 0, 0) == 0:
                raise RuntimeError("a sequence cannot be saved")
            histories[name] = saved
            api.llama_kv_cache_clear(self.handle)
        saved = histories[name]
        for sequence in range(self.sequences):
            if lib.llama_state_seq_set_data(self.handle, saved, len(saved), sequence, 0) == 0:
                raise RuntimeError("a sequence cannot be put back")
            if lib.llama_kv_cache_seq_pos_max(self.handle, sequence) != depth - 1:
                raise RuntimeError("a sequence is not as long as the one that was saved")
        self.position = depth

    def step(self):
        for i, token in enumerate(self.next):
            self.put(i, token, self.position, i, True)
        self.decode(self.sequences)
        self.next = [self.likeliest(i) for i in range(self.sequences)]
        self.position += 1

    def close(self):
        api.llama_batch_free(self.batch)
        api.llama_free(self.handle)


def loaded(model):
    if model not in models:
        handle = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        if not handle:
            raise RuntimeError(f"{model} cannot be loaded")
        models[model] = handle
    return models[model]


def load(model):
    time_taken = took(lambda: loaded(model))
    return {**time_taken, "system": lib.llama_print_system_info().decode()}


def prefill(model, tokens, threads):
    name = (model, tokens, threads)
    if name not in readers:
        readers[name] = Context(model, 1, tokens + 1, threads)
    return took(lambda: readers[name].read(words(tokens)))


def open_context(model, sequences, depth, threads, context, room):
    opened = Context(model, sequences, depth + room, threads)
    contexts[context] = opened
    if depth > 0:
        opened.begin(model, depth)
    opened.step()
    return {}


def together(context, count):
    def steps():
        for _ in range(count):
            contexts[context].step()

    return took(steps)


def close(context):
    contexts.pop(context).close()
    return {}


operations = {"load": load, "prefill": prefill, "open": open_context, "together": together, "close": close}

for line in sys.stdin:
    request = json.loads(line)
    number, operation = request.pop("id"), request.pop("op")
    try:
        answer = operations[operation](**request)
    except Exception as error:  # Whatever goes wrong is told to who asked.
        answer = {"error": str(error)}
    answers.write(json.dumps({"id": number, **answer}) + "\n")
