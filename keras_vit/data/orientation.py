"""Turn images as their EXIF orientation specifies, in the graph, as Pillow's `ImageOps.exif_transpose` does.

The segments of a JPEG, the chunks of a PNG or WebP, and the first directory of EXIF are parsed. Most files contain
none of the words that precede an orientation; a search for a word is much faster than a loop over the segments. The
parser has few operations, because each adds to the time until the first batch of a pipeline, even if it never runs.
"""

import struct

import numpy as np
import tensorflow as tf

from keras_vit.data.headers import apart

# Words that every file with an orientation contains, and bytes that every JPEG with one other than 1 contains: an entry
# of the tag, in both orders of bytes, whose value, count or type is not that of an upright image; \C: any byte.
_IN_JPEG = (b"Exif\0\0", b"tiff:Orientation")
_IN_CHUNKS = (b"eXIf", b"exif\0", rb"com\.adobe\.xmp", b"EXIF", b"XMP ")
_NOT_UPRIGHT = (
    *(rb"\x12\x01\C\x00(?:[^\x01]|\C{4}[\x02-\x08])", rb"\x01\x12\x00\C{4}(?:[^\x01]|\C\x00{0,3}[\x02-\x08])"),
    *(rb"\x12\x01[\x05\x0a-\x0c\x10]\x00", rb"\x01\x12\x00[\x05\x0a-\x0c\x10]", rb"tiff:Orientation[^0-9]+[2-8]"),
)
# value of the tag -> whether rows become columns, then whether the new rows and the new columns are reversed
_TURNS = np.array([(0, 0, 0)] * 2 + [(0, 0, 1), (0, 1, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1), (1, 1, 1), (1, 1, 0)], bool)
_MAX_PARTS = 2**14  # segments or chunks that are examined
_MAX_PACKED, _MAX_TEXT = 2**17, 2**20  # bytes of compressed and of other texts
_PADDING = b"\0" * 32  # behind the bytes, so that reading past their end is safe


# For JPEG, PNG and WebP: the place of the first part (segment or chunk); the bytes of its header and behind its data;
# 1 if an odd length is rounded up. Then the places of the bytes of its length and its kind, least significant first;
# byte 8 is 0.
_SIZES = np.array([(2, 2, 0, 0), (8, 8, 4, 0), (12, 8, 0, 1)])
_LENGTH_AND_KIND = np.array([[(3, 2, 8, 8), (1, 0, 8, 8)], [(3, 2, 1, 0), (7, 6, 5, 4)], [(4, 5, 6, 7), (3, 2, 1, 0)]])
_WANTED = [int.from_bytes(kind, "big") for kind in (b"\xff\xe1", b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"EXIF", b"XMP ")]
_LAST = [int.from_bytes(kind, "big") for kind in (b"\xff\xda", b"IEND")]
_HAS_NO_LENGTH = np.isin(np.arange(256), [*range(0xC0), 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE), 0xFF])  # of JPEG

# How a part starts that contains EXIF, a text (EXIF in hexadecimal digits, or XMP) or a compressed text; \C: any byte.
_KEY = rb"(?:Raw profile type exif|XML:com\.adobe\.xmp)\x00"
_BINARY = rb"^(?:\C{4}(?:Exif\x00\x00|eXIf|tEXtexif\x00)|EXIF\C{4})"
_TEXT = rb"^(?:XMP \C{4}|\C{4}(?:http://ns\.adobe\.com/xap/1\.0/\x00|tEXt%b|iTXt%b\x00\C[^\x00]*\x00[^\x00]*\x00))"
_TEXT %= _KEY, _KEY
_PACKED = rb"^\C{4}(?:zTXt%b\x00|iTXt%b\x01\x00[^\x00]*\x00[^\x00]*\x00)" % (_KEY, _KEY)
_DIGITS = rb"(?s)^\C*?\n[^\n]*\n *[0-9]+\n((?:[0-9a-fA-F]\s*[0-9a-fA-F]\s*)+)\C*$"
_XMP = rb'(?s)^\C*?tiff:Orientation(?:="|>)([0-9])\C*$'
_BYTES = [bytes([value]) for value in range(256)]

