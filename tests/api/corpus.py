"""A little real text for trainings that tests can afford: verses of Genesis, public domain."""

VERSES = [
    "In the beginning God created the heaven and the earth.",
    "And the earth was without form, and void; and darkness was upon the face of the deep.",
    "And the Spirit of God moved upon the face of the waters.",
    "And God said, Let there be light: and there was light.",
    "And God saw the light, that it was good: and God divided the light from the darkness.",
    "And God called the light Day, and the darkness he called Night.",
    "And the evening and the morning were the first day.",
    "And God said, Let there be a firmament in the midst of the waters.",
    "And God made the firmament, and divided the waters which were under the firmament.",
    "And God called the firmament Heaven. And the evening and the morning were the second day.",
]
DOCUMENTS = [" ".join(VERSES[first : first + 5]) for first in range(6)]
TINY = {"width": 16, "hidden": 32, "heads": 2, "layers": 2}
