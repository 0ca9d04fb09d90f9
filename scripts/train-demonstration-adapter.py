#!/usr/bin/env python3
"""Train the demonstration adapter: a LoRA adapter of the reference model that goes on with any text as a ship's log.

What it learns from is made here, by a small grammar with a seed, behind the beginnings of sentences of our own text
(models/text/chronicle.txt), so that data and weights are ours. The gradients are written out by hand; `check` compares
them with differences of the loss.

    python3 train-demonstration-adapter.py check
    python3 train-demonstration-adapter.py train --out models/adapters/ships-log      # some ten minutes on one core

Needs NumPy only.
"""
import argparse, importlib.util, json, math, os, random, struct, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
spec = importlib.util.spec_from_file_location("reference", os.path.join(HERE, "train-reference-model.py"))
reference = importlib.util.module_from_spec(spec); spec.loader.exec_module(reference)

# ---------------------------------------------------------------- data: entries of a log, from a grammar

WINDS = "north,north-east,east,south-east,south,south-west,west,north-west".split(",")
FORCES = "calm,light,steady,fresh,strong,a gale".split(",")
SIGHTS = ("a low green island,two white birds,a small boat without sails,the lights of a town,a long dark coast,"
          "a great fish,the smoke of a ship,an old tower on a rock,nothing but the sea,three men on a raft").split(",")
TIMES = "at dawn,at noon,in the evening,at night,before the rain,after the storm".split(",")
PEOPLE = "The cook,The captain,The boy,The doctor,The old sailor,The carpenter".split(",")
STATES = "is ill,is better,sings,does not speak,has the watch,mended the sail,lost his hat,wrote a letter".split(",")
STORES = "water,bread,rope,wood,salt,oil".split(",")
ENDS = "All well.,All well on board.,We sail on.,No land in sight.,We wait for the wind.".split(",")


def entry(rng, day):
    parts = [f"Day {day}.", f"Wind {rng.choice(WINDS)}, {rng.choice(FORCES)}."]
    said = [f"Saw {rng.choice(SIGHTS)} {rng.choice(TIMES)}.", f"{rng.choice(PEOPLE)} {rng.choice(STATES)}.",
            f"There is {rng.choice(STORES)} for {rng.randint(2, 40)} days."]
    return " ".join(parts + rng.sample(said, rng.randint(1, 3)) + [rng.choice(ENDS)])


def log(rng, entries):
    day = rng.randint(1, 90)
    return "\n" + "\n".join(entry(rng, day + i) for i in range(entries)) + "\n"


def batch(rng, tok, text, size, length):
    """Rows of some words of prose and a log behind them; what is before the log is not learned."""
    ids, weights = np.zeros((size, length + 1), np.int64), np.zeros((size, length + 1))
    for row in range(size):
        start = rng.randrange(len(text) - 400)
        words = text[start:start + 400].split()[1:rng.randint(3, 24)]
        head = tok.encode(" ".join(words)); whole = head + tok.encode(log(rng, 8))
        ids[row] = whole[:length + 1]; weights[row, len(head):] = 1
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


# ---------------------------------------------------------------- model: forward, and backward to the factors

MATRICES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


def safetensors(path):
    raw = open(path, "rb").read(); size = struct.unpack("<Q", raw[:8])[0]; found = {}
    for name, told in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__": continue
        a, b = (8 + size + at for at in told["data_offsets"])
        halves = np.frombuffer(raw[a:b], np.uint16).astype(np.uint32) << 16
        found[name] = halves.view(np.float32).reshape(told["shape"])
    return found