_TIFF = rb"(?:II\*\x00|II\x00\*|MM\*\x00|MM\x00[*+])\C{4,}"  # as Pillow
_TAG = 0x0112
_SIZE_OF_TYPE = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 0])  # 0: unknown
_NUMBERS = {3: "H", 4: "L", 5: "2L", 6: "b", 8: "h", 9: "l", 10: "2l", 11: "f", 12: "d", 13: "L", 16: "Q"}
# type and first value of an entry, in both orders of bytes -> orientation
_ORIENTATIONS = {
    struct.pack(f"{order}H{form}", kind, *(value, 1)[: 1 + form.startswith("2")]): value
    for order in "<>"
    for kind, form in _NUMBERS.items()
    for value in range(2, len(_TURNS))
}
# tag, type, count and offset of an entry: the places of their bytes, least significant first; byte 12 is 0
_LITTLE = np.array([(0, 1, 12, 12), (2, 3, 12, 12), (4, 5, 6, 7), (8, 9, 10, 11)])
_BIG = np.array([(1, 0, 12, 12), (3, 2, 12, 12), (7, 6, 5, 4), (11, 10, 9, 8)])


def read(contents, is_jpeg):
    """Return the orientation of an encoded file (JPEG or not): an int32 scalar from 1 (upright) to 8.

    The rules are those of Pillow 13. EXIF is in the APP1 segments of a JPEG before its pixels, which are joined; in the
    last `eXIf` chunk of a PNG, or in a text chunk `Raw profile type exif`; or in the first `EXIF` chunk of a WebP. Its
    first directory may be anywhere in it, with entries in any order, and the orientation may have any type of numbers.
    XMP is used if EXIF has no orientation. Damaged EXIF is ignored, and so are compressed texts of more than 128 KiB.
    """

    def parsed():
        if not is_jpeg:
            return _orientation(contents)
        return tf.cond(_contains(contents, _NOT_UPRIGHT), lambda: _orientation(contents), lambda: 1)

    return tf.cond(_contains(contents, _IN_JPEG if is_jpeg else _IN_CHUNKS), parsed, lambda: 1)


def turned(image, orientation):
    """Return an image (height, width, channels), rotated and mirrored as an orientation (int32 scalar) specifies."""

    def turn():
        is_swapped, *is_reversed = tf.unstack(tf.gather(_TURNS, orientation), num=3)
        axes = tf.where(is_swapped, (1, 0, 2), (0, 1, 2))
        return tf.raw_ops.Reverse(tensor=tf.transpose(image, axes), dims=[*is_reversed, False])

    return tf.cond(orientation > 1, turn, lambda: image)


def _contains(contents, words):
    rests = [tf.strings.regex_replace(contents, word, b"", False) for word in words]
    return tf.reduce_any(tf.stack(rests) != contents)


