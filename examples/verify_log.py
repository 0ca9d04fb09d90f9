"""Checks a log, a checkpoint or a proof from docs/log-format.md alone, with Python's standard library.

    python3 verify_log.py log DIR [CHECKPOINTS KEY]
    python3 verify_log.py proof FILE KEY

KEY is NAME+HASH+BASE64, as `palimpsest audit keygen` prints it. Prints one line of JSON, or says what is wrong and
ends with 1. Of a proof that discloses the body of an encrypted entry the line has that body.
"""
import base64, hashlib, json, os, re, struct, sys

class Damage(Exception):
    """What was found is not what was written."""

def need(holds, what):
    if not holds:
        raise Damage(what)

CRC = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC.append(byte)

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF

def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()

def add_leaf(peaks, leaves, h):
    while leaves % 2 == 1:
        h = sha(b"\1", peaks.pop(), h)
        leaves //= 2
    peaks.append(h)

def root_of(peaks):
    h = peaks[-1] if peaks else sha(b"")
    for peak in reversed(peaks[:-1]):
        h = sha(b"\1", peak, h)
    return h

# Packed bodies. The lists of texts and keys stand in the page that says how they are packed.

class Packed:
    def __init__(self, data):
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "log-format.md")
        with open(page, encoding="utf-8") as file:
            found = re.findall("<!-- packed .*?-->(.*?)<!-- end -->", file.read(), re.S)
        need(len(found) == 2, "docs/log-format.md lacks the lists of packed bodies")
        self.texts, self.numbers, self.data, self.at, self.chars = found[0].split(), [], data, 1, 0
        self.shapes = [line.split() for line in found[1].split("\n") if line.strip()]

    def take(self, count):
        need(self.at + count <= len(self.data), "the packed body is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def count(self):
        total, factor = 0, 1
        while True:
            (byte,) = self.take(1)
            total, factor = total + byte % 128 * factor, factor * 128
            need(factor <= 2**56, "a count does not end")
            if byte < 128:
                return total

    def known(self, item, items):
        items.append(item)
        return item

    def one_of(self, items, place):
        need(place < len(items), "the packed body names what is not there")
        return items[place]

    def say(self, text):
        self.chars += len(text)
        need(self.chars <= 2**24, "the packed body says too much")
        return text

    def items(self):
        count = self.count()
        need(count <= len(self.data) - self.at, "the packed body is cut off")
        return range(count)

    def fields(self, keys):
        self.say("".join(keys))
        return {key: self.value() for key in keys}

    def value(self):
        (byte,) = self.take(1)
        if byte < 0x40:
            return float(byte)
        if byte >= 0x80:
            return self.say(self.one_of(self.texts, byte - 0x80))
        if byte >= 0x60:
            return self.fields(self.one_of(self.shapes, byte - 0x60))
        ways = {
            0x40: lambda: None,
            0x41: lambda: False,
            0x42: lambda: True,
            0x43: lambda: float(self.count()),
            0x44: lambda: float(-1 - self.count()),
            0x45: lambda: self.known(struct.unpack("<f", self.take(4))[0], self.numbers),
            0x46: lambda: self.known(struct.unpack("<d", self.take(8))[0], self.numbers),
            0x47: lambda: self.one_of(self.numbers, self.count()),
            0x48: lambda: self.say(self.known(self.take(self.count()).decode(), self.texts)),
            0x49: lambda: self.say(self.one_of(self.texts, self.count())),
            0x4A: lambda: [self.value() for _ in self.items()],
            0x4B: lambda: self.fields(self.known([self.value() for _ in self.items()], self.shapes)),
            0x4C: lambda: self.fields(self.one_of(self.shapes, self.count())),
        }
        need(byte in ways, "the packed body has an unknown byte")
        return ways[byte]()

# The one spelling of a payload.

def number(x):
    need(x - x == 0, "a number is not finite")
    mantissa, _, exponent = repr(abs(x)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    n = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    k = len(digits)
    if k == 0:
        return "0"
    if k <= n <= 21:
        text = digits + "0" * (n - k)
    elif 0 < n <= 21:
        text = digits[:n] + "." + digits[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + digits
    else:
        text = digits[0] + ("." + digits[1:] if k > 1 else "") + "e" + ("+" if n > 0 else "-") + str(abs(n - 1))
    return ("-" if x < 0 else "") + text

def text_of(value):
    quoted = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda one: "\\u%04x" % ord(one[0]), quoted)

def spell(value, depth=0):
    if value is None or value is True or value is False:
        return json.dumps(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return text_of(value)
    need(depth < 32, "it is nested too deep")
    if isinstance(value, list):
        return "[" + ",".join(spell(one, depth + 1) for one in value) + "]"
    keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    return "{" + ",".join(text_of(key) + ":" + spell(value[key], depth + 1) for key in keys) + "}"

def entry_of(payload):
    entry = json.loads(payload.decode("utf-8"), parse_int=float)
    need(list(entry) == ["seq", "timeMs", "session", "kind", "body"], "it has other keys")
    need(isinstance(entry["body"], dict), "its body is no object")
    spelled = "{" + ",".join('"%s":%s' % (key, spell(entry[key])) for key in entry) + "}"
    need(spelled.encode("utf-8") == payload, "it is not in the one spelling")
    return entry

# Segments and series.

def header_of(data):
    need(data[:8] == b"PALIMLOG" and len(data) >= 116, "it is no segment of a log")
    version, size = struct.unpack_from("<II", data, 8)
    need(version in (2, 3), "it is of format %d, and this program reads 2 and 3" % version)
    head = dict(zip(("number", "seq"), struct.unpack_from("<QQ", data, 32)), id=data[16:32].hex(), before=data[48:80])
    (head["leaves"],) = struct.unpack_from("<Q", data, 104)
    count = bin(head["leaves"]).count("1")
    need(size == 116 + 32 * count and len(data) >= size, "its header is not whole")
    need(struct.unpack_from("<I", data, size - 4)[0] == crc32c(data[: size - 4]), "the checksum of its header is wrong")
    head["peaks"] = [data[112 + 32 * i : 144 + 32 * i] for i in range(count)]
    return head, size

def check_series(folder, series, log_id, states):
    """Every segment of a series. -> id of the log, entries, bytes behind the last whole entry"""
    names = sorted((int(name[:-4]), name) for name in os.listdir(folder) if re.fullmatch(r"\d{8,15}\.wal", name))
    state, rest = None, 0
    for place, (index, name) in enumerate(names):
        data, is_last = open(os.path.join(folder, name), "rb").read(), place == len(names) - 1
        if is_last and state and (len(data) < 116 or not data.strip(b"\0")):
            return log_id, state["leaves"], len(data)
        try:
            head, at = header_of(data)
            need(head["number"] == index, "it has the number %d" % head["number"])
            need(state is None or index == state["number"] + 1, "the segment before it is missing")
            history = (head["before"], head["leaves"], head["peaks"])
            need(state is None or history == state["history"], "it does not follow the segment before it")
            need(index > 0 or head["before"] == bytes(32) and head["leaves"] == 0, "the first segment has a history")
            need(log_id in (None, head["id"]), "it is of another log")
            need(head["seq"] == series * 2**32 + head["leaves"], "its first seq is wrong")
            log_id, peaks, leaves, chain = head["id"], list(head["peaks"]), head["leaves"], sha(b"\2", data[: at - 4])
            states.setdefault(leaves, (root_of(peaks), head["before"]))
            while at < len(data):
                length = int.from_bytes(data[at : at + 4], "little")
                end = at + 40 + length
                if is_last and (end > len(data) or not data[at:].strip(b"\0")):
                    rest = len(data) - at
                    break
                need(1 <= length <= 2**20 and end <= len(data), "an entry has no possible length")
                payload = data[at + 8 : at + 8 + length]
                crc = int.from_bytes(data[at + 4 : at + 8], "little")
                need(crc == crc32c(data[at : at + 4] + payload), "a checksum is wrong")
                leaf = sha(b"\0", payload)
                chain = sha(b"\3", chain, leaf)
                need(chain == data[end - 32 : end], "the chain is broken")
                need(entry_of(payload)["seq"] == series * 2**32 + leaves, "seq has a gap")
                add_leaf(peaks, leaves, leaf)
                leaves, at = leaves + 1, end
                states[leaves] = (root_of(peaks), chain)
        except (Damage, ValueError, RecursionError, OverflowError) as error:
            raise Damage("%s: %s" % (os.path.join(folder, name), error))
        state = dict(number=index, leaves=leaves, history=(chain, leaves, peaks))
    return log_id, state["leaves"] if state else 0, rest

# Ed25519 (RFC 8032, section 5.1), in affine coordinates: slow, short, and for public values only.

P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P

def point_of(data):
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    xx = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    need(y < P and (x * x - xx) % P == 0 and (x or not sign), "a point is not on the curve")
    return (P - x if x % 2 != sign else x), y

def plus(a, b):
    k = D * a[0] * b[0] * a[1] * b[1] % P
    return (a[0] * b[1] + a[1] * b[0]) * pow(1 + k, -1, P) % P, (a[1] * b[1] + a[0] * b[0]) * pow(1 - k, -1, P) % P

def times(n, point):
    sum_ = (0, 1)
    while n:
        if n & 1:
            sum_ = plus(sum_, point)
        point, n = plus(point, point), n >> 1
    return sum_

BASE = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))

def is_signed(key, message, signature):
    s = int.from_bytes(signature[32:], "little")
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % Q
    return len(signature) == 64 and s < Q and times(s, BASE) == plus(point_of(signature[:32]), times(k, point_of(key)))

# Checkpoints and proofs.

def key_of(text):
    need(text.count("+") >= 2, "this is no key: it is NAME+HASH+BASE64")
    name, key_hash, encoded = text.split("+", 2)
    raw = base64.b64decode(encoded)
    need(len(raw) == 33 and raw[0] == 1 and sha(name.encode(), b"\n", raw)[:4].hex() == key_hash, "this is no key")
    return name, raw[1:]

def checkpoint_of(note, name, key):
    text, _, lines = note.partition("\n\n")
    text = (text + "\n").encode()
    start = sha(name.encode(), b"\n\1", key)[:4]
    named = [line.split(" ")[2] for line in lines.splitlines() if line.startswith("\u2014 %s " % name)]
    ours = [blob[4:] for blob in map(base64.b64decode, named) if blob[:4] == start]
    signed = ours and all(is_signed(key, text, signature) for signature in ours)
    need(signed, "the checkpoint was not signed with this key")
    origin, size, root, head = text.decode().split("\n")[:4]
    _, log_id, series = origin.split("/")
    root, head = base64.b64decode(root), base64.b64decode(head[5:])
    return dict(id=log_id, series=int(series), size=int(size), state=(root, head))

def check_log(folder, notes=(), key=None):
    """A log, and that it agrees with checkpoints. -> what was found"""
    folders = {0: folder}
    for name in os.listdir(folder):
        if re.fullmatch(r"writer-\d{4,}", name):
            folders[int(name[7:])] = os.path.join(folder, name)
    log_id, found, states = None, {"entries": 0, "unfinished": 0, "checkpoints": 0}, {}
    for series in sorted(folders):
        states[series] = {}
        log_id, entries, rest = check_series(folders[series], series, log_id, states[series])
        found["entries"] += entries
        found["unfinished"] += rest
    for note in notes:
        point = checkpoint_of(note, *key_of(key))
        seen = states.get(point["series"], {})
        need(point["id"] == log_id, "a checkpoint is of another log")
        need(point["size"] <= max(seen, default=0), "the end of series %d is missing" % point["series"])
        same = point["size"] == 0 or seen.get(point["size"]) == point["state"]
        need(same, "the first %d entries are not those that were signed" % point["size"])
        found["checkpoints"] += 1
    return found

def check_proof(proof, key):
    """-> the entry, if it is one of those that the checkpoint stands for"""
    point = checkpoint_of(proof["checkpoint"], *key_of(key))
    f, s, h = proof["leafIndex"], point["size"] - 1, sha(b"\0", proof["entry"].encode())
    need(0 <= f <= s, "the entry is not among those that were signed")
    for p in map(base64.b64decode, proof["path"]):
        need(s > 0, "the path is too long")
        if f % 2 == 1 or f == s:
            h = sha(b"\1", p, h)
            while f % 2 == 0 and f > 0:
                f, s = f // 2, s // 2
        else:
            h = sha(b"\1", h, p)
        f, s = f // 2, s // 2
    need(s == 0 and h == point["state"][0], "the entry is not what was signed")
    entry = entry_of(proof["entry"].encode())
    need(entry["seq"] == point["series"] * 2**32 + proof["leafIndex"], "the entry names another place")
    if "disclosed" in proof:
        salt, body = (base64.b64decode(proof["disclosed"][name]) for name in ("salt", "body"))
        commitment = base64.b64decode(entry["body"].get("committed", ""))[12:44]
        need(len(salt) == 32 and sha(b"\4", salt, body) == commitment, "the entry is not committed to this body")
        is_packed = body[:1] == b"\1"
        plain = Packed(body).value() if is_packed else json.loads(body, parse_int=float)
        need(isinstance(plain, dict), "the body is no object")
        need(is_packed or spell(plain).encode() == body, "the body is not in the one spelling")
        entry["body"] = plain
    return entry

def main(what, path, *more):
    if what == "proof":
        proof = json.load(open(path, encoding="utf-8"))
        entry = check_proof(proof, *more)
        found = {"seq": int(entry["seq"]), "kind": entry["kind"]}
        return dict(found, body=entry["body"]) if "disclosed" in proof else found
    if not more:
        return check_log(path)
    text = open(more[0], encoding="utf-8").read()
    return check_log(path, ["palimpsest/" + note for note in re.split("^palimpsest/", text, flags=re.M)[1:]], more[1])

if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except Damage as error:
        sys.exit("damaged: %s" % error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit("cannot be read: %s: %s" % (type(error).__name__, error))
