"""Text that grows token by token, for showing what a model writes while it writes."""

from qkv.data.tokenizer import TextTokenizer

UNFINISHED = "\ufffd"  # how decoding shows a character of which bytes are still missing
CLEANED_AT_ONCE = 16  # characters: more than what cleaning up spaces looks at together


class TextStream:
    """Gives the text of ids piece by piece: a character only once all of its bytes are there.

    The pieces add up to what `TextTokenizer.decode(ids, whole=True)` gives for ids that spell whole characters. A space
    that belongs to the next word comes with that word. Special tokens give no text.
    """

    def __init__(self, tokenizer: TextTokenizer):
        self._tokenizer = tokenizer
        # Decoding depends on what stands before (a leading space is dropped only at the very start), so the last piece
        # given out is decoded again before each new one; where spaces are cleaned up, all of them.
        self._ids: list[int] = []
        self._shown = 0  # ids whose text has been given out
        self._given = 0  # characters of the text of all ids that have been given out, where spaces are cleaned up

    def add(self, *tokens: int) -> str:
        """The text that these ids complete: often a word, sometimes nothing yet.

        It does not matter how many come together, but for bytes that fall back and spell no characters.
        """
        self._ids.extend(tokens)
        if self._tokenizer.cleans_up:
            text = self._tokenizer.decode(self._ids, whole=True)
            return self._up_to(text, len(text) - CLEANED_AT_ONCE)
        text = self._tokenizer.decode(self._ids, whole=True)
        return "" if text.endswith(UNFINISHED) else self._given_out(text)

    def end(self) -> str:
        """What is left; half a character shows as a replacement character. The stream then starts anew."""
        text = self._tokenizer.decode(self._ids, whole=True)
        rest = self._up_to(text, len(text)) if self._tokenizer.cleans_up else self._given_out(text)
        self._ids, self._shown, self._given = [], 0, 0
        return rest

    def _given_out(self, text: str) -> str:
        before = self._tokenizer.decode(self._ids[: self._shown], whole=True)
        piece = text[len(before) :]
        if piece:
            del self._ids[: self._shown]
            self._shown = len(self._ids)
        return piece

    def _up_to(self, text: str, end: int) -> str:
        piece = text[self._given : max(end, self._given)]
        self._given += len(piece)
        return piece
