"""Checks the receipt of an answer against its log (docs/receipts.md), with Python's standard library alone.

    python3 verify_receipt.py RECEIPT LOG [PROOF KEY]

RECEIPT is a receipt, or a file of `palimpsest run --receipt`. The whole chain of the log is checked, hash by hash, and
that both entries of the receipt have its hashes. What the note claims is encrypted: PROOF opens it, as `palimpsest
audit prove SEQ --disclose` writes it, and KEY (NAME+HASH+BASE64) is the one that signed its checkpoint. Prints one line
of JSON, or says what is wrong and ends with 1. `claims` is true where the note was seen to have them.
"""
import base64, json, os, sys

from verify_log import Damage, check_proof, check_series, need, spell

SERIES = 2**32

def short(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

def reals(value):
    return json.loads(json.dumps(value), parse_int=float)

def folder_of(log, series):
    return os.path.join(log, "writer-%04d" % series) if series else log

def check_chain(receipt, log):
    """The series of the receipt is sound, and has both entries with these hashes."""
    first, last = receipt["log"]["first"], receipt["log"]["last"]
    series = last["seq"] // SERIES
    need(first["seq"] // SERIES == series and first["seq"] < last["seq"], "its entries are not of one session")
    states = {}
    log_id, entries, _ = check_series(folder_of(log, series), series, None, states)
    need(log_id and short(bytes.fromhex(log_id)) == receipt["log"]["id"], "it is of another log")
    for place in (first, last):
        state = states.get(place["seq"] % SERIES + 1)
        need(state is not None, "the log has no entry %d" % place["seq"])
        need(short(state[1]) == place["hash"], "entry %d has another hash" % place["seq"])
    return entries

def check_claims(receipt, proof, key):
    """The note says what the receipt says, field by field."""
    note = check_proof(proof, key)
    need(note["seq"] == receipt["log"]["last"]["seq"], "the proof is of another entry")
    need(note["session"] == receipt["session"], "the note is of another session")
    claims = {name: value for name, value in receipt.items() if name not in ("session", "log")}
    need(spell(reals(claims)) == spell(note["body"].get("receipt", {})), "the note claims something else")

def main(path, log, *proof):
    receipt = json.load(open(path, encoding="utf-8"))
    receipt = receipt.get("receipt", receipt)
    need(len(json.dumps(receipt, separators=(",", ":"), ensure_ascii=False).encode()) <= 1024, "it has more than 1 KiB")
    entries = check_chain(receipt, log)
    if proof:
        check_claims(receipt, json.load(open(proof[0], encoding="utf-8")), proof[1])
    print(json.dumps({"session": receipt["session"], "entries": entries, "claims": bool(proof)}))

if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Damage, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        sys.exit("the receipt is refused: %s" % error)
