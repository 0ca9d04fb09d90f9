#!/usr/bin/env python3
"""Writes test/golden/logits-*.json: logits of four models from a forward pass in float64 that shares no code with the engine.

Needs only Python 3.9 and NumPy, and reads safetensors, GGUF (F32, F16, Q8_0, Q4_1) and llama2.c files by itself.

    OMP_NUM_THREADS=1 python3 scripts/golden-logits.py --smollm2 FILE.gguf --tinystories-656k FOLDER --stories260k FOLDER

The file of models/reference is always written, and those of the others if their path is given. The file of a model holds
512 token ids, which are the longest matches of the model's own vocabulary on sentences from a small grammar with a fixed
seed. For the logits after positions 0 and 500 it holds the values at 64 fixed entries of the vocabulary, the eight largest,
their mean, standard deviation and log-sum-exp. `weights` is the SHA-256 of the file that was read.

GGUF stores q and k permuted for interleaved pairs. This script undoes the permutation and rotates halves as the original
checkpoint does, so that a mistake in the layout cannot cancel out.
"""
import argparse, hashlib, json, os, struct
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS, POSITIONS, PROBES = 512, (0, 500), 64


# ---------------------------------------------------------------- files

def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data, 0)
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


GGUF_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class GgufReader:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 4
        self.take("<I")
        tensor_count, key_count = self.take("<Q"), self.take("<Q")
        self.keys = {}
        for _ in range(key_count):
            name = self.string()
            self.keys[name] = self.value(self.take("<I"))
        headers = []
        for _ in range(tensor_count):
            name = self.string()
            sizes = [self.take("<Q") for _ in range(self.take("<I"))]
            headers.append((name, sizes, self.take("<I"), self.take("<Q")))
        alignment = self.keys.get("general.alignment", 32)
        base = -(-self.at // alignment) * alignment
        self.tensors = {name: self.decode(sizes, kind, base + offset) for name, sizes, kind, offset in headers}

    def take(self, code):
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self):
        length = self.take("<Q")
        self.at += length
        return self.data[self.at - length:self.at].decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.take("<I"), self.take("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(GGUF_SCALARS[kind])

    def decode(self, sizes, kind, offset):
        count = int(np.prod(sizes))
        if kind == 0:
            flat = np.frombuffer(self.data, "<f4", count, offset).astype(np.float64)
        elif kind == 1:
            flat = np.frombuffer(self.data, "<f2", count, offset).astype(np.float64)
        elif kind == 8:    # Q8_0: f16 scale, 32 int8
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), count // 32, offset)
            flat = blocks["d"].astype(np.float64)[:, None] * blocks["q"]
        elif kind == 3:    # Q4_1: f16 scale, f16 minimum, 16 bytes: low nibbles are the first 16 values
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), count // 32, offset)
            codes = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1)
            flat = blocks["d"].astype(np.float64)[:, None] * codes + blocks["m"].astype(np.float64)[:, None]
        else:
            raise SystemExit(f"GGUF tensor type {kind} is not read by this script")
        return flat.reshape(sizes[::-1])


# ---------------------------------------------------------------- models, all brought to one shape

def huggingface(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    weights = os.path.join(folder, "model.safetensors")
    tensors = read_safetensors(weights)
    def layer(l):
        get = lambda name: tensors[f"model.layers.{l}.{name}.weight"]
        return dict(attn_norm=get("input_layernorm"), mlp_norm=get("post_attention_layernorm"),
                    q=get("self_attn.q_proj"), k=get("self_attn.k_proj"), v=get("self_attn.v_proj"), o=get("self_attn.o_proj"),
                    gate=get("mlp.gate_proj"), up=get("mlp.up_proj"), down=get("mlp.down_proj"))
    head = tensors.get("lm_head.weight")
    embed = tensors.get("model.embed_tokens.weight", head)
    with open(os.path.join(folder, "tokenizer.json")) as file:
        vocabulary = json.load(file)["model"]["vocab"]
    heads = config["num_attention_heads"]
    return dict(file=weights, embed=embed, head=embed if head is None else head, norm=tensors["model.norm.weight"],
                layers=[layer(l) for l in range(config["num_hidden_layers"])], heads=heads, kv_heads=config["num_key_value_heads"],
                epsilon=config["rms_norm_eps"], theta=config.get("rope_theta", 10000.0), interleaved=False, vocabulary=vocabulary)


def unpermute(matrix, heads):
    """Moves rows 2i and 2i+1 of each head back to i and i + d/2."""
    rows, inputs = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, inputs).swapaxes(1, 2).reshape(rows, inputs)


