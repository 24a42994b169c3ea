#!/usr/bin/env python3
"""Makes the vectors beside it: values in, bytes out, from SPEC.md alone.

It shares nothing with the crate that the vectors test; the CRC is zlib's.
`make.py` writes the files; `make.py --check` says which differ; `make.py --seeds` also writes the
corpora of the fuzz targets.
"""

import pathlib
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).parent
SALT = 0x1122334455667788
UUID = bytes(range(0x10, 0x20))
FILES = {}
SEEDS = {}


def u8(n): return struct.pack("<B", n)
def u16(n): return struct.pack("<H", n)
def u32(n): return struct.pack("<I", n)
def u64(n): return struct.pack("<Q", n)
def u48(n): return struct.pack("<Q", n)[:6]
def crc(data): return zlib.crc32(data)


def seeded(data, offset, salt):
    return zlib.crc32(data, (salt & 0xFFFFFFFF) ^ (offset // 8 & 0xFFFFFFFF))


def header_check(head, offset, salt):
    h = salt
    for at in (8, 16, 24):
        h = (h ^ struct.unpack_from("<Q", head, at)[0]) * 0x9E3779B97F4A7C15 % 2**64
        h ^= h >> 32
    return (h & 0xFFFFFFFF) ^ (offset // 8 & 0xFFFFFFFF)


def show(value):
    if isinstance(value, bytes):
        return value.hex()
    return '"%s"' % value if isinstance(value, str) else str(value)


def file(name, spec, what, fields, expect="ok", why=None):
    """`fields` are (name, bytes, value); a value of None is not compared."""
    lines = ["# SPEC %s | expect: %s" % (spec, expect), "# %s" % what]
    if why:
        lines.append("# %s" % why)
    at = 0
    for field, data, value in fields:
        for i in range(0, len(data), 16):
            row = " ".join("%02x" % b for b in data[i:i + 16])
            tail = ""
            if i == 0:
                tail = "  " + field + ("" if value is None else "  " + show(value))
            lines.append("%04x  %s%s" % (at, row, tail))
            at += len(data[i:i + 16])
    FILES[name + ".hex"] = "\n".join(lines) + "\n"
    if what in ("message", "control"):
        SEEDS["decode_%s/%s" % (what, name)] = joined(fields)
    if what.startswith("frame |"):
        salt, offset = (int(part.split()[1]) for part in what.split(" | ")[1:])
        SEEDS["decode_frame/" + name] = u64(salt) + u64(offset) + joined(fields)


def joined(fields):
    return b"".join(data for _, data, _ in fields)


def with_crc(fields, wrong=0):
    return fields + [("crc", u32(crc(joined(fields)) ^ wrong), None)]


# --- SPEC 4: LOCK

def lock(magic=b"oncelock", uuid=UUID, reserved=0, wrong=0):
    owner = {b"oncelock": "log", b"oncestor": "store"}.get(magic)
    return with_crc([("owner", magic, owner), ("uuid", uuid, uuid),
                     ("reserved", u32(reserved), None)], wrong)


file("lock-log", "4", "lock", lock())
file("lock-store", "4", "lock", lock(b"oncestor"))
file("lock-none", "4", "lock", [("zeros", bytes(32), None)], why="no UUID yet")
file("lock-magic", "4", "lock", lock(b"oncelocK"), "magic at 0")
file("lock-unfinished", "4", "lock", [("mark", b"oncelog: a backup is unfinished\n", None)],
     "magic at 0")
file("lock-crc", "4", "lock", lock(wrong=1), "checksum at 28")
file("lock-uuid", "4", "lock", lock(uuid=bytes(16)), "field at 8")
file("lock-reserved", "4", "lock", lock(reserved=1), "field at 24")


# --- SPEC 4.1: cursors

def cursor(index=3, counter=7, lsn=41, name=b"indexer", length=None, magic=b"oncecurs", uuid=UUID,
           padding=None, wrong=0):
    padding = bytes(460 - len(name)) if padding is None else padding
    return with_crc([
        ("magic", magic, None), ("uuid", uuid, uuid), ("index", u32(index), index),
        ("length", u32(len(name) if length is None else length), len(name)),
        ("counter", u64(counter), counter), ("lsn", u64(lsn), lsn),
        ("name", name, name.decode() if name.isascii() else None), ("padding", padding, None)], wrong)


for name, args, expect in [
    ("cursor", {}, "ok"),
    ("cursor-other-copy", dict(counter=8), "ok"),
    ("cursor-first", dict(index=0, counter=1, lsn=1, name=b"a"), "ok"),
    ("cursor-largest", dict(index=127, counter=2**64 - 1, lsn=2**64 - 1, name=b"n" * 128), "ok"),
    ("cursor-magic", dict(magic=b"oncecurz"), "magic at 0"),
    ("cursor-crc", dict(wrong=1), "checksum at 508"),
    ("cursor-uuid", dict(uuid=bytes(16)), "field at 8"),
    ("cursor-length-0", dict(name=b"", padding=bytes(460)), "field at 28"),
    ("cursor-length", dict(length=129), "limit at 28"),
    ("cursor-counter", dict(counter=0, index=5), "field at 32"),
    ("cursor-turn", dict(counter=6, index=4), "field at 32"),
    ("cursor-lsn", dict(lsn=0), "field at 40"),
    ("cursor-name", dict(name=b"\xff\xfe"), "text at 48"),
    ("cursor-padding", dict(padding=bytes(452) + b"\1"), "field at 507"),
]:
    index, counter = args.get("index", 3), args.get("counter", 7)
    copy = {"cursor-counter": 0, "cursor-turn": 1}.get(name, counter % 2)
    file(name, "4.1", "cursor | index %d | copy %d" % (index, copy), cursor(**args), expect)
file("cursor-elsewhere", "4.1", "cursor | index 4 | copy 1", cursor(), "field at 24")
file("cursor-none", "4.1", "cursor | index 3 | copy 1", [("zeros", bytes(512), None)],
     why="no cursor")


# --- SPEC 5.1: segment header

def header(magic=b"oncelog\n", major=1, minor=0, incompat=0, compat=0, reserved=0, uuid=UUID,
           number=3, first_lsn=41, salt=SALT, base_time=1700000000000, reserved2=0, wrong=0):
    return with_crc([
        ("magic", magic, None), ("major", u16(major), None), ("minor", u16(minor), minor),
        ("incompat", u32(incompat), None), ("compat", u32(compat), compat),
        ("reserved", u32(reserved), None), ("uuid", uuid, uuid), ("number", u64(number), number),
        ("first_lsn", u64(first_lsn), first_lsn), ("salt", u64(salt), salt),
        ("base_time", u64(base_time), base_time), ("reserved2", u32(reserved2), None)], wrong)


for name, args, expect in [
    ("header", {}, "ok"),
    ("header-first", dict(number=1, first_lsn=1, base_time=0), "ok"),
    ("header-largest", dict(number=2**64 - 1, first_lsn=2**64 - 1, base_time=2**48 - 1,
                            salt=2**64 - 1), "ok"),
    ("header-minor", dict(minor=7, compat=0xFFFFFFFF), "ok"),
    ("header-magic", dict(magic=b"oncelog\r"), "magic at 0"),
    ("header-crc", dict(wrong=0x80000000), "checksum at 76"),
    ("header-crc-major", dict(major=2, wrong=1), "checksum at 76"),
    ("header-major", dict(major=2), "unsupported at 8"),
    ("header-incompat", dict(incompat=1), "unsupported at 12"),
    ("header-reserved", dict(reserved=1), "field at 20"),
    ("header-uuid", dict(uuid=bytes(16)), "field at 24"),
    ("header-number", dict(number=0), "field at 40"),
    ("header-first-lsn", dict(first_lsn=0), "field at 48"),
    ("header-base-time", dict(base_time=2**48), "field at 64"),
    ("header-reserved2", dict(reserved2=1), "field at 72"),
]:
    file(name, "5.1", "header", header(**args), expect)


# --- SPEC 5.2: slots

def slot(counter=1, durable_lsn=45, durable_offset=13000, oldest_lsn=2, head=None, index=1,
         magic=b"onceslot", wrong=0):
    head = header() if head is None else head
    copy = [("header." + f, data, value) for f, data, value in head]
    return with_crc([
        ("magic", magic, None), ("counter", u64(counter), counter),
        ("durable_lsn", u64(durable_lsn), durable_lsn),
        ("durable_offset", u64(durable_offset), durable_offset),
        ("oldest_lsn", u64(oldest_lsn), oldest_lsn)] + copy + [("index", u32(index), index)], wrong)


for name, args, at, expect in [
    ("slot", {}, 8192, "ok"),
    ("slot-second", dict(counter=2, index=0), 4096, "ok"),
    ("slot-none-durable", dict(durable_lsn=40, durable_offset=12288, oldest_lsn=41), 8192, "ok"),
    ("slot-magic", dict(magic=b"onceslog"), 8192, "magic at 0"),
    ("slot-crc", dict(wrong=1), 8192, "checksum at 124"),
    ("slot-counter", dict(counter=0, index=0), 4096, "field at 8"),
    ("slot-turn", dict(counter=2), 8192, "field at 8"),
    ("slot-durable-lsn", dict(durable_lsn=39), 8192, "field at 16"),
    ("slot-durable-offset", dict(durable_offset=12280), 8192, "field at 24"),
    ("slot-unaligned", dict(durable_offset=13001), 8192, "field at 24"),
    ("slot-oldest-lsn", dict(oldest_lsn=0), 8192, "field at 32"),
    ("slot-header", dict(head=header(wrong=1)), 8192, "checksum at 116"),
    ("slot-unsupported", dict(head=header(major=2)), 8192, "unsupported at 48"),
    ("slot-elsewhere", {}, 4096, "field at 120"),
]:
    file(name, "5.2", "slot | offset %d" % at, slot(**args), expect)


# --- SPEC 6: frames

def frame(payload=b"abc", lsn=46, lag=1, time=1700000000001, kind=1, flags=1, length=None,
          offset=13000, salt=SALT, wrong=0, wrong_check=0, padding=None, body=True):
    length = len(payload) if length is None else length
    words = u64(lsn) + u32(length) + u32(lag) + u48(time) + u8(kind) + u8(flags)
    check = u32(header_check(bytes(8) + words, offset, salt) ^ wrong_check)
    total = u32(seeded(check + words + payload, offset, salt) ^ wrong)
    fields = [
        ("crc", total, None), ("check", check, None), ("lsn", u64(lsn), lsn),
        ("length", u32(length), length), ("lag", u32(lag), lag), ("time", u48(time), time),
        ("kind", u8(kind), kind), ("flags", u8(flags), flags)]
    if body:
        padding = bytes(-len(payload) % 8) if padding is None else padding
        fields += [("payload", payload, payload), ("padding", padding, None)]
    return fields


def place(offset=13000, salt=SALT):
    return "salt %d | offset %d" % (salt, offset)


for name, args, expect in [
    ("frame", {}, "ok"),
    ("frame-empty", dict(payload=b""), "ok"),
    ("frame-first", dict(lsn=1, lag=1, time=0, offset=12288), "ok"),
    ("frame-message", dict(kind=2, payload=u32(0)), "ok"),
    ("frame-control", dict(kind=3), "ok"),
    ("frame-reserved", dict(kind=4), "ok"),
    ("frame-skippable", dict(kind=0x40), "ok"),
    ("frame-private", dict(kind=0xFF), "ok"),
    ("frame-batch", dict(flags=0), "ok"),
    ("frame-no-lag", dict(lag=0xFFFFFFFF), "ok"),
    ("frame-largest-fields", dict(lsn=2**64 - 1, lag=0xFFFFFFFE, time=2**48 - 1), "ok"),
    ("frame-crc", dict(wrong=0x00010000), "checksum at 0"),
    ("frame-check", dict(wrong_check=1), "checksum at 4"),
    ("frame-lsn", dict(lsn=0, lag=0), "field at 8"),
    ("frame-lag", dict(lsn=5, lag=6), "field at 20"),
    ("frame-kind", dict(kind=0), "field at 30"),
    ("frame-compressed", dict(flags=3), "field at 31"),
    ("frame-flags", dict(flags=0x81), "field at 31"),
    ("frame-length", dict(length=2**28 + 1), "limit at 16"),
    ("frame-room", dict(length=9), "truncated at 16"),
    ("frame-padding", dict(padding=b"\0\0\0\0\1"), "field at 39"),
] + [("frame-padding-%d" % (-n % 8), dict(payload=bytes(range(1, n + 1))), "ok")
     for n in range(1, 9)]:
    file(name, "6", "frame | " + place(args.get("offset", 13000)), frame(**args), expect)

file("frame-elsewhere", "6", "frame | " + place(13008), frame(), "checksum at 4",
     "a copy of frame.hex one step further")
file("frame-other-segment", "6", "frame | " + place(salt=SALT ^ 1 << 63), frame(),
     "checksum at 4", "a copy of frame.hex under another salt")
file("frame-zeros", "6", "frame | " + place(12288), [("zeros", bytes(64), None)],
     "checksum at 4")
file("frame-zeros-checked", "6", "frame | " + place(0, 0), [("zeros", bytes(64), None)],
     "field at 8", "the one place where zeros pass the header check")
file("frame-header-largest", "6", "frame-header | " + place() + " | room %d" % (2**28 + 32),
     frame(length=2**28, body=False))
file("frame-header-room", "6", "frame-header | " + place() + " | room %d" % (2**28 + 31),
     frame(length=2**28, body=False), "truncated at 16")
file("frame-header-damaged-payload", "6", "frame-header | " + place() + " | room 40",
     frame(wrong=1, body=False), why="a witness although its payload may be damaged")


# --- SPEC 5.3: footer

def footer(offset=100000, last_lsn=50, end=99992, durable_lsn=49, count=10, payload_bytes=80000,
           first=1700000000001, last=1700000000009, entries=None, entry_count=None, length=None,
           reserved=0, magic=b"oncefoot", tail=b"toofecno", wrong=0, at=None):
    if entries is None:
        entries = [(41, 12288, 1700000000001), (49, 80000, 1700000000008)]
    fields = [
        ("magic", magic, None), ("offset", u64(offset), offset),
        ("last_lsn", u64(last_lsn), last_lsn), ("end", u64(end), end),
        ("durable_lsn", u64(durable_lsn), durable_lsn),
        ("record_count", u64(count), count), ("payload_bytes", u64(payload_bytes), payload_bytes),
        ("time_first", u64(first), first), ("time_last", u64(last), last),
        ("entry_count", u32(len(entries) if entry_count is None else entry_count), len(entries)),
        ("reserved", u32(reserved), None)]
    for i, entry in enumerate(entries):
        for part, value in zip(("lsn", "offset", "time"), entry):
            fields.append(("entry%d.%s" % (i, part), u64(value), value))
    length = 96 + 24 * len(entries) if length is None else length
    fields.append(("length", u32(length), None))
    at = offset if at is None else at
    fields.append(("crc", u32(seeded(joined(fields), at, SALT) ^ wrong), None))
    return fields + [("tail_magic", tail, None)]


EMPTY = dict(offset=12288, last_lsn=40, end=12288, durable_lsn=40, count=0, payload_bytes=0,
             first=0, last=1700000000000, entries=[])
for name, args, at, expect in [
    ("footer", {}, 100000, "ok"),
    ("footer-empty", EMPTY, 12288, "ok"),
    ("footer-behind-dead-bytes", dict(EMPTY, offset=20000), 20000, "ok"),
    ("footer-magic", dict(magic=b"oncefoo\0"), 100000, "magic at 0"),
    ("footer-tail-magic", dict(tail=b"toofecn\0"), 100000, "magic at 136"),
    ("footer-crc", dict(wrong=1), 100000, "checksum at 132"),
    ("footer-elsewhere", {}, 100008, "checksum at 132"),
    ("footer-length", dict(length=120), 100000, "field at 128"),
    ("footer-offset", dict(at=100008), 100008, "field at 8"),
    ("footer-entry-count", dict(entry_count=1), 100000, "field at 72"),
    ("footer-reserved", dict(reserved=1), 100000, "field at 76"),
    ("footer-end", dict(end=100008), 100000, "field at 24"),
    ("footer-durable-lsn", dict(durable_lsn=51), 100000, "field at 32"),
    ("footer-record-count", dict(count=51), 100000, "field at 40"),
    ("footer-payload-bytes", dict(payload_bytes=99992), 100000, "field at 48"),
    ("footer-time-first", dict(EMPTY, first=1), 12288, "field at 56"),
    ("footer-time-last", dict(last=1700000000000), 100000, "field at 64"),
    ("footer-no-entries", dict(entries=[]), 100000, "field at 72"),
    ("footer-first-entry", dict(entries=[(42, 12288, 1700000000001)]), 100000, "field at 80"),
    ("footer-entries", dict(entries=[(41, 12288, 1700000000001), (41, 80000, 1700000000008)]),
     100000, "field at 104"),
]:
    file(name, "5.3", "footer | " + place(at), footer(**args), expect)


# --- SPEC 13.1: messages

def text(s):
    data = s.encode() if isinstance(s, str) else s
    return u32(len(data)) + data


def message(properties, payload=b"payload", count=None):
    """`properties` are (key, fields of the value)."""
    count = len(properties) if count is None else count
    fields = [("count", u32(count), count)]
    for key, values in properties:
        name = key if isinstance(key, str) else "key"
        fields.append((name + ".key", text(key), None))
        fields.append((name + ".length", u32(len(joined(values))), None))
        fields += [(name + "." + f if f else name, data, value) for f, data, value in values]
    return fields + [("payload", payload, payload)]


def n32(n): return ("", u32(n), n)
def n64(n): return ("", u64(n), n)
def whole(s): return ("", s.encode(), s)


def texts(name, items):
    fields = [(name + ".count", u32(len(items)), len(items))]
    return fields + [("%s%d" % (name, i), text(s), s) for i, s in enumerate(items)]


def bh(ack=1, vchannels=("airports-0", "airports-1"),
       resources=(("collection", "7", 1), ("name", "airports", 0))):
    fields = [("id", u64(9), 9), ("ack", u8(ack), ack)] + texts("vchannel", vchannels)
    fields.append(("resource.count", u32(len(resources)), len(resources)))
    for i, (domain, key, shared) in enumerate(resources):
        name = "resource%d." % i
        fields += [(name + "domain", text(domain), domain), (name + "key", text(key), key),
                   (name + "shared", u8(shared), shared)]
    return fields


def ik(key=b"nightly-1"):
    return [("principal", text("default"), "default"), ("type", text("Import"), "Import"),
            ("domain", text("collection"), "collection"), ("identity", text("7"), "7"),
            ("generation", u64(2), 2), ("client_key", text(key), key)]


def fp(names=("files", "options")):
    fields = [("version", u32(1), 1), ("count", u32(len(names)), len(names))]
    for i, name in enumerate(names):
        digest = bytes([0xA0 + i]) * 32
        fields += [("name%d" % i, text(name), name), ("digest%d" % i, digest, digest)]
    return fields


def tx():
    return [("job", u64(9), 9), ("attempt", u32(1), 1), ("file", u32(2), 2),
            ("first_row", u64(8192), 8192), ("rows", u32(77), 77)]


TICK = 1700000000000 << 18 | 5
ALL = [
    ("_bh", bh()), ("_fp", fp()), ("_ik", ik()), ("_lc", [n64(40)]), ("_t", [whole("Import")]),
    ("_tc", [whole("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]),
    ("_tt", [n64(TICK)]), ("_tx", tx()), ("_v", [n32(1)]), ("_vc", [whole("airports-0")]),
    ("_wt", [n64(3)])]
OTHER = [("", b"kept", b"kept")]


def value_at(properties, key, field=0):
    """Offset of a field of the value of `key`."""
    at = 0
    for name, data, _ in message(properties):
        if name.split(".")[0] == key and not name.endswith((".key", ".length")):
            if field == 0:
                return at
            field -= 1
        at += len(data)
    raise KeyError(key)


CHUNK = [("_ci", [n32(1)]), ("_ct", [n32(3)])]
for name, properties, expect in [
    ("message", ALL, "ok"),
    ("message-empty", [], "ok"),
    ("message-chunk", CHUNK, "ok"),
    ("message-chunk-last", [("_ci", [n32(65535)]), ("_ct", [n32(65536)])], "ok"),
    ("message-unknown", [("_zz", OTHER), ("of the caller", OTHER)], "ok"),
    ("message-binary-key", [("_ik", ik(bytes(range(256))))], "ok"),
    ("message-key-order", [("b", OTHER), ("a", OTHER)], "text at 17"),
    ("message-key-twice", [("a", OTHER), ("a", OTHER)], "text at 17"),
    ("message-key-empty", [("", OTHER)], "field at 4"),
    ("message-key-utf8", [(b"\xff", OTHER)], "text at 4"),
    ("message-key-long", [("k" * 257, OTHER)], "limit at 4"),
    ("message-version", [("_v", [n32(2)])], "unsupported at 14"),
    ("message-type-empty", [("_t", [])], "field at 14"),
    ("message-tick-long", [("_tt", [n64(1), ("more", b"\0", 0)])], "trailing at 23"),
    ("message-tick-short", [("_tt", [n32(1)])], "truncated at 15"),
    ("message-chunk-alone", CHUNK[:1], "field at 15"),
    ("message-chunk-total", [("_ci", [n32(0)]), ("_ct", [n32(1)])], "field at 30"),
    ("message-chunk-index", [("_ci", [n32(3)]), ("_ct", [n32(3)])], "field at 15"),
    ("message-chunk-many", [("_ci", [n32(0)]), ("_ct", [n32(65537)])], "limit at 30"),
    ("message-chunk-most", [("_ci", [n32(0)]), ("_ct", [n32(0xFFFFFFFF)])], "limit at 30"),
    ("message-chunk-index-alone", [("_ct", [n32(3)])], "field at 15"),
    ("message-chunk-index-long", [("_ci", [n64(1)]), ("_ct", [n32(3)])], "trailing at 19"),
    ("message-chunk-total-short", [("_ci", [n32(1)]), ("_ct", [("", u8(3), 3)])],
     "truncated at 30"),
    ("message-ack", [("_bh", bh(ack=2))], "field at 23"),
    ("message-no-vchannel", [("_bh", bh(vchannels=()))], "field at 24"),
    ("message-vchannel-empty", [("_bh", bh(vchannels=("", "a")))], "field at 24"),
    ("message-vchannel-order", [("_bh", bh(vchannels=("b", "a")))], "text at 24"),
    ("message-resource-order", [("_bh", bh(resources=(("d", "b", 0), ("d", "a", 0))))],
     "text at %d" % value_at([("_bh", bh())], "_bh", 5)),
    ("message-resource-shared", [("_bh", bh(vchannels=("a",), resources=(("d", "k", 2),)))],
     "field at 47"),
    ("message-client-key", [("_ik", ik(b""))],
     "field at %d" % value_at([("_ik", ik())], "_ik", 5)),
    ("message-fingerprint-order", [("_fp", fp(("b", "a")))], "text at 19"),
]:
    file(name, "13.1", "message", message(properties), expect)

file("message-count", "13.1", "message", message([], count=257), "limit at 0")
file("message-value-long", "13.1", "message",
     [("count", u32(1), 1), ("a.key", text("a"), None), ("a.length", u32(2**20 + 1), None)],
     "limit at 9")
file("message-cut", "13.1", "message",
     [("count", u32(1), 1), ("a.key", text("a"), None), ("a.length", u32(4), None),
      ("a", b"cut", b"cut")], "truncated at 13")


# --- SPEC 13.2: control records

def control(kind, fields, at=1700000000001, version=1):
    return [("type", u8(kind), kind), ("version", u8(version), version), ("at", u64(at), at),
            ] + fields


def f8(name, n): return (name, u8(n), n)
def f16(name, n): return (name, u16(n), n)
def f32(name, n): return (name, u32(n), n)
def f64(name, n): return (name, u64(n), n)
def ftext(name, s): return (name, text(s), s)


def pends(items=(("p0", 41), ("p1", 7))):
    fields = [f32("pend.count", len(items))]
    for i, (name, lsn) in enumerate(items):
        fields += [ftext("pend%d.pchannel" % i, name), f64("pend%d.next_lsn" % i, lsn)]
    return fields


def accepted(link=(f8("link", 0),), scope=True):
    scoped = [f8("scope", 1)] + ik() if scope else [f8("scope", 0)]
    return bh() + [ftext("message_type", "Import")] + scoped + fp() + pends() + [
        f64("lifetime", 86400000), f8("firm", 1)] + list(link) + [
        f32("properties", 1), ftext("key", "origin"), ("value", text(b"\x01\x02"), b"\x01\x02"),
        ftext("trace", ""), ("payload", text(b"body"), b"body")]


def ends(kind):
    return [f8("link", kind), f64("job", 9), f32("attempt", 1)]


COLLECTION = [
    f64("id", 7), ftext("name", "airports"), f64("generation", 2),
    ("schema", text(b"{}"), b"{}"), ftext("primary_key", "iata"), f8("partition_function", 1),
    f16("partition_version", 1)] + texts("vchannel", ("airports-0", "airports-1"))
PLAN = [
    f64("job", 9), f32("attempt", 1), f32("files", 1), ftext("path", "a.csv"), f64("size", 1000),
    f64("modified", 1700000000000000000), f64("inode", 12), ("sha256", b"\xab" * 32, b"\xab" * 32),
    f64("rows", 10), f32("slice_rows", 8192), f8("partition_function", 1),
    f16("partition_version", 1)] + texts("vchannel", ("airports-0",)) + pends() + [
    ("detail", text(b"{}"), b"{}")]


def job_state(phase=2, progress=50):
    return [f64("job", 9), f32("attempt", 1), f8("phase", phase), f8("progress", progress),
            f64("rows", 77), ftext("reason", ""), ("detail", text(b"{}"), b"{}")]


def done(outcome, reason): return [f64("id", 9), f8("outcome", outcome), ftext("reason", reason)]
def reasoned(): return [f64("id", 9), ftext("reason", "why")]


POLICY = [f64("window_lifetime", 86400000), f64("window_count_max", 1048576), f8("share", 25),
          f64("task_retention", 172800000), f64("check_interval", 300000), f8("evict_oldest", 0),
          f64("retry_age_max", 600000), f64("broadcasts_an_hour_max", 0)]
for name, fields, expect in [
    ("collection", control(0x01, COLLECTION), "ok"),
    ("channel", control(0x02, [ftext("vchannel", "airports-0"), ftext("pchannel", "p0")]), "ok"),
    ("accepted", control(0x03, accepted()), "ok"),
    ("accepted-without-key", control(0x03, accepted(scope=False)), "ok"),
    ("accepted-starts", control(0x03, accepted([f8("link", 1)])), "ok"),
    ("accepted-commits", control(0x03, accepted(ends(2))), "ok"),
    ("accepted-aborts", control(0x03, accepted(ends(3))), "ok"),
    ("ack", control(0x04, [f64("id", 9), f32("count", 1), f32("which", 1), f64("lsn", 41),
                           f64("tick", TICK)]), "ok"),
    ("done", control(0x05, done(1, "")), "ok"),
    ("done-failed", control(0x05, done(2, "why")), "ok"),
    ("dropped-expired", control(0x06, [f64("id", 9), f8("cause", 1)]), "ok"),
    ("dropped-evicted", control(0x06, [f64("id", 9), f8("cause", 2)]), "ok"),
    ("dropped-retired", control(0x06, [f64("id", 9), f8("cause", 3)]), "ok"),
    ("park", control(0x07, reasoned()), "ok"),
    ("resume", control(0x08, reasoned()), "ok"),
    ("skip", control(0x09, reasoned()), "ok"),
    ("attempt", control(0x0A, [f64("job", 9), f32("attempt", 2)]), "ok"),
    ("job-plan", control(0x0B, PLAN), "ok"),
    ("job-state", control(0x0C, job_state()), "ok"),
    ("clock-rebase", control(0x10, [f64("from", 1600000000000)]), "ok"),
    ("term", control(0x11, [f64("term", 3)]), "ok"),
    ("window-accepted", control(0x12, [ftext("reason", "why")]), "ok"),
    ("policy", control(0x13, POLICY), "ok"),
    ("later-version", control(0x11, [f64("term", 3), f8("later", 1)], version=2), "ok"),
    ("skippable", control(0x80, [f8("any", 1)]), "ok"),
    ("type-0", control(0x00, []), "unsupported at 0"),
    ("unknown", control(0x7F, []), "unsupported at 0"),
    ("version-0", control(0x11, [f64("term", 3)], version=0), "field at 1"),
    ("at", control(0x11, [f64("term", 3)], at=2**48), "field at 2"),
    ("cut", control(0x11, [f32("term", 3)]), "truncated at 10"),
    ("trailing", control(0x11, [f64("term", 3), f8("more", 1)]), "trailing at 18"),
    ("term-0", control(0x11, [f64("term", 0)]), "field at 10"),
    ("broadcast-0", control(0x07, [f64("id", 0), ftext("reason", "why")]), "field at 10"),
    ("outcome", control(0x05, done(3, "")), "field at 18"),
    ("reason-of-success", control(0x05, done(1, "why")), "field at 19"),
    ("cause", control(0x06, [f64("id", 9), f8("cause", 4)]), "field at 18"),
    ("phase", control(0x0C, job_state(phase=6)), "field at 22"),
    ("progress", control(0x0C, job_state(progress=101)), "field at 23"),
    ("count", control(0x04, [f64("id", 9), f32("count", 65537)]), "limit at 18"),
    ("count-cut", control(0x04, [f64("id", 9), f32("count", 65536)]), "truncated at 18"),
]:
    file("control-" + name, "13.2", "control", fields, expect)


# --- SPEC 13.3: checkpoints

def entry(kind, name, fields):
    fields = [(name, u8(kind), kind)] + [(name + "." + f, b, v) for f, b, v in fields]
    length = sum(len(b) for _, b, _ in fields)
    return [f32(name + ".length", length)] + fields


def task(done):
    end = [f8("done", 1), f64("done_at", 1700000000009), f8("outcome", 0), ftext("reason", "why")
           ] if done else [f8("done", 0)]
    parked = [f8("parked", 0)] if done else [f8("parked", 1), f64("since", 1700000000007),
                                             ftext("parked_reason", "why")]
    return accepted() + [
        f64("accepted_at", 1700000000001), f64("moved_at", 1700000000005), f8("owns", 1),
        f32("acks", 1), f32("which", 1), f64("lsn", 41), f64("tick", TICK)] + parked + end


STREAM = entry(1, "facts", [
    f64("last_id", 9), f64("newest", 1700000000009), f64("term", 3), f64("ignored", 4),
    f64("expired", 5), f64("evicted", 6), f64("evicted_until", 1700000000008),
    f64("evicted_done", 1700000000003), f64("forgotten", 7),
    f8("policy", 1)] + POLICY)
STREAM += entry(2, "collection", COLLECTION)
STREAM += entry(3, "channel", [ftext("vchannel", "airports-0"), ftext("pchannel", "p0")])
STREAM += entry(4, "task", task(False)) + entry(4, "tombstone", task(True))
STREAM += entry(5, "job", accepted([f8("link", 1)]) + [
    f64("made_at", 1700000000002), f32("attempt", 1), f8("plan", 1)] + PLAN + [
    f8("state", 1)] + job_state() + [
    f8("end", 1), f8("commit", 1), f64("by", 9), f8("over", 1), f8("committed", 0),
    f64("over_at", 1700000000006)])
STREAM += entry(6, "filter", [f32("capacity", 2), f32("count", 1),
                              ("bits", text(b"\x01\x80\x00\x02" * 2), b"\x01\x80\x00\x02" * 2)])
LENGTH = sum(len(b) for _, b, _ in STREAM)
for name, fields, expect in [
    ("begin", control(0x0D, [f64("covers", 40), f16("version", 2)]), "ok"),
    ("part", control(0x0E, [f64("covers", 40), f32("index", 0), f32("length", LENGTH)] + STREAM),
     "ok"),
    ("end", control(0x0F, [f64("covers", 40), f64("begin", 41), f32("parts", 1),
                           f64("length", LENGTH), ("sha256", b"\xcd" * 32, b"\xcd" * 32)]), "ok"),
    ("covers-0", control(0x0D, [f64("covers", 0), f16("version", 2)]), "field at 10"),
    ("covers-itself", control(0x0F, [f64("covers", 41), f64("begin", 41)]), "field at 18"),
    ("part-long", control(0x0E, [f64("covers", 40), f32("index", 0), f32("length", 1000001)]),
     "limit at 22"),
]:
    file("control-checkpoint-" + name, "13.3", "control", fields, expect)


# --- Segments without the zeros between their blocks, for fuzz/src/lib.rs

def segment(*parts, first_lsn=46, slots=None):
    head = header(first_lsn=first_lsn)
    slots = [bytes(128), joined(slot(durable_lsn=first_lsn - 1, durable_offset=12288, head=head))
             ] if slots is None else slots
    return joined(head) + b"".join(slots) + b"".join(parts)


ONE = joined(frame(offset=12288))
TWO = ONE + joined(frame(offset=12328, lsn=47, lag=2, payload=b"second"))
TWO_SLOT = joined(slot(counter=2, index=0, durable_lsn=47, durable_offset=12368))
FOOT = dict(last_lsn=47, end=12368, durable_lsn=47, count=2, payload_bytes=9, first=1700000000001,
            last=1700000000001, entries=[(46, 12288, 1700000000001)])
for name, data in [
    ("empty", segment()),
    ("bare", segment(bytes(64))),
    ("one", segment(ONE)),
    ("two", segment(TWO, bytes(24))),
    ("torn", segment(ONE, joined(frame(offset=12328, lsn=47))[:20], bytes(60))),
    ("hole", segment(ONE, bytes(40), joined(frame(offset=12368, lsn=48)))),
    ("sealed", segment(TWO, joined(footer(12368, **FOOT)))),
    ("sealed-behind-dead", segment(TWO, b"\xee" * 32, joined(footer(12400, **FOOT)))),
    ("both-slots", segment(TWO, slots=[TWO_SLOT, joined(slot())])),
]:
    SEEDS["decode_segment/" + name] = data


def main():
    stale = []
    for name, content in FILES.items():
        path = HERE / name
        if not path.exists() or path.read_text() != content:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(content)
    stale += sorted(p.name for p in HERE.glob("*.hex") if p.name not in FILES)
    if "--seeds" in sys.argv[1:]:
        for name, data in SEEDS.items():
            path = HERE / "../../fuzz/corpus" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    print("%d vectors, %d differed" % (len(FILES), len(stale)), *stale[:20])
    return 1 if stale and "--check" in sys.argv[1:] else 0


sys.exit(main())
