"""The EXIF orientation of an encoded image, which says how the camera was held: found and applied inside the graph.

Regular expressions read it, as two operations of TensorFlow search a file where a loop through its segments takes a
small image as long as its decoding.
"""

import tensorflow as tf

_SEARCHED = 2**16  # bytes at an end of a file; an EXIF segment of a JPEG has at most as many
# A TIFF header, little or big endian, and the directory behind it, whose entries of 12 bytes ascend by their tags:
# those below 0x0112, then that tag, of one 16-bit integer, of which one byte is 0.
_LITTLE = rb"II\*\x00\x08\x00\x00\x00\C\C(?:(?:\C\x00|[\x00-\x11]\x01)\C{10})*?\x12\x01\x03\x00\x01\x00\x00\x00[%s]\x00"
_BIG = rb"MM\x00\*\x00\x00\x00\x08\C\C(?:(?:\x00\C|\x01[\x00-\x11])\C{10})*?\x01\x12\x00\x03\x00\x00\x00\x01\x00[%s]"
# what the directory follows; \C is any byte
_IN_JPEG = rb"Exif\x00\x00"
_IN_PNG_OR_WEBP = rb"(?:eXIf|EXIF\C{4}(?:Exif\x00\x00)?)"


def is_turned(contents, is_jpeg):
    """Whether the EXIF of an encoded file, a JPEG or another, says to turn or mirror the image: a bool scalar."""
    return _says(*_searched(contents, is_jpeg), rb"\x02-\x08")


def upright(image, contents, is_jpeg):
    """Returns an image, (height, width, channels), turned and mirrored as the EXIF of its file says.

    Read are `Exif` in the first 64 KiB of a JPEG, and in the first and last of a PNG (`eXIf`) or WebP (`EXIF`), if its
    directory follows its header and is sorted, as EXIF 2.3 has it. What is damaged is ignored, and so is XMP.
    """
    searched = _searched(contents, is_jpeg)

    def turned():
        axes = tf.where(_says(*searched, rb"\x05-\x08"), (1, 0, 2), (0, 1, 2))
        reverses_rows, reverses_columns = _says(*searched, rb"\x03\x04\x07\x08"), _says(*searched, rb"\x02\x03\x06\x07")
        return tf.raw_ops.Reverse(tensor=tf.transpose(image, axes), dims=[reverses_rows, reverses_columns, False])

    return tf.cond(_says(*searched, rb"\x02-\x08"), turned, lambda: image)


def _searched(contents, is_jpeg):
    """The part of a file that may hold EXIF, and what that follows."""
    front = tf.strings.substr(contents, 0, _SEARCHED)
    if is_jpeg:
        return front, _IN_JPEG
    start = tf.maximum(tf.strings.length(contents) - _SEARCHED, 0)
    return tf.strings.join([front, tf.strings.substr(contents, start, _SEARCHED)]), _IN_PNG_OR_WEBP


def _says(text, before, orientations):
    """Whether EXIF in a text has one of the orientations, the inside of a character class."""
    pattern = before + b"(?:%s|%s)" % (_LITTLE % orientations, _BIG % orientations)
    return tf.strings.regex_replace(text, pattern, b"", replace_global=False) != text
