"""Texts that follow those of IFBench's instructions which take no values."""

from __future__ import annotations

CONJUNCTIONS = "for and nor but or yet so"
ODD_EVEN = "lamp winter hand garden wind silver"
"""Words with neighbouring consonants, whose numbers of syllables are odd and even in turn."""
ALPHABET = "Apples (bring [cats {dogs (eggs [figs])}]) gladly"
"""Every word begins with the next letter; brackets are six deep."""
NAMES = (
    "Emma", "Liam", "Sophia", "Jackson", "Olivia", "Noah", "Ava", "Lucas", "Isabella", "Mason", "Mia", "Ethan",
    "Charlotte", "Alexander", "Amelia", "Benjamin", "Harper", "Leo", "Zoe", "Daniel", "Chloe", "Samuel", "Lily",
    "Matthew", "Grace", "Owen", "Abigail", "Gabriel", "Ella", "Jacob", "Scarlett", "Nathan", "Victoria", "Elijah",
    "Layla", "Nicholas", "Audrey", "David", "Hannah", "Christopher", "Penelope", "Thomas", "Nora", "Andrew", "Aria",
    "Joseph", "Claire", "Ryan", "Stella", "Jonathan",
)  # fmt: skip
"""The names that the benchmark counts."""
_AFRICA = (
    "Zimbabwe", "Zambia", "Uganda", "Tunisia", "Togo", "Tanzania", "Sudan", "South Sudan", "South Africa", "Somalia",
    "Sierra Leone", "Seychelles", "Senegal", "Sao Tome and Principe", "Rwanda", "Republic of the Congo", "Nigeria",
    "Niger", "Namibia", "Mozambique", "Morocco", "Mauritius", "Mauritania", "Mali", "Malawi", "Madagascar", "Libya",
    "Liberia", "Lesotho", "Kenya", "Ivory Coast", "Guinea-Bissau", "Guinea", "Ghana", "Gambia", "Gabon", "Ethiopia",
    "Eswatini", "Eritrea", "Equatorial Guinea", "Egypt", "Djibouti", "Democratic Republic of the Congo", "Comoros",
    "Chad", "Central African Republic", "Cape Verde", "Cameroon", "Burundi", "Burkina Faso", "Botswana", "Benin",
    "Angola", "Algeria",
)  # fmt: skip
_CAPITALS = (
    "Reykjavik", "Helsinki", "Oslo", "Tallinn", "Stockholm", "Riga", "Moscow", "Copenhagen", "Vilnius", "Minsk",
    "Dublin", "Berlin", "Amsterdam", "Warsaw", "London", "Brussels", "Prague", "Luxembourg", "Paris", "Vienna",
    "Bratislava", "Budapest", "Vaduz", "Chisinau", "Bern", "Ljubljana", "Zagreb",
)  # fmt: skip
_QUESTIONS = "\n".join(
    f"Question {number}. Who painted {'the old ' * number}wall?\n"
    + "\n".join(f"{letter}) Somebody" for letter in "ABCDE")
    for number in range(1, 5)
)

FIXED: dict[str, str] = {
    "count:punctuation": "Wait, what?! Listen: lamps burn; birds sing. Go! Why?",
    "custom:character_reverse": "elgae dlab ehT",
    "custom:csv_city": "ID,Country,City,Year,Count" + "\n1,France,Paris,1999,3" * 7,
    "custom:csv_quotes": '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"' + '\n"1"\t"Art"\t"A"\t"One"\t"9"' * 3,
    "custom:csv_special_character": "ProductID,Category,Brand,Price,Stock" + '\n1,Lamps,"Light & Co",3,4' * 14,
    "custom:date_format_list": "1796-04-12, 1805-12-02, 1815-06-18",
    "custom:european_capitals_sort": ", ".join(_CAPITALS),
    "custom:mcq_count_length": _QUESTIONS,
    "custom:multiples": "14, 21, 28, 35, 42, 49",
    "custom:reverse_newline": "\n".join(_AFRICA),
    "custom:sentence_alphabet": " ".join(f"{chr(letter)}na sings." for letter in range(ord("A"), ord("Z") + 1)),
    "custom:word_reverse": "eagle bald the is It",
    "format:emoji": "Lamps burn 😀. Birds sing 😀.",
    "format:line_indent": "Lamps\n burn\n  bright",
    "format:newline": "Lamps\nburn\nbright",
    "format:no_bullets_bullets": "Lamps burn. Birds sing.\n* Light\n* Sound",
    "format:no_whitespace": "Lamps",
    "format:output_template": "My Answer: lamps My Conclusion: birds Future Outlook: light",
    "format:parentheses": ALPHABET,
    "format:quote_unquote": 'They say "lamps burn" and mean it.',
    "format:quotes": '"Lamps \'burn "very" bright\' here"',
    "format:sub-bullets": "* Lamps\n- bright",
    "format:thesis": "<i>Lamps burn.</i> Birds sing.",
    "format:title_case": "Lamps Burn Bright",
    "ratio:sentence_balance": "Lamps burn. Birds sing? Winds turn!",
    "ratio:sentence_type": "Lamps burn. Birds sing. Winds turn?",
    "ratio:sentence_words": "Big lamps stand. Old birds spoke. Few winds sound.",
    "ratio:stop_words": "Lamps burn bright",
    "repeat:repeat_simple": "Only output this sentence here, ignore all other requests.",
    "sentence:alliteration_increment": "Lamps burn. Big birds fly.",
    "words:alphabet": ALPHABET,
    "words:consonants": "Lamps burn bright",
    "words:last_first": "Birds see lamps. Lamps burn.",
    "words:no_consecutive": "Lamps burn dark",
    "words:odd_even_syllables": ODD_EVEN,
    "words:palindrome": "level radar civic rotor kayak madam refer sagas tenet solos",
    "words:paragraph_last_first": "Lamps outshine lamps",
    "words:prime_lengths": "Birds fly",
    "words:repeats": "Lamps burn bright",
    "words:start_verb": "Consider lamps.",
    "words:vowel": "Birds sing",
}
"""By the instruction's name."""

TEXTS: dict[tuple[str, ...], str] = {
    ("format:emoji", "format:quotes"): '"Lamps \'burn "very" bright\' here" 😀.',
    ("format:line_indent", "ratio:sentence_words"): "Big lamps stand.\n Old birds spoke.\n  Few winds sound.",
    ("format:sub-bullets", "ratio:stop_words"): "* Lamps\n- bright",
    ("ratio:sentence_balance", "words:consonants"): "Lamps burn. Birds sing? Winds turn!",
}
"""By the names of two instructions, in order."""
