"""The EXIF orientation of an encoded image, read and applied in the graph.

Regular expressions read it in two TensorFlow operations. A loop over the segments of the file would take as long as
decoding a small image.
"""

import tensorflow as tf

_SEARCHED = 2**16  # bytes at one end of a file; the maximum size of a JPEG's EXIF segment
# A TIFF header, little or big endian, followed by the directory with entries of 12 bytes in ascending order of tags:
# tags below 0x0112, then 0x0112 with one 16-bit integer, one byte of which is 0.
_LITTLE = rb"II\*\x00\x08\x00\x00\x00\C\C(?:(?:\C\x00|[\x00-\x11]\x01)\C{10})*?\x12\x01\x03\x00\x01\x00\x00\x00[%s]\x00"
_BIG = rb"MM\x00\*\x00\x00\x00\x08\C\C(?:(?:\x00\C|\x01[\x00-\x11])\C{10})*?\x01\x12\x00\x03\x00\x00\x00\x01\x00[%s]"
# what precedes the directory; \C is any byte
_IN_JPEG = rb"Exif\x00\x00"
_IN_PNG_OR_WEBP = rb"(?:eXIf|EXIF\C{4}(?:Exif\x00\x00)?)"


def is_turned(contents, is_jpeg):
    """Whether the EXIF of an encoded file (JPEG or not) rotates or mirrors the image: a bool scalar."""
    return _says(*_searched(contents, is_jpeg), rb"\x02-\x08")


def upright(image, contents, is_jpeg):
    """Return an image (height, width, channels), rotated and mirrored as the EXIF of its file specifies.

    EXIF is read from the first 64 KiB of a JPEG (`Exif`), and from the first and last 64 KiB of a PNG (`eXIf`) or WebP
    (`EXIF`). Its directory must follow its header and be sorted, as EXIF 2.3 requires. Damaged EXIF, and XMP, are
    ignored.
    """
    searched = _searched(contents, is_jpeg)

    def turned():
        axes = tf.where(_says(*searched, rb"\x05-\x08"), (1, 0, 2), (0, 1, 2))
        reverses_rows, reverses_columns = _says(*searched, rb"\x03\x04\x07\x08"), _says(*searched, rb"\x02\x03\x06\x07")
        return tf.raw_ops.Reverse(tensor=tf.transpose(image, axes), dims=[reverses_rows, reverses_columns, False])

    return tf.cond(_says(*searched, rb"\x02-\x08"), turned, lambda: image)


def _searched(contents, is_jpeg):
    """Return the part of a file that may contain EXIF, and the pattern that precedes it."""
    front = tf.strings.substr(contents, 0, _SEARCHED)
    if is_jpeg:
        return front, _IN_JPEG
    start = tf.maximum(tf.strings.length(contents) - _SEARCHED, 0)
    return tf.strings.join([front, tf.strings.substr(contents, start, _SEARCHED)]), _IN_PNG_OR_WEBP


def _says(text, before, orientations):
    """Whether the EXIF in `text` has one of the orientations, which are the inside of a character class."""
    pattern = before + b"(?:%s|%s)" % (_LITTLE % orientations, _BIG % orientations)
    return tf.strings.regex_replace(text, pattern, b"", replace_global=False) != text
