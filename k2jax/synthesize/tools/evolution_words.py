"""Words of the program that evolves tools: kinds of records by category, their fields, and their states."""

from __future__ import annotations

NOUNS = {
    "travel": "suitcase,visa form,route map,shuttle,boarding pass,cabin,passport copy,itinerary,transfer,lounge seat,"
    "travel alert,deck chair,luggage tag,guide",
    "health": "prescription,blood sample,vaccine dose,x-ray,therapy plan,allergy,test result,hearing aid,donor,bandage,"
    "treatment,patient file,referral,blood pressure reading",
    "education": "lecture,exam,homework,diploma,scholarship,textbook,tutor,seminar,essay,timetable,quiz,thesis,"
    "lab bench,grade",
    "culture": "painting,film reel,manuscript,sculpture,rehearsal,costume,audio guide,telescope,score sheet,exhibition,"
    "archive box,poster,podium,donation",
    "sport": "racket,swim lane,climbing route,ski pass,match,trophy,oar,locker,training plan,referee,helmet,league,"
    "bowling ball,coach",
    "work": "server,candidate,contract,desk,print job,mock-up,headset,shift,invoice,meeting,software licence,"
    "call script,badge,backup",
    "home": "apartment,washing machine,moving van,seedling,toolbox,parking space,heating meter,key,sofa,window,lease,"
    "lawn mower,lamp,cellar",
    "food": "recipe,menu,cheese,wine barrel,oven,delivery van,ingredient,cake order,cooking pot,harvest,spice jar,"
    "allergen list,tasting,table linen",
    "public": "street lamp,fire engine,building permit,hydrant,waste bin,road sign,lost item,water meter,petition,"
    "census,bridge,ballot,noise complaint,snow plough",
    "trade": "novel,laptop,auction lot,bouquet,bicycle,puzzle,shelf,supplier,discount,warranty card,return parcel,"
    "price label,shop window,stock count",
}
"""Kinds of records by category of ``grammar.SETTINGS``."""
OTHER_NOUNS = "document,device,member,delivery,message,inspection,asset,schedule,certificate,storage unit,survey,permit"
QUALITIES = (
    "antique", "borrowed", "broken", "certified", "digital", "emergency", "experimental", "foreign", "frozen",
    "large", "miniature", "missing", "organic", "outdoor", "portable", "private", "recycled", "rented", "royal",
    "sealed", "seasonal", "second-hand", "temporary", "urgent", "virtual", "wooden", "stolen", "donated", "military",
    "electric", "handmade", "prize-winning", "children's", "maritime", "alpine", "tropical", "medieval", "vegan",
    "silver", "glass", "two-storey", "inflatable", "night-time", "solar", "magnetic", "waterproof", "confiscated",
    "ceramic",
)  # fmt: skip
NUMBERS = {
    "price": "in euros", "weight": "in grams", "capacity": "in litres", "rating": "from 0 to 100",
    "length": "in centimetres", "duration": "in minutes", "temperature": "in tenths of a degree", "stock": "in pieces",
    "age": "in years", "priority": "of the work", "deposit": "in cents", "budget": "in euros", "distance": "in metres",
    "energy": "in watt hours", "area": "in square metres", "visits": "so far", "speed": "in metres a minute",
    "humidity": "in percent", "pages": "in all", "balance": "in cents",
}  # fmt: skip
TEXTS = {
    "label": "printed on it", "owner": "to whom it belongs", "place": "where it is", "supplier": "who brought it",
    "language": "of its texts", "contact": "whom to call", "colour": "of its outside", "address": "of its home",
    "brand": "of its maker", "material": "that it is made of", "purpose": "that it serves",
    "inspector": "who looks at it",
    "batch": "that it came with", "theme": "that it is about", "region": "that it is from",
    "keeper": "who looks after it",
}  # fmt: skip
STATES = (
    (("new", "checked", "released"), ("check", "release")),
    (("draft", "published", "archived"), ("publish", "archive")),
    (("idle", "running", "broken"), ("start", "retire")),
    (("ordered", "shipped", "delivered", "returned"), ("ship", "deliver", "take_back")),
    (("wanted", "found", "collected"), ("locate", "hand_over")),
    (("clean", "used", "washed"), ("use", "wash")),
    (("planned", "confirmed", "finished", "billed"), ("confirm", "finish", "bill")),
    (("available", "lent", "overdue"), ("lend", "mark_overdue")),
    (("locked", "open", "sealed"), ("unlock", "seal")),
    (("waiting", "called", "served"), ("call", "serve")),
)
"""States in their order, and the verbs that lead from each to the next."""