def gguf_llama(path):
    file = GgufReader(path)
    keys, tensors = file.keys, file.tensors
    heads, kv_heads = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
    def layer(l):
        get = lambda name: tensors[f"blk.{l}.{name}.weight"]
        return dict(attn_norm=get("attn_norm"), mlp_norm=get("ffn_norm"), q=unpermute(get("attn_q"), heads),
                    k=unpermute(get("attn_k"), kv_heads), v=get("attn_v"), o=get("attn_output"),
                    gate=get("ffn_gate"), up=get("ffn_up"), down=get("ffn_down"))
    embed = tensors["token_embd.weight"]
    return dict(file=path, embed=embed, head=tensors.get("output.weight", embed), norm=tensors["output_norm.weight"],
                layers=[layer(l) for l in range(keys["llama.block_count"])], heads=heads, kv_heads=kv_heads,
                epsilon=keys["llama.attention.layer_norm_rms_epsilon"], theta=keys["llama.rope.freq_base"], interleaved=False,
                vocabulary={token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])})


def llama2c(folder):
    path = os.path.join(folder, "stories260K.bin")
    with open(path, "rb") as file:
        data = file.read()
    dim, hidden, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", data, 0)
    values, at = np.frombuffer(data, "<f4", offset=28).astype(np.float64), 0
    def take(*shape):
        nonlocal at
        at += int(np.prod(shape))
        return values[at - int(np.prod(shape)):at].reshape(shape)
    kv = dim // heads * kv_heads
    embed, attn = take(vocab, dim), take(layers, dim)
    q, k, v, o = take(layers, dim, dim), take(layers, kv, dim), take(layers, kv, dim), take(layers, dim, dim)
    mlp, w1, w2, w3, norm = take(layers, dim), take(layers, hidden, dim), take(layers, dim, hidden), take(layers, hidden, dim), take(dim)
    with open(os.path.join(folder, "tok512.bin"), "rb") as file:
        table = file.read()
    vocabulary, at_byte = {}, 4
    for token in range(vocab):
        _, length = struct.unpack_from("<fi", table, at_byte)
        vocabulary.setdefault(table[at_byte + 8:at_byte + 8 + length].decode("utf-8", "replace").replace(" ", "\u2581"), token)
        at_byte += 8 + length
    return dict(file=path, embed=embed, head=embed, norm=norm, heads=heads, kv_heads=kv_heads, epsilon=1e-5, theta=10000.0,
                interleaved=True, vocabulary=vocabulary,
                layers=[dict(attn_norm=attn[l], mlp_norm=mlp[l], q=q[l], k=k[l], v=v[l], o=o[l], gate=w1[l], down=w2[l], up=w3[l])
                        for l in range(layers)])


# ---------------------------------------------------------------- tokens

def sentences(seed):
    """An endless story from a small grammar of common words."""
    names, nouns = ["Lily", "Tom", "the old baker", "a small dog", "the teacher"], ["ball", "garden", "letter", "river", "red box", "tree"]
    verbs, places = ["found", "looked for", "painted", "wanted to share", "talked about"], ["near the house", "in the morning", "after the rain", "with a friend"]
    state = seed
    def pick(options):
        nonlocal state
        state = (state * 1103515245 + 12345) % 2 ** 31
        return options[(state >> 16) % len(options)]
    while True:
        name = pick(names)
        yield f" One day {name} {pick(verbs)} the {pick(nouns)} {pick(places)}. It was very {pick(['happy', 'big', 'quiet', 'cold'])}, so {name} {pick(verbs)} a {pick(nouns)}."