class Model:
    def __init__(self, path, dtype):
        self.cfg = json.load(open(f"{path}/config.json")); self.dtype = dtype
        self.w = {k: v.astype(dtype) for k, v in safetensors(f"{path}/model.safetensors").items()}
        self.names = [(i, slot, f"model.layers.{i}.{module}") for i in range(self.cfg["num_hidden_layers"])
                      for slot, module in MATRICES.items()]

    def adapter(self, rank, seed):
        """A as PEFT begins with, B as zeros."""
        rng = np.random.default_rng(seed); found = {}
        for _, _, name in self.names:
            out, inner = self.w[f"{name}.weight"].shape
            bound = 1 / math.sqrt(inner)
            found[name] = [rng.uniform(-bound, bound, (rank, inner)).astype(self.dtype), np.zeros((out, rank), self.dtype)]
        return found

    def rotated(self, x, back=False):
        """x [B, T, heads, d]; `back` turns the other way."""
        T, half = x.shape[1], x.shape[3] // 2
        angle = np.outer(np.arange(T), self.cfg["rope_theta"] ** (-np.arange(half) / half))
        cos, sin = (f(angle).astype(self.dtype)[None, :, None, :] for f in (np.cos, np.sin))
        if back: sin = -sin
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def norm(self, x, gain):
        inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.cfg["rms_norm_eps"])
        return x * inverse * gain, inverse

    @staticmethod
    def norm_back(dy, x, gain, inverse):
        dn = dy * gain
        return inverse * dn - x * inverse ** 3 * (dn * x).mean(-1, keepdims=True)

    def loss(self, adapter, scale, ids, targets, weights, wants_gradients=True):
        """The mean loss in nats; gradients of the factors by name."""
        cfg, w = self.cfg, self.w
        B, T = ids.shape; H, n, d = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"]
        whole = {name: w[f"{name}.weight"] + scale * b @ a for name, (a, b) in adapter.items()}
        x = w["model.embed_tokens.weight"][ids]
        hidden = np.triu(np.full((T, T), -np.inf, self.dtype), 1); kept = []
        for i in range(cfg["num_hidden_layers"]):
            of = lambda slot: whole[f"model.layers.{i}.{MATRICES[slot]}"]
            h1, inv1 = self.norm(x, w[f"model.layers.{i}.input_layernorm.weight"])
            q = self.rotated((h1 @ of("q").T).reshape(B, T, H, d)); k = self.rotated((h1 @ of("k").T).reshape(B, T, n, d))
            v = (h1 @ of("v").T).reshape(B, T, n, d)
            q, k, v = (y.transpose(0, 2, 1, 3) for y in (q, k.repeat(H // n, 2), v.repeat(H // n, 2)))
            p = q @ k.transpose(0, 1, 3, 2) / math.sqrt(d) + hidden
            p = np.exp(p - p.max(-1, keepdims=True)); p /= p.sum(-1, keepdims=True)
            att = (p @ v).transpose(0, 2, 1, 3).reshape(B, T, H * d)
            x1 = x + att @ of("o").T
            h2, inv2 = self.norm(x1, w[f"model.layers.{i}.post_attention_layernorm.weight"])
            g, u = h2 @ of("gate").T, h2 @ of("up").T
            sig = 1 / (1 + np.exp(-g)); s = g * sig * u
            kept.append((x, h1, inv1, q, k, v, p, att, x1, h2, inv2, g, u, sig, s))
            x = x1 + s @ of("down").T
        last, inverse = self.norm(x, w["model.norm.weight"])
        logits = last @ w["model.embed_tokens.weight"].T
        logits -= logits.max(-1, keepdims=True); logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        share = (weights / weights.sum()).astype(self.dtype)
        loss = -(np.take_along_axis(logits, targets[..., None], -1)[..., 0] * share).sum()
        if not wants_gradients: return loss, None

        grads = {}
        def back(name, dy, at):
            """From the gradient of what a matrix answers to that of its rows `at`; keeps those of the factors."""
            a, b = adapter[name]; dy2, at2 = dy.reshape(-1, dy.shape[-1]), at.reshape(-1, at.shape[-1])
            grads[name] = [scale * (dy2 @ b).T @ at2, scale * dy2.T @ (at2 @ a.T)]
            return dy @ whole[name]
        dl = np.exp(logits) * share[..., None]
        np.put_along_axis(dl, targets[..., None], np.take_along_axis(dl, targets[..., None], -1) - share[..., None], -1)
        dx = self.norm_back(dl @ w["model.embed_tokens.weight"], x, w["model.norm.weight"], inverse)
        for i in reversed(range(cfg["num_hidden_layers"])):
            name = lambda slot: f"model.layers.{i}.{MATRICES[slot]}"
            x0, h1, inv1, q, k, v, p, att, x1, h2, inv2, g, u, sig, s = kept[i]
            ds = back(name("down"), dx, s)
            dh2 = back(name("gate"), ds * u * (sig + g * sig * (1 - sig)), h2) + back(name("up"), ds * g * sig, h2)
            dx = dx + self.norm_back(dh2, x1, w[f"model.layers.{i}.post_attention_layernorm.weight"], inv2)
            da = back(name("o"), dx, att).reshape(B, T, H, d).transpose(0, 2, 1, 3)
            dp = da @ v.transpose(0, 1, 3, 2); dv = p.transpose(0, 1, 3, 2) @ da
            dz = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(d)
            dq, dk = (dz @ k).transpose(0, 2, 1, 3), (dz.transpose(0, 1, 3, 2) @ q).transpose(0, 2, 1, 3)
            grouped = lambda y: y.reshape(B, T, n, H // n, d).sum(3)
            dq = self.rotated(dq, True).reshape(B, T, H * d)
            dk = self.rotated(grouped(dk), True).reshape(B, T, n * d); dv = grouped(dv.transpose(0, 2, 1, 3)).reshape(B, T, n * d)
            dh1 = back(name("q"), dq, h1) + back(name("k"), dk, h1) + back(name("v"), dv, h1)
            dx = dx + self.norm_back(dh1, x0, w[f"model.layers.{i}.input_layernorm.weight"], inv1)
        return loss, grads


# ---------------------------------------------------------------- commands

def opened(a, dtype):
    path = os.path.join(ROOT, "models", "reference")
    text = open(os.path.join(ROOT, "models", "text", "chronicle.txt"), encoding="utf-8").read()
    return Model(path, dtype), reference.Tokenizer.load(f"{path}/tokenizer.json"), text


def check(a):
    model, tok, text = opened(a, np.float64); rng = random.Random(1); noise = np.random.default_rng(2)
    adapter = {k: [x + noise.normal(0, 0.05, x.shape) for x in v] for k, v in model.adapter(2, 1).items()}
    rows = batch(rng, tok, text, 2, 64); _, grads = model.loss(adapter, 2.0, *rows); worst = 0
    for name, factors in adapter.items():
        for which, factor in enumerate(factors):
            at = tuple(noise.integers(0, size) for size in factor.shape); kept = factor[at]; step = 1e-5; sides = []
            for sign in (1, -1):
                factor[at] = kept + sign * step; sides.append(model.loss(adapter, 2.0, *rows, False)[0])
            factor[at] = kept; found = (sides[0] - sides[1]) / (2 * step)
            worst = max(worst, abs(found - grads[name][which][at]) / (abs(found) + 1e-6))
    print(f"largest relative difference of a gradient: {worst:.1e}")
    assert 0 < worst < 1e-4


def train(a):
    model, tok, text = opened(a, np.float32); rng = random.Random(a.seed)
    adapter = model.adapter(a.rank, a.seed); scale = a.alpha / a.rank
    held = batch(random.Random(a.seed + 1), tok, text, 16, 96); moments = {}
    say = lambda step: print(f"step {step:4d}  held out {model.loss(adapter, scale, *held, False)[0]:.3f}  {time.time() - start:.0f} s", flush=True)
    start = time.time()
    for step in range(a.steps):
        if step % 25 == 0: say(step)
        _, grads = model.loss(adapter, scale, *batch(rng, tok, text, a.size, 96))
        size = math.sqrt(sum(float((g * g).sum()) for pair in grads.values() for g in pair))
        rate = a.lr * min(1, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / a.steps))
        for name, pair in grads.items():
            for which, g in enumerate(pair):
                g = g * min(1, 1 / size)
                m, v = moments.get((name, which), (0, 0)); m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
                moments[name, which] = m, v
                adapter[name][which] -= (rate * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.99 ** (step + 1))) + 1e-8)).astype(np.float32)
    say(a.steps); export(a, adapter)