@apart
def _orientation(contents):
    exif, text = _exif_and_text(contents)
    exif = tf.strings.regex_replace(exif, rb"^(?:Exif\x00\x00)+", b"")
    padded = tf.strings.join([b"\0" * 4, exif, _PADDING])  # 4 bytes before: the header is read like an entry
    data, end = tf.io.decode_raw(padded, tf.uint8), tf.cast(tf.strings.length(exif), tf.int64) + 4
    order = tf.where(data[4] == ord("M"), _BIG, _LITTLE)

    def fields(places):
        found = tf.pad(tf.gather(data, tf.minimum(places, end)[:, None] + np.arange(12)), ((0, 0), (0, 1)))
        return tf.unstack(tf.cast(tf.bitcast(tf.gather(found, order, axis=1), tf.uint32), tf.int64), num=4, axis=1)

    directory, is_tiff = fields(np.zeros(1, np.int64))[3] + 4, tf.strings.regex_full_match(exif, _TIFF)
    count = tf.where(is_tiff, tf.minimum(fields(directory)[0], tf.maximum(end - directory - 2, 0) // 12), 0)[0]
    entries = directory + 2 + 12 * tf.range(count)
    tag, kind, count, offset = fields(entries)
    size = tf.gather(_SIZE_OF_TYPE, tf.minimum(kind, len(_SIZE_OF_TYPE) - 1))
    is_apart = size * count > 4
    places = tf.where(is_apart, offset + 4, entries + 8)
    # Pillow skips entries whose values would not fit into the file together with the earlier ones, stops at another one
    # whose values are beyond the end, and takes the first entry of a tag.
    fits = ~is_apart | (tf.cumsum(tf.where(is_apart, size * count, 0)) <= end - 4)
    is_read = fits & (tf.math.cumprod(tf.cast(~fits | (places + size * count <= end), tf.int64)) > 0)
    found = tf.where((tag == _TAG) & (size * count > 0) & is_read)[:1, 0]
    entry, place, size = (tf.gather(values, found) for values in (entries, places, size))
    value = tf.strings.substr(padded, entry + 2, 0 * size + 2) + tf.strings.substr(padded, place, size)
    value = tf.where([*_ORIENTATIONS] == value[:, None], [*_ORIENTATIONS.values()], 1)
    of_xmp = tf.strings.regex_replace(text, _XMP, rb"\1", False)
    of_xmp = tf.strings.to_number(tf.where(of_xmp == text, b"1", of_xmp), tf.int32)
    uses_xmp = (tf.size(found) == 0) & (is_tiff | (exif == b""))
    return tf.where(uses_xmp & (of_xmp < len(_TURNS)), of_xmp, tf.maximum(tf.reduce_max(value), 1))


def _exif_and_text(contents):
    """Return the EXIF and the texts of a JPEG, PNG or WebP as strings, which may be empty."""
    padded, length = tf.strings.join([contents, _PADDING]), tf.cast(tf.strings.length(contents), tf.int64)
    start = tf.io.decode_raw(tf.strings.substr(padded, 0, len(_PADDING)), tf.uint8)
    is_jpeg, is_webp = start[0] == 0xFF, start[0] == ord("R")
    row = tf.where(is_jpeg, 0, tf.where(is_webp, 2, 1))
    first, header, behind, odd = tf.unstack(tf.gather(_SIZES, row))
    order = tf.gather(_LENGTH_AND_KIND, row)
    # A WebP ends where its first chunk says, and needs flags for EXIF (8) and XMP (4) in an extended header.
    end = tf.where(is_webp, tf.minimum(length, tf.cast(tf.bitcast(start[4:8], tf.int32), tf.int64) + 8), length)
    flags = tf.where(is_webp, tf.where(start[15] == ord("X"), start[20], 0), 12)

    def step(place, found):
        digits = tf.io.decode_raw(tf.strings.substr(padded, place, 8) + b"\0", tf.uint8)
        digits = tf.bitcast(tf.reshape(tf.gather(digits, order), (2, 4)), tf.uint32)
        size, kind = tf.unstack(tf.cast(digits, tf.int64))
        is_filling = (kind < 2**16) & ((kind < 0xFF00) | tf.gather(_HAS_NO_LENGTH, kind % 256))
        after = place + tf.where(is_filling, np.int64(1), header + size + behind + odd * (size % 2))
        part = tf.stack([place, header + size])[None, :]
        found = tf.concat([found, part[: tf.cast(tf.reduce_any(kind == _WANTED), tf.int32)]], axis=0)
        return tf.where(tf.reduce_any(kind == _LAST), end, after), found

    start, shapes = (first, tf.zeros((0, 2), tf.int64)), (first.shape, tf.TensorShape((None, 2)))
    _, found = tf.while_loop(lambda place, _: place < end, step, start, shapes, maximum_iterations=_MAX_PARTS)
    parts = tf.strings.substr(padded, *tf.unstack(found, axis=1))
    exif, text, packed = (tf.strings.regex_replace(parts, start, b"", False) for start in (_BINARY, _TEXT, _PACKED))
    exif = tf.strings.reduce_join(tf.where(exif == parts, b"", exif)[:: tf.where(is_jpeg | is_webp, 1, -1)])
    packed = tf.where((packed != parts) & (tf.cumsum(tf.strings.length(packed)) <= _MAX_PACKED), packed, b"")
    text = tf.where(text == parts, tf.io.decode_compressed(packed, "ZLIB"), text)[::-1]
    text = tf.strings.substr(tf.strings.reduce_join(text), 0, _MAX_TEXT)
    digits = tf.strings.regex_replace(text, _DIGITS, rb"\1", False)
    digits = tf.where((exif == b"") & (digits != text), tf.strings.regex_replace(digits, rb"\s", b""), b"")
    codes = tf.cast(tf.reshape(tf.io.decode_raw(digits, tf.uint8), (-1, 2)), tf.int32)
    values = tf.linalg.matvec(codes % 16 + codes // 64 * 9, (16, 1))
    exif = tf.where(exif == b"", tf.strings.reduce_join(tf.gather(_BYTES, values)), exif)
    return tf.where(flags & 8 > 0, exif, b""), tf.where(flags & 4 > 0, text, b"")