def tokenize(vocabulary, count):
    """The longest matches of the vocabulary, with word boundaries written as the vocabulary writes them."""
    space = "\u0120" if any(token.startswith("\u0120") for token in vocabulary) else "\u2581"
    longest, ids, source, text = max(map(len, vocabulary)), [], sentences(7), ""
    while len(ids) < count:
        while len(text) < longest:
            text += next(source).replace(" ", space)
        for length in range(longest, 0, -1):
            if text[:length] in vocabulary:
                ids.append(vocabulary[text[:length]])
                text = text[length:]
                break
        else:
            raise SystemExit(f"no token for {text[:8]!r}")
    return ids


# ---------------------------------------------------------------- the forward pass

def rms_norm(x, scale, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def rotate(x, theta, interleaved):
    """x [T, heads, d] at positions 0 … T−1."""
    tokens, _, d = x.shape
    angles = np.arange(tokens)[:, None] * theta ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = np.empty_like(x)
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, d // 2), slice(d // 2, None))
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def forward(model, ids):
    x = model["embed"][ids]
    tokens, heads, kv_heads = len(ids), model["heads"], model["kv_heads"]
    mask = np.triu(np.full((tokens, tokens), -np.inf), 1)
    for layer in model["layers"]:
        normed = rms_norm(x, layer["attn_norm"], model["epsilon"])
        q, k, v = (normed @ layer[name].T for name in "qkv")
        d = q.shape[1] // heads
        q = rotate(q.reshape(tokens, heads, d), model["theta"], model["interleaved"])
        k = rotate(k.reshape(tokens, kv_heads, d), model["theta"], model["interleaved"])
        v = v.reshape(tokens, kv_heads, d)
        mixed = np.empty_like(q)
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, shared].T / np.sqrt(d) + mask
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, shared]
        x = x + mixed.reshape(tokens, heads * d) @ layer["o"].T
        normed = rms_norm(x, layer["mlp_norm"], model["epsilon"])
        gate = normed @ layer["gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ layer["up"].T)) @ layer["down"].T
    return rms_norm(x[list(POSITIONS)], model["norm"], model["epsilon"]) @ model["head"].T


def write(name, model):
    with open(model["file"], "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    ids = tokenize(model["vocabulary"], TOKENS)
    logits = forward(model, ids)
    vocab = logits.shape[1]
    probes = [(i * vocab) // PROBES for i in range(PROBES)]
    rows = []
    for position, row in zip(POSITIONS, logits):
        top = np.argsort(-row, kind="stable")[:8]
        rows.append({"position": position, "logits": [float(row[i]) for i in probes], "topIds": [int(i) for i in top],
                     "topLogits": [float(row[i]) for i in top], "mean": float(row.mean()), "std": float(row.std()),
                     "logSumExp": float(row.max() + np.log(np.exp(row - row.max()).sum()))})
    golden = {"version": 1, "model": name, "weights": digest, "vocabSize": vocab, "ids": ids, "probes": probes, "rows": rows}
    path = os.path.join(ROOT, "test", "golden", f"logits-{name}.json")
    with open(path, "w") as file:
        json.dump(golden, file)
        file.write("\n")
    print(name, "top at 500:", rows[1]["topIds"], [round(v, 3) for v in rows[1]["topLogits"][:3]], "std", round(rows[1]["std"], 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2")
    parser.add_argument("--tinystories-656k")
    parser.add_argument("--stories260k")
    given = parser.parse_args()
    write("reference", huggingface(os.path.join(ROOT, "models", "reference")))
    if given.tinystories_656k:
        write("tinystories-656k", huggingface(given.tinystories_656k))
    if given.stories260k:
        write("stories260k", llama2c(given.stories260k))
    if given.smollm2:
        write("smollm2", gguf_llama(given.smollm2))