def export(a, adapter):
    """As PEFT saves it, in BF16."""
    os.makedirs(a.out, exist_ok=True); head, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, pair in sorted(adapter.items()):
        for letter, x in zip("AB", pair):
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
            raw = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
            head[f"base_model.model.{name}.lora_{letter}.weight"] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
            blobs.append(raw); at += len(raw)
    told = json.dumps(head).encode(); told += b" " * (-len(told) % 8)
    with open(f"{a.out}/adapter_model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(told)) + told + b"".join(blobs))
    json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "palimpsest reference", "r": a.rank,
               "lora_alpha": a.alpha, "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "init_lora_weights": True,
               "target_modules": sorted({m.split(".")[1] for m in MATRICES.values()})},
              open(f"{a.out}/adapter_config.json", "w"), indent=1)
    print(f"wrote {a.out}: {at / 1024:.0f} KiB of factors")


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); sub = p.add_subparsers(required=True)
q = sub.add_parser("check"); q.set_defaults(f=check)
q = sub.add_parser("train"); q.add_argument("--out", required=True); q.add_argument("--rank", type=int, default=4); q.add_argument("--alpha", type=float, default=8)
q.add_argument("--steps", type=int, default=300); q.add_argument("--size", type=int, default=8); q.add_argument("--lr", type=float, default=4e-3)
q.add_argument("--seed", type=int, default=1); q.set_defaults(f=train)
if __name__ == "__main__":
    a = p.parse_args(); a.f(a)
