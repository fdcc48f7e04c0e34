"""Words that may have a capital at the beginning of a sentence without being a name, and words of numbers."""

_FUNCTION = """
a about above according across after again against all almost along already also although always am amid among an and
another any anybody anyone anything are around as at away be because been before behind being below beneath besides
between beyond both but by can could did do does done down during each either else ever every everybody everyone
everything except few for from further had has have he hence her here hers herself him himself his how however i if in
indeed inside instead into is it its itself just least less like many may me might mine more moreover most much must my
near nearly neither never nevertheless no nobody none nor not nothing now of off often on once one only onto or other
others otherwise our out outside over own perhaps quite rather regarding same several shall she should similarly since
so some somebody someone something sometimes somewhere soon still such than that the their them then there therefore
these they this those though through throughout thus till to together too toward towards under unless unlike until up
upon us very was we were what whatever when whenever where whereas whereupon wherever whether which while who whoever
whom whose why will with within without would yes yet you your yours
"""
_OPENING = """
afterwards ago ahead alone altogether answer apart ask back become began begin best better big call came check come
compare consider course days dear early employment end even exercise fact families family far find fine first former
fortunately friends full get give given go good great half hear home imagine interestingly keep know last late lately
later left let life little local locals long look make man meanwhile members men mind name need neighbours new next
nonetheless note notes notice nowadays number old originally owing part parts people person place please put question
readers recall recently records remember residents right said say second see sir small solve sources start step
suppose sure take teachers ten thanks thing things think third time times today tomorrow trade true try turn two use
visitors well woman women words work workers write year years young
"""
_SMALL = """
two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_PRONOUNS = "he she it they him her them his hers its their who whom whose this that these those i we you me us my our"
PRONOUNS = frozenset(_PRONOUNS.split())
"""Lower case; a sentence that has one may speak of whoever was named before."""
FUNCTION_WORDS = frozenset(_FUNCTION.split())
"""Lower case; they say nothing of a sentence's content."""
COMMON_WORDS = FUNCTION_WORDS | frozenset(_OPENING.split())
"""Lower case, with words that often begin sentences."""
NUMBER_WORDS = {
    **{word: number for number, word in enumerate(_SMALL.split(), 2)},
    **{word: 10 * number for number, word in enumerate(_TENS.split(), 2)},
    "hundred": 100,
    "thousand": 1000,
    "million": 1_000_000,
}
"""Values of words; ``one`` is left out, which is a pronoun more often than a number."""
